"""What the reader sees: marks, the table, a transcript, progress. Plain text wherever it goes.

Guarantee: no more than 100 columns, ASCII where the console knows nothing else, colour and moving
progress on a terminal only. Limit: words of the lab are wrapped, and long answers cut, to be read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from .parts import broken_checks
from .runner import Checked, Line, Report, plain
from .script import Experiment, fold, script

MOST_COLUMNS = 100
COLUMNS = (24, 29, 29, 12)  # with two blanks between them: MOST_COLUMNS
ANSWER_LINES = 6
HEADER = ("experiment", "what was broken", "what held", "verdict")
BOLD, DIM, GREEN, RED = "1", "2", "32", "31"


class Screen:
    """One output stream, and what can be shown on it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        terminal = stream.isatty()
        columns = shutil.get_terminal_size((MOST_COLUMNS, 24)).columns if terminal else MOST_COLUMNS
        self.width = max(40, min(columns, MOST_COLUMNS))
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        self.colour = terminal and not plain
        self.rich = _can_show("✓✗─", stream)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def say(self, text: str = "") -> None:
        print(text, file=self.stream, flush=True)

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colour and text else text

    def mark(self, held: bool) -> str:
        if held:
            return self.paint("✓" if self.rich else "+", GREEN)
        return self.paint("✗" if self.rich else "X", RED)

    def wrapped(self, text: str, indent: str = "  ", first: str | None = None) -> list[str]:
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )

    # The table.

    def table(self, reports: Sequence[Report]) -> None:
        if self.width < MOST_COLUMNS:
            for report in reports:
                self._stacked(report)
            return
        self.say(self.paint(_row(HEADER).rstrip(), BOLD))
        rule = "─" if self.rich else "-"
        self.say(_row([rule * width for width in COLUMNS]))
        for report in reports:
            it = report.experiment
            # The mark is coloured, so its one column is put before a row that is one shorter.
            row = _row((f" {it.name}", it.broken, it.held, report.verdict), shorter=1)
            self.say(f"{self.mark(report.held)}{row}".rstrip())
            self.say(self.paint(f"  does not prove: {it.unproven}", DIM))

    def _stacked(self, report: Report) -> None:
        it = report.experiment
        room = self.width - 2 - len(it.name)
        self.say(f"{self.mark(report.held)} {it.name}{report.verdict:>{room}}")
        for name, text in (("broken", it.broken), ("held", it.held), ("not proved", it.unproven)):
            for line in self.wrapped(text, " " * 14, f"  {name:<12}"):
                self.say(self.paint(line, DIM) if name == "not proved" else line)

    def failures(self, reports: Iterable[Report]) -> None:
        for report in reports:
            if report.held:
                continue
            self.say()
            self.say(self.paint(f"{report.experiment.name} did not hold:", BOLD))
            for fact in report.checked:
                if not fact.held:
                    self.fact(fact)
            self.say(f"  see it: python3 -m workbench run {report.experiment.name}")

    def fact(self, fact: Checked, column: int = 0) -> None:
        name = f"{fact.name}:".ljust(column)
        words = fact.expected if fact.held else f"{fact.seen}, not {fact.expected}"
        lines = self.wrapped(f"{name} {words}", "      ", "  x ")
        self.say(f"  {self.mark(fact.held)} {lines[0][4:]}")
        for line in lines[1:]:
            self.say(line)

    # One experiment in full.

    def story(self, experiment: Experiment) -> None:
        self.say(self.paint(f"{experiment.name}: {experiment.broken}", BOLD))
        for line in self.wrapped(experiment.story):
            self.say(line)
        self.say()

    def listing(self, experiment: Experiment, *, outcome: bool = True) -> None:
        """The script as a person types it, under comments; without what comes of it if so asked."""
        self.say(self.paint(f"# {experiment.name}: {experiment.broken}", BOLD))
        if outcome:
            for line in self.wrapped(experiment.story, "# "):
                self.say(self.paint(line, DIM))
        for line in script(experiment, exits=outcome):
            self.say(line)

    def line(self, line: Line) -> None:
        """One line of a transcript: what was typed, and what came of it."""
        if line.typed:
            first, *more = fold(line.typed, self.width - 2)
            self.say(f"{self.paint('$', DIM)} {first}{self.paint(line.remark, DIM)}")
            for part in more:
                self.say(part)
        elif line.finished:
            self.say(self.paint(f"  ({getattr(line.step, 'name', '')} has ended)", DIM))
        if line.finished is None:
            return
        for text in answer_lines(line.finished.out, self.width - 2):
            self.say(f"  {text}")
        for words in line.finished.err.splitlines():
            for text in self.wrapped(words):
                self.say(text)
        if line.finished.exit != 0:
            self.say(self.paint(f"  exit {line.finished.exit}", BOLD))

    def facts(self, report: Report) -> None:
        self.say()
        self.say(self.paint("What must be seen", BOLD))
        column = min(44, max(len(fact.name) for fact in report.checked) + 1)
        for fact in report.checked:
            self.fact(fact, column)


def answer_lines(out: str, width: int) -> list[str]:
    """An answer on few lines: JSON without its line breaks, and the gist of what is long."""
    value: Any = None
    with contextlib.suppress(ValueError):
        value = json.loads(out)
        out = json.dumps(value, ensure_ascii=False)
    lines = [part for line in out.splitlines() for part in _cut(line, width)]
    if len(lines) <= ANSWER_LINES:
        return lines
    said = gist(value)
    if not said:
        return [*lines[: ANSWER_LINES - 1], f"... {len(out)} characters in all"]
    return _cut(f"({len(out)} characters of JSON: {said})", width)


def gist(value: Any) -> str:
    """What a long answer comes down to: of inspect the state, of evaluate the verdict."""
    try:
        if "verdict" in value:
            checks = value["checks"] + [check for job in value["jobs"] for check in job["checks"]]
            failed = broken_checks(value)
            named = f"broken: {plain(failed)}" if failed else f"{len(checks)} checks passed"
            return f"verdict {value['verdict']}, {named}"
        job, steps, receipts = value["job"], value["checkpoints"], value["receipts"]
        told = [f"status {job['status']}", f"generation {job['generation']}"]
        told += [f"checkpoints {plain(list(steps))}", f"receipts {len(receipts)}"]
        if value.get("approval"):
            told.append(f"approval {value['approval']['status']}")
        return ", ".join([*told, f"effect {value['effect']}"])
    except (LookupError, TypeError, AttributeError):
        return ""


def _cut(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_on_hyphens=False, subsequent_indent=" ") or [""]


def _row(cells: Sequence[str], shorter: int = 0) -> str:
    widths = (COLUMNS[0] - shorter, *COLUMNS[1:])
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))


def _can_show(text: str, stream: TextIO) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Progress:
    """One moving line on a terminal's stderr; nothing at all anywhere else."""

    BAR = 20

    def __init__(self, names: Sequence[str]) -> None:
        self.stream = sys.stderr
        moving = self.stream is not None and self.stream.isatty()
        self.shown = moving and os.environ.get("TERM", "dumb") != "dumb"
        self.open, self.total, self.begin = list(names), len(names), time.monotonic()

    def ended(self, name: str) -> None:
        self.open.remove(name)

    def draw(self) -> None:
        if not self.shown:
            return
        done = self.total - len(self.open)
        filled = done * self.BAR // max(1, self.total)
        spent = time.monotonic() - self.begin
        text = f"[{'#' * filled}{'.' * (self.BAR - filled)}] {done} of {self.total}, {spent:.0f} s"
        text += f": {', '.join(self.open)}" if self.open else ""
        width = shutil.get_terminal_size().columns - 1
        if len(text) > width:
            text = text[: max(0, width - 3)] + "..."
        self.stream.write(f"\r\x1b[K{text}")
        self.stream.flush()

    def clear(self) -> None:
        if self.shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
