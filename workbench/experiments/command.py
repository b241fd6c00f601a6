"""`python3 -m workbench [run [NAME...]]`: run experiments and say what held.

Exit 0 when everything held, 1 when not (the last line names what), 2 for usage, 130 and 143 when
interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli import Interrupted, signals

from .catalogue import add_names, chosen
from .keeping import keep
from .prediction import ask, score
from .runner import Line, Report
from .screen import Progress, Screen
from .script import Command, Experiment
from .stage import Failed, Hooks, Plan, run_all, scratch

HELD, NOT_HELD = 0, 1
LEGEND = (
    "The mark: whether all was seen that had to be. The verdict: what evaluate.py says of the job."
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_names(parser, "show these with their commands (default: all)")
    parser.add_argument("--keep", metavar="DIR", help="leave databases and transcripts in DIR/NAME")
    parser.add_argument(
        "--predict", action="store_true", help="with one NAME: say first what will come of it"
    )


def execute(arguments: argparse.Namespace) -> int:
    experiments = chosen(arguments)
    if arguments.predict and len(arguments.names) != 1:
        arguments.parser.error("--predict takes one NAME")
    try:
        with signals(), place(arguments, experiments) as folder:
            return perform(arguments, experiments, folder, Screen(sys.stdout))
    except Interrupted as interrupted:
        print("interrupted; every process was ended", file=sys.stderr)
        return int(interrupted.args[0])
    except Failed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return NOT_HELD


@contextlib.contextmanager
def place(arguments: argparse.Namespace, experiments: Sequence[Experiment]) -> Iterator[Path]:
    """A temporary folder, or the one to keep; what stands there is never touched."""
    if arguments.keep is None:
        with scratch() as folder:
            yield folder
        return
    folder = Path(arguments.keep).absolute()
    taken = [each.name for each in experiments if (folder / each.name).exists()]
    if taken:
        arguments.parser.error(f"--keep: {folder / taken[0]} exists; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        arguments.parser.error(f"--keep: {error}")
    yield folder


def perform(
    arguments: argparse.Namespace,
    experiments: Sequence[Experiment],
    folder: Path,
    screen: Screen,
) -> int:
    alone = experiments[0] if len(experiments) == 1 and arguments.names else None
    progress = Progress([each.name for each in experiments])
    answers: dict[str, str] = {}
    if arguments.predict and alone:
        screen.listing(alone, outcome=False)
        screen.say()
        answers = ask(alone, screen)
    elif alone:
        screen.story(alone)

    def line(experiment: Experiment, line: Line) -> None:
        if alone:
            progress.clear()
            screen.line(line)

    def ended(report: Report) -> None:
        progress.ended(report.experiment.name)
        if arguments.keep is not None:
            keep(report, folder / report.experiment.name)

    begin = time.monotonic()
    try:
        plan = Plan(experiments, folder, saving=arguments.keep is not None)
        reports = run_all(plan, Hooks(line, ended, progress.draw))
    finally:
        progress.clear()
    if arguments.names and not alone:
        for report in reports:
            _in_full(report, screen)
    elif alone:
        screen.facts(reports[0])
        if arguments.predict:
            score(alone, answers, reports[0].evidence, screen)
        screen.say()
    return conclude(reports, time.monotonic() - begin, screen)


def _in_full(report: Report, screen: Screen) -> None:
    screen.story(report.experiment)
    for line in report.lines:
        screen.line(line)
    screen.facts(report)
    screen.say()


def conclude(reports: Sequence[Report], seconds: float, screen: Screen) -> int:
    """The table, what failed, the counts, and the line that says it all."""
    screen.table(reports)
    screen.failures(reports)
    commands = sum(
        line.finished is not None and isinstance(line.step, Command)
        for report in reports
        for line in report.lines
    )
    facts = sum(len(report.checked) for report in reports)
    screen.say()
    for words in screen.wrapped(LEGEND, ""):
        screen.say(words)
    screen.say(
        f"{len(reports)} experiment{'s' if len(reports) > 1 else ''}, {commands} commands,"
        f" {facts} facts checked in {seconds:.1f} s."
    )
    broken = [report.experiment.name for report in reports if not report.held]
    screen.say(f"Did not hold: {', '.join(broken)}." if broken else "Everything held.")
    return NOT_HELD if broken else HELD
