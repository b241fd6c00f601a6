"""Pieces that the experiments are made of: the lab's commands and what is read off them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .evidence import Evidence
from .script import APPROVAL_CLI, OUTSIDE, Command, Sleep

STEPS = ("collect", "draft", "verify", "publish")
FIRST, SECOND = ("--owner", "first"), ("--owner", "second")


def cli(verb: str, *words: str, name: str = "", exits: int | None = 0) -> Command:
    """A command of the base command line."""
    return Command("cli.py", (verb, "--db", "{db}", *words), name or verb, exits)


def approval(verb: str, *words: str, name: str = "", exits: int | None = 0) -> Command:
    """A command of the approvals' command line."""
    return Command(APPROVAL_CLI, (verb, "--db", "{db}", *words), name or verb, exits)


def evaluate(exits: int = 0) -> Command:
    words = ("--db", "{db}")
    return Command("evaluate.py", words, "evaluate", exits, into="evaluation.json")


def outside(name: str, *words: str) -> Command:
    """Something of the world around, which goes on while the script does."""
    return Command(OUTSIDE, words, name, None, behind=True)


def crash(command: Command, fault: str, lease: str = "2") -> Command:
    """The command dies at a fault point, and leaves a lease of so many seconds."""
    words = ("--lease-seconds", lease, "--fault", fault)
    return command._replace(words=command.words + words, exits=75)


def before(command: Command) -> Command:
    return command._replace(name="before", into="inspect-before.json")


def after(command: Command) -> Command:
    return command._replace(name="after", into="inspect-after.json")


def lease_over(seconds: float) -> Sleep:
    """Wait for the end of the lease that the inspect before showed."""
    return Sleep(
        seconds,
        "until the lease is over",
        at=lambda e: float(e.answer("before")["job"]["lease_until"]),
    )


def once_said(name: str, words: str, why: str) -> Sleep:
    """Wait until something outside has said so."""
    return Sleep(1, why, seen=lambda e: words in e.said(name))


def job(column: str) -> Callable[[Evidence], object]:
    return lambda e: e.one(f"SELECT {column} FROM jobs")  # noqa: S608 - our own words


def answer(name: str, *path: str) -> Callable[[Evidence], object]:
    """A value in the JSON that a command printed."""

    def read(evidence: Evidence) -> object:
        value = evidence.answer(name)
        for key in path:
            value = value[key]
        return value

    return read


def count(name: str, *path: str) -> Callable[[Evidence], int]:
    """How many entries a list or object in a command's JSON has."""
    read = answer(name, *path)
    return lambda e: len(read(e))  # type: ignore[arg-type]


def events(kind: str) -> Callable[[Evidence], int]:
    return lambda e: sum(event[0] == kind for event in e.events())


def last_event(evidence: Evidence) -> str:
    return evidence.events()[-1][0]


def says(name: str, words: str) -> Callable[[Evidence], str]:
    """The words themselves, if a command said them; else all that it said."""
    return lambda e: words if words in e.err(name) else e.err(name).strip()


def broken_checks(evaluation: Any) -> list[str]:
    """The checks of evaluate.py that found something, without those that it could not judge."""
    checks = [*evaluation["checks"], *(c for job in evaluation["jobs"] for c in job["checks"])]
    broken = [check for check in checks if not check["passed"]]
    return [check["name"] for check in broken if not check["detail"].startswith("not judged")]
