"""What is kept of a run: the commands with their output and exit codes, and the answers as files.

The names are the same for every experiment; README.md in runs/ explains them.
"""

from __future__ import annotations

from pathlib import Path

from .runner import Line, Report
from .script import Command

COMMANDS = "commands.txt"


def transcript(lines: list[Line]) -> str:
    """The commands as typed, each with what it printed (or the file that has it) and its exit."""
    text = []
    for line in lines:
        name, into = getattr(line.step, "name", ""), getattr(line.step, "into", "")
        if line.typed:
            text.append(f"$ {line.typed}{line.remark}")
        if line.finished is None:
            continue
        if not line.typed:
            text.append(f"({name} has ended)")
        printed = "" if into else line.finished.out
        text += [*printed.splitlines(), *line.finished.err.splitlines()]
        text.append(f"(exit {line.finished.exit})")
    return "\n".join(text) + "\n"


def keep(report: Report, folder: Path) -> None:
    """Write the transcript and the kept answers of a run into a folder."""
    (folder / COMMANDS).write_text(transcript(report.lines), "utf-8")
    for line in report.lines:
        if isinstance(line.step, Command) and line.step.into and line.finished:
            (folder / line.step.into).write_text(line.finished.out, "utf-8")
