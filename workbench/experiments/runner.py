"""Run an experiment's steps as child processes and check its facts.

Guarantee: real processes, real exit codes, real time: nothing of the lab is imported or replaced.
Limit: where a script sleeps, the runner goes on as soon as what it waits for has come.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .crew import Crew, environment, until
from .evidence import Evidence, Finished, Missing
from .script import (
    APPROVAL_CLI,
    Command,
    Experiment,
    Fact,
    Race,
    Signal,
    Sleep,
    Step,
    TakeHash,
    Touch,
    Wait,
    typed,
    words_of,
)

SIGN_SECONDS = 12.0  # for something that comes in a fraction of one
MARGIN = 0.02  # past a lease's end by the lab's own clock


class Line(NamedTuple):
    """One line of the script as it went: what to type, and what came of it.

    Without `typed` it is what came of a command behind, after the wait for it.
    """

    step: Step
    typed: str
    finished: Finished | None = None

    @property
    def remark(self) -> str:
        return f"  # {self.step.why}" if isinstance(self.step, Sleep) else ""


class Checked(NamedTuple):
    """One fact: what was expected and what was seen."""

    name: str
    held: bool
    seen: str
    expected: str


class Report(NamedTuple):
    """What came of an experiment."""

    experiment: Experiment
    checked: list[Checked]
    verdict: str
    lines: list[Line]
    evidence: Evidence

    @property
    def held(self) -> bool:
        return all(fact.held for fact in self.checked)


Tell = Callable[[Line], None]


class Setting(NamedTuple):
    """Where an experiment runs: its folder, a folder for what goes on behind, its database's name.

    saving: show the commands as a recording has them, with the files that answers go to.
    """

    crew: Crew
    folder: Path
    logs: Path
    db: str
    saving: bool = False


class Run:
    """One experiment on its way; `tell` hears each line."""

    def __init__(self, experiment: Experiment, setting: Setting, tell: Tell) -> None:
        self.experiment, self.tell = experiment, tell
        self.crew, self.folder, self.logs, self.db, self.saving = setting
        self.values = {"db": self.db, "port": "0", "hash": "no-hash-was-shown"}
        self.behind: dict[str, tuple[Command, subprocess.Popen[bytes]]] = {}
        self.evidence = Evidence(self.folder, self.db, self._look)
        self.lines: list[Line] = []
        self.ahead = 0.0

    def __call__(self) -> Report:
        try:
            for number, step in enumerate(self.experiment.steps):
                self.ahead = pauses(self.experiment.steps[number:])
                self._do(step)
        finally:
            for _, process in self.behind.values():
                self.crew.kill(process)
                self.crew.wait(process)
        checked = [check(fact, self.evidence) for fact in facts_of(self.experiment)]
        return Report(
            self.experiment, checked, verdict_of(self.evidence), self.lines, self.evidence
        )

    def _do(self, step: Step) -> None:
        line = typed(step, self.db, saving=self.saving)
        if isinstance(step, Command) and not step.behind:
            ahead = None if step.urgent else self.ahead
            words, around = self._words(step), environment(step.key)
            finished = self.crew.run(words, self.folder, around, ahead=ahead)
            self.evidence.finished[step.name] = finished
            self._line(Line(step, line, finished))
            return
        self._line(Line(step, line))
        if isinstance(step, TakeHash):
            self._take_hash()
        elif isinstance(step, Command):
            self._start(step)
        elif isinstance(step, Race):
            for member in step.members():
                self._start(member)
        elif isinstance(step, Sleep):
            self._sleep(step)
        elif isinstance(step, Signal):
            _, process = self.behind[step.name]
            os.kill(process.pid, getattr(signal, f"SIG{step.signal}"))
        elif isinstance(step, Touch):
            (self.folder / step.file).touch()
        elif isinstance(step, Wait):
            for name in [step.name] if step.name else list(self.behind):
                self._wait(name)

    def _words(self, command: Command) -> list[str]:
        return [command.program, *words_of(command, self.values)]

    def _line(self, line: Line) -> None:
        self.lines.append(line)
        self.tell(line)

    def _start(self, command: Command) -> None:
        out, err = self.logs / f"{command.name}.out", self.logs / f"{command.name}.err"
        self.evidence.outputs[command.name] = out
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            words, around = self._words(command), environment(command.key)
            process = self.crew.start(words, self.folder, around, stdout, stderr)
        self.behind[command.name] = (command, process)

    def _wait(self, name: str) -> None:
        command, process = self.behind.pop(name)
        code = self.crew.wait(process)
        out, err = (self.logs / f"{name}.{end}" for end in ("out", "err"))
        finished = Finished(code, *(p.read_text("utf-8", "replace") for p in (out, err)))
        self.evidence.finished[name] = finished
        self._line(Line(command, "", finished))

    def _sleep(self, step: Sleep) -> None:
        if step.at is not None:
            with contextlib.suppress(Missing, LookupError, TypeError):
                self.crew.sleep(step.at(self.evidence) + MARGIN - time.time())
                return
        if step.seen is None:
            self.crew.sleep(step.seconds)
            return

        def seen() -> bool:
            with contextlib.suppress(Missing, LookupError, TypeError):
                return bool(step.seen and step.seen(self.evidence))
            return False

        self.evidence.waited[step.why] = until(self.crew, seen, SIGN_SECONDS)
        for name in self.behind:
            listening = re.match(r"listening on .*:([0-9]+)\n", self.evidence.said(name))
            if listening:
                self.values["port"] = listening[1]

    def _look(self) -> Finished:
        program = APPROVAL_CLI if self.experiment.approvals else "cli.py"
        words = [program, "inspect", "--db", self.db]
        return self.crew.run(words, self.folder, environment(), ahead=None)

    def _take_hash(self) -> None:
        with contextlib.suppress(Missing, LookupError, TypeError):
            self.values["hash"] = str(self.evidence.look()["approval"]["binding_hash"])


def pauses(steps: Sequence[Step]) -> float:
    """Seconds that a person would sleep in these steps."""
    return sum(step.seconds for step in steps if isinstance(step, Sleep))


def facts_of(experiment: Experiment) -> list[Fact]:
    """All that an experiment must show: its outcome, its own facts, its waits, its exit codes."""
    waits = [step for step in experiment.steps if isinstance(step, Sleep) and step.seen]
    exits = [
        step for step in experiment.steps if isinstance(step, Command) and step.exits is not None
    ]
    return [
        *_outcome(experiment),
        *experiment.facts,
        *map(_came, waits),
        *map(_exit, exits),
        Fact("commands that end in a traceback", _tracebacks, []),
    ]


def _tracebacks(evidence: Evidence) -> list[str]:
    return [name for name, ended in evidence.finished.items() if "Traceback" in ended.err]


def _exit(command: Command) -> Fact:
    verb = "evaluate" if command.program == "evaluate.py" else command.words[0]
    which = verb if command.name == verb else f"{verb} ({command.name})"
    return Fact(f"exit code of {which}", lambda e: e.exit(command.name), command.exits)


def _came(step: Sleep) -> Fact:
    return Fact(f"waited {step.why}", lambda e: e.waited[step.why], True)


def _outcome(experiment: Experiment) -> list[Fact]:
    told, column = experiment.outcome, "SELECT {} FROM jobs".format
    facts = [
        Fact("status", lambda e: e.one(column("status")), told.status),
        Fact("status in inspect", lambda e: e.answer("after")["job"]["status"], told.status),
        Fact("checkpoints", lambda e: e.one("SELECT count(*) FROM checkpoints"), told.checkpoints),
        Fact("receipts", lambda e: len(e.publisher("SELECT op FROM receipts")), told.receipts),
        Fact("generation", lambda e: e.one(column("generation")), told.generation),
        Fact("attempts", lambda e: e.one(column("attempts")), told.attempts),
        Fact("effect", lambda e: e.answer("after")["effect"], told.effect),
        Fact("verdict of evaluate.py", lambda e: e.answer("evaluate")["verdict"], told.verdict),
    ]
    if told.approval is not None:
        status = "SELECT status FROM approvals"
        facts.append(Fact("approval", lambda e: e.one(status), told.approval))
    if told.reused is not None:
        reused = list(told.reused)
        facts.append(Fact("steps reused", lambda e: e.answer(told.last)["steps_reused"], reused))
    if told.deduplicated is not None:
        again = told.deduplicated
        facts.append(Fact("deduplicated", lambda e: e.answer(told.last)["deduplicated"], again))
    return facts


def check(fact: Fact, evidence: Evidence) -> Checked:
    """Read a fact; whatever keeps it from being read is what was seen."""
    try:
        seen = fact.read(evidence)
    except (Missing, LookupError, TypeError, ValueError, AttributeError) as error:
        return Checked(fact.name, False, f"nothing to see: {error}", plain(fact.expected))
    return Checked(fact.name, seen == fact.expected, plain(seen), plain(fact.expected))


def plain(value: object) -> str:
    """A value as a reader writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    return "none" if value is None else str(value)


def verdict_of(evidence: Evidence) -> str:
    try:
        return str(evidence.answer("evaluate")["verdict"])
    except (Missing, LookupError, TypeError):
        return "none"
