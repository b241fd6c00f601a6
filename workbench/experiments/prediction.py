"""`run NAME --predict`: the reader says first what will come of it, and is told afterwards.

Plain lines on any input; an empty line or the end of the input is no answer.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from .evidence import Evidence
from .runner import check
from .screen import Screen
from .script import Command, Experiment, Fact, typed


class Question(NamedTuple):
    """What is asked, and the fact that answers it."""

    words: str
    fact: Fact


def questions(experiment: Experiment) -> list[Question]:
    told = experiment.outcome
    last = next(
        step for step in experiment.steps if isinstance(step, Command) and step.name == told.last
    )
    command = typed(last, experiment.db).partition(" & ")[0]
    receipts = "SELECT op FROM receipts"
    return [
        Question(
            "status of the job in the end",
            Fact("status", lambda e: e.one("SELECT status FROM jobs"), told.status),
        ),
        Question(
            "checkpoints, 0 to 4",
            Fact(
                "checkpoints", lambda e: e.one("SELECT count(*) FROM checkpoints"), told.checkpoints
            ),
        ),
        Question(
            "receipts at the report service",
            Fact("receipts", lambda e: len(e.publisher(receipts)), told.receipts),
        ),
        Question(
            f"exit code of `{command}`",
            Fact("exit code", lambda e: e.exit(told.last), told.exit),
        ),
    ]


def ask(experiment: Experiment, screen: Screen) -> dict[str, str]:
    """The reader's answers by fact; what was left out is not there."""
    screen.say("Before it runs: what will come of it? An empty line is no answer.")
    answers: dict[str, str] = {}
    for question in questions(experiment):
        screen.stream.write(f"  {question.words}: ")
        screen.stream.flush()
        line = sys.stdin.readline() if sys.stdin is not None else ""
        given = re.sub(r"(?<=\w)[\s-]+(?=\w)", "_", line.strip().lower())
        if not line or not sys.stdin.isatty():
            screen.say(given)  # nobody's typing has ended the line
        if given:
            answers[question.fact.name] = given
    screen.say()
    return answers


def score(
    experiment: Experiment, answers: dict[str, str], evidence: Evidence, screen: Screen
) -> None:
    """How the answers compare with what was seen."""
    asked = questions(experiment)
    right = 0
    lines = []
    for question in asked:
        seen = check(question.fact, evidence).seen
        given = answers.get(question.fact.name)
        right += given == seen
        words = "no answer" if given is None else f"you said {given}"
        said = seen if given == seen else f"{seen} ({words})"
        lines.append(f"  {screen.mark(given == seen)} {question.fact.name}: {said}")
    screen.say()
    screen.say(f"Your prediction: {right} of {len(asked)}")
    for line in lines:
        screen.say(line)
