"""`python3 -m workbench prove`: break the lab in every way the instruments know, and say what held.

Exit 0 when nothing was violated, 1 when something was (its name is what `prove replay` takes) or
an instrument broke off, 2 for usage. What the instruments do not show: other SQLite versions than
this Python's, disks that lie about syncing, network file systems, and whether a real service keeps
its idempotency contract.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sqlite3
import sys
import textwrap
import time
from types import ModuleType
from typing import Any

from workbench import positive
from workbench.prove import trace
from workbench.prove.bench import LifeFailed, workshop
from workbench.prove.history import INVARIANTS
from workbench.prove.invariants import RESTS
from workbench.prove.judge import PROPERTIES
from workbench.prove.pool import WorkerFailed
from workbench.prove.report import NoCase, Result, Settings, Violation

# In the order of a full run, with the seconds that each takes on two processors: full, quick.
INSTRUMENTS = {
    "sweep": (90, 5),
    "syscalls": (120, 14),
    "powerloss": (115, 9),
    "schedules": (90, 8),
    "ablations": (155, 15),
}
LAB = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH = 100
EPILOG = """examples:
  python3 -m workbench prove                        all instruments, within minutes
  python3 -m workbench prove --quick                a stated subset, within 90 seconds
  python3 -m workbench prove schedules --jobs 4     one of them
  python3 -m workbench prove replay NAME            one case again: databases and picture"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "what",
        nargs="*",
        metavar="INSTRUMENT",
        help=f"any of {', '.join(INSTRUMENTS)} (default: all); or: replay NAME",
    )
    parser.add_argument("--quick", action="store_true", help="the subset that each states")
    parser.add_argument("--jobs", type=positive, default=_processors(), help="processes")
    parser.add_argument("--first", action="store_true", help="stop at a first violation")
    parser.add_argument("--json", action="store_true", help="the results as JSON on stdout")
    parser.add_argument("--lab", default=LAB, metavar="DIR", help="the lab under test")
    parser.add_argument(
        "--keep", default="replayed", metavar="DIR", help="of replay: where its files go"
    )
    parser.set_defaults(parser=parser)


def execute(arguments: argparse.Namespace) -> int:
    what = arguments.what
    if not os.path.isfile(os.path.join(arguments.lab, "runtime.py")):
        arguments.parser.error(f"--lab: no runtime.py in {arguments.lab!r}")
    if what[:1] == ["replay"]:
        if len(what) != 2:
            arguments.parser.error("replay takes one NAME, as a violation prints it")
        with workshop():
            return replay(arguments, what[1])
    for name in what:
        if name not in INSTRUMENTS:
            arguments.parser.error(f"no instrument {name!r}: {', '.join(INSTRUMENTS)}, or replay")
    names = [name for name in INSTRUMENTS if name in what or not what]
    try:
        with workshop():
            results = [measure(arguments, name) for name in names]
    except KeyboardInterrupt:
        print("interrupted; nothing is proved", file=sys.stderr)
        return 130
    broken = [violation for result in results for violation in result.violations]
    if arguments.json:
        print(json.dumps(as_json(arguments, results), indent=2))
    else:
        print("\n".join([heading(arguments), "", *report(results, broken)]))
    return 0 if passed(results) else 1


def passed(results: list[Result]) -> bool:
    """Nothing was violated, and no instrument broke off."""
    return not any(result.violations or result.failed for result in results)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def instrument(name: str) -> ModuleType:
    """An instrument's module: it has `run(settings)` and `replay(name, settings)`."""
    return importlib.import_module(f"workbench.prove.{name}")


def measure(arguments: argparse.Namespace, name: str) -> Result:
    """Run one instrument, with its progress on a terminal; if it breaks off, that is its result."""
    began = time.monotonic()
    progress = Progress(name, INSTRUMENTS[name][arguments.quick] * 2 / arguments.jobs)
    lab = os.path.abspath(arguments.lab)
    quick, jobs, first = arguments.quick, arguments.jobs, arguments.first
    settings = Settings(quick, jobs, lab, progress=progress.tell, first=first)
    try:
        result: Result = instrument(name).run(settings)
    except WorkerFailed as error:
        print(str(error), file=sys.stderr)
        why = str(error).strip().rpartition("\n")[2]
        return Result(name, "", {}, [], time.monotonic() - began, failed=why)
    finally:
        progress.end()
    return result


class Progress:
    """One line on stderr, if that is a terminal: cases done, time gone, time left."""

    def __init__(self, name: str, expected: float) -> None:
        self.name, self.expected = name, expected
        self.began = self.shown = time.monotonic()
        self.on = sys.stderr is not None and sys.stderr.isatty()

    def tell(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.on or now - self.shown < 0.2:
            return
        self.shown, gone = now, now - self.began
        left = gone * (total - done) / done if total and done else self.expected - gone
        of = f" of {total:,}" if total else ""
        words = f"about {clock(left)} left" if left > 0 else "nearly done"
        line = f"{what}: {done:,}{of} cases, {clock(gone)} gone, {words}"
        sys.stderr.write(f"\r{line:<{WIDTH - 1}}")
        sys.stderr.flush()

    def end(self) -> None:
        if self.on:
            sys.stderr.write(f"\r{'':<{WIDTH - 1}}\r")
            sys.stderr.flush()


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


# --- Words ----------------------------------------------------------------------------------------


def properties() -> dict[str, str]:
    """Everything that is checked: a name and one testable line each."""
    return {**INVARIANTS, **PROPERTIES}


def heading(arguments: argparse.Namespace) -> str:
    """What was run, and on what."""
    size = "quick run, a subset" if arguments.quick else "full run"
    processes = f"{arguments.jobs} process{'' if arguments.jobs == 1 else 'es'}"
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return f"Proof, {size}: {versions}, {processes}"


def report(results: list[Result], broken: list[Violation]) -> list[str]:
    """The result for a person: what was checked, the table, the violations, one last line."""
    lines = ["What must hold, judged from the two databases alone:"]
    for name, words in INVARIANTS.items():
        lines += paragraph(f"  {name:<33}{words}", 35)
    lines += ["", "What the instruments see beside that, or must see of themselves:"]
    for name, words in PROPERTIES.items():
        lines += paragraph(f"  {name:<33}{words}", 35)
    lines += ["", f"{'instrument':<12}{'violations':>11}{'seconds':>9}  what was done"]
    for result in results:
        done = ", ".join(f"{count:,} {what}" for what, count in result.counts.items())
        done = f"skipped: {result.skipped}" if result.skipped else done
        done = f"broke off: {result.failed}" if result.failed else done
        row = f"{result.name:<12}{len(result.violations):>11}{result.seconds:>9.1f}  {done}"
        lines += paragraph(row, 34)
        if result.bounds:
            lines += paragraph(f"{'':<34}bounds: {result.bounds}", 34)
    for result in results:
        if result.table:
            lines += ["", *columns(result.table)]
    for violation in broken:
        lines += ["", f"VIOLATED {violation.property}"]
        lines += paragraph(f"  {violation.detail}", 2)
        lines.append(f"  python3 -m workbench prove replay '{violation.name}'")
    seconds = sum(result.seconds for result in results)
    lines += ["", _verdict(results, broken, seconds)]
    return lines


def _verdict(results: list[Result], broken: list[Violation], seconds: float) -> str:
    failed = ", ".join(result.name for result in results if result.failed)
    skipped = ", ".join(result.name for result in results if result.skipped)
    also = f" Broke off, which proves nothing: {failed}." if failed else ""
    also += f" Skipped: {skipped}." if skipped else ""
    if broken:
        names = ", ".join(dict.fromkeys(violation.property for violation in broken))
        return f"Violated after {seconds:.0f} s: {names}.{also}"
    if all(result.failed or result.skipped for result in results):
        return f"Nothing is proved.{also}"
    return f"Nothing was violated, in {seconds:.0f} s.{also}"


def paragraph(text: str, indent: int) -> list[str]:
    """Lines of a screen's width, those after the first indented."""
    return textwrap.wrap(
        text,
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )


def columns(rows: tuple[tuple[str, ...], ...]) -> list[str]:
    """A table whose last column may be long: it goes on below."""
    widths = [max(len(row[at]) for row in rows) + 2 for at in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        start = "".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=False))
        if len(start) + len(row[-1]) <= WIDTH:
            lines.append((start + row[-1]).rstrip())
        else:
            lines.append(start.rstrip())
            lines += paragraph(f"    {row[-1]}", 4)
    return lines


def as_json(arguments: argparse.Namespace, results: list[Result]) -> dict[str, Any]:
    """The same as data."""
    return {
        "passed": passed(results),
        "quick": arguments.quick,
        "jobs": arguments.jobs,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "seconds": round(sum(result.seconds for result in results), 1),
        "properties": properties(),
        "instruments": [
            {
                **result._asdict(),
                "seconds": round(result.seconds, 1),
                "violations": [violation._asdict() for violation in result.violations],
            }
            for result in results
        ],
    }


# --- One case again -------------------------------------------------------------------------------


def replay(arguments: argparse.Namespace, name: str) -> int:
    """Run a named case again; its databases and pictures are left in --keep."""
    kind = name.split("/")[0]
    if kind not in INSTRUMENTS:
        arguments.parser.error(f"no case {name!r}: a name begins with its instrument")
    why = trace.unavailable() if kind in ("syscalls", "powerloss") else None
    if why:
        print(f"skipped: {why}", file=sys.stderr)
        return 1
    if os.path.exists(arguments.keep) and os.listdir(arguments.keep):
        arguments.parser.error(f"--keep: {arguments.keep!r} is not empty; name another folder")
    os.makedirs(arguments.keep, exist_ok=True)
    settings = Settings(False, 1, os.path.abspath(arguments.lab), arguments.keep)
    instrument("ablations")  # the matrix names schedules of casts that only it has
    try:
        found: list[Violation] = instrument(kind).replay(name, settings)
    except LifeFailed as error:
        found = [Violation(name, RESTS, f"undisturbed it fails: {error}")]
    except (NoCase, WorkerFailed) as error:
        arguments.parser.error(f"no case {name!r}: {error}")
    for picture in pictures(arguments.keep):
        print(f"picture: {picture}")
    for violation in found:
        print(f"VIOLATED {violation.property}\n  {violation.detail}")
    if not found:
        print("Nothing was violated.")
    return 1 if found else 0


def pictures(folder: str) -> list[str]:
    """A timeline beside each local database below a folder, where it can be drawn."""
    from provider import LabError
    from workbench.timeline.command import draw

    drawn = []
    for where, _, files in os.walk(folder):
        for name in files:
            if not name.endswith(".sqlite") or ".publisher." in name or name == "reports.sqlite":
                continue
            path = os.path.join(where, name)
            try:
                page = draw(path, None, "html")
            except LabError as error:
                print(f"no picture of {path}: {error}")
                continue
            target = path.removesuffix(".sqlite") + ".html"
            with open(target, "w", encoding="utf-8") as file:
                file.write(page)
            drawn.append(target)
    return sorted(drawn)
