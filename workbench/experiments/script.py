"""The small language that an experiment is written in: steps, facts, and how a person types them.

One definition serves three readers: the runner executes the steps, the listing prints them as a
shell script, and the facts say what must be seen. Limit: a script has no branches and no loops.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

from .evidence import Evidence

OUTSIDE = "workbench/experiments/outside.py"
APPROVAL_CLI = "approval_cli.py"
PORT = "8765"  # what a person types; the runner takes a free one
KEY = "LLM_API_KEY"
THROWAWAY_KEY = "throwaway-key"
WIDTH = 100
WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
PICK = "import json, sys; print(json.load(sys.stdin)['approval']['binding_hash'])"


class Command(NamedTuple):
    """One command of the lab, or of the world around it.

    exits: the exit code it must have; None leaves that to a fact. behind: goes on while the script
    does, until a Wait. key: an API key is in its environment. into: the file a recording puts its
    output in. urgent: it must come while a lease runs. `{db}`, `{port}` and `{hash}` stand for
    values.
    """

    program: str
    words: tuple[str, ...]
    name: str
    exits: int | None = 0
    behind: bool = False
    key: bool = False
    into: str = ""
    urgent: bool = False


class Race(NamedTuple):
    """The same command many times at once; `{n}` numbers them, `NAME-n` names them."""

    command: Command
    workers: int

    def members(self) -> list[Command]:
        one = self.command
        return [
            one._replace(
                name=f"{one.name}-{n}", words=tuple(w.replace("{n}", str(n)) for w in one.words)
            )
            for n in range(1, self.workers + 1)
        ]


class TakeHash(NamedTuple):
    """Keep the binding hash that inspect shows, for `{hash}`."""


class Sleep(NamedTuple):
    """Wait for something. A person sleeps; the runner goes on once it has come.

    at: the Unix time when it will have come. seen: whether it has. Neither: just the seconds.
    """

    seconds: float
    why: str
    at: Callable[[Evidence], float] | None = None
    seen: Callable[[Evidence], bool] | None = None


class Signal(NamedTuple):
    """Send a signal (STOP, CONT, TERM) to a command that goes on behind."""

    signal: str
    name: str


class Wait(NamedTuple):
    """Wait for a command behind to end; without a name, for all of them."""

    name: str = ""


class Touch(NamedTuple):
    """Create an empty file, as a sign."""

    file: str


Step = Command | Race | TakeHash | Sleep | Signal | Wait | Touch


class Fact(NamedTuple):
    """Something that must be seen: its name, how to read it, what it must be."""

    name: str
    read: Callable[[Evidence], object]
    expected: object


class Outcome(NamedTuple):
    """What every experiment must end in; `last` names the command whose answer and exit count."""

    last: str
    exit: int
    status: str
    checkpoints: int
    receipts: int
    generation: int
    attempts: int
    effect: str
    verdict: str
    approval: str | None = None
    reused: tuple[str, ...] | None = None  # of the last command, where it is a run
    deduplicated: bool | None = None


class Experiment(NamedTuple):
    """A named script: what it breaks, what must hold, what it does not prove, and its story."""

    name: str
    db: str
    broken: str  # this and the next stand side by side: 29 characters each
    held: str
    unproven: str
    story: str
    steps: tuple[Step, ...]
    outcome: Outcome
    facts: tuple[Fact, ...] = ()

    @property
    def approvals(self) -> bool:
        return any(isinstance(step, TakeHash) for step in self.steps)


def words_of(command: Command, values: Mapping[str, str]) -> list[str]:
    """The command's words with its values put in."""
    found = []
    for word in command.words:
        for name, value in values.items():
            word = word.replace(f"{{{name}}}", value)
        found.append(word)
    return found


def typed_values(db: str) -> dict[str, str]:
    """The values that a person types."""
    return {"db": db, "port": PORT, "hash": "$HASH"}


def typed(step: Step, db: str, *, saving: bool = False) -> str:
    """A step as a line of shell; `saving` shows where a recording puts the output."""
    if isinstance(step, Race):
        one = _command(step.command, {**typed_values(db), "n": "$n"})
        return f"for n in $(seq {step.workers}); do {one} & done"
    if isinstance(step, Command):
        line = _command(step, typed_values(db))
        if saving and step.into:
            line += f" > {step.into}"
        return f"{line} & {variable(step.name)}=$!" if step.behind else line
    if isinstance(step, TakeHash):
        return f'HASH=$(python3 {APPROVAL_CLI} inspect --db {db} | python3 -c "{PICK}")'
    if isinstance(step, Sleep):
        return f"sleep {step.seconds:g}"
    if isinstance(step, Signal):
        return f"kill -{step.signal} ${variable(step.name)}"
    if isinstance(step, Wait):
        return f"wait ${variable(step.name)}" if step.name else "wait"
    return f"touch {step.file}"


def _command(command: Command, values: Mapping[str, str]) -> str:
    words = [command.program, *words_of(command, values)]
    shown = " ".join(map(_quoted, words))
    return f"{KEY}={THROWAWAY_KEY} python3 {shown}" if command.key else f"python3 {shown}"


def _quoted(word: str) -> str:
    """For a shell: in double quotes where a variable or a single quote is in the word."""
    return f'"{word}"' if "$" in word or "'" in word else shlex.quote(word)


def variable(name: str) -> str:
    """The shell variable that holds a command's process id."""
    return name.upper().replace("-", "_")


def remark(step: Step, experiment: Experiment) -> str:
    """What a person should know of a line: why it waits, or which exit code it ends with."""
    if isinstance(step, Sleep):
        return step.why
    exits = {each.name: each.exits for each in experiment.steps if isinstance(each, Command)}
    ends = isinstance(step, Wait) or (isinstance(step, Command) and not step.behind)
    code = exits.get(getattr(step, "name", "")) if ends else None
    return f"exit {code}" if code else ""


def script(experiment: Experiment, *, exits: bool = True) -> list[str]:
    """The whole experiment as shell lines of at most WIDTH characters where that can be.

    exits: also say with which exit code a command ends.
    """
    lines = []
    for step in experiment.steps:
        parts = fold(typed(step, experiment.db))
        comment = remark(step, experiment) if exits or isinstance(step, Sleep) else ""
        if comment and len(parts[-1]) + len(comment) + 4 > WIDTH:
            lines.append(f"# {comment}:")
        elif comment:
            parts[-1] += f"  # {comment}"
        lines += parts
    return lines


def fold(line: str, width: int = WIDTH) -> list[str]:
    """A long command over several lines, broken before an option, a pipe or a quoted word."""
    pieces: list[str] = []
    for word in WORD.findall(line):
        if word.startswith(("--", "|", '"')) or not pieces:
            pieces.append(word)
        else:
            pieces[-1] += f" {word}"
    lines = pieces[:1]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) + 1 <= width - 2:
            lines[-1] += f" {piece}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {piece}")
    return lines
