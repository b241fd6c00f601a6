"""`python3 -m workbench timeline`: draw one job's life from its two databases; nothing is changed.

Exit codes as those of the lab: 0 drawn, 1 refused or not found, 2 usage, 3 a database is busy.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable

from cli import FAILED, Interrupted, OutputError, fold_in, say, signals
from provider import LabError
from runtime import UsageError, database_path

from .image import image
from .infer import life_of
from .model import read_record
from .page import page
from .text import text

FORMATS = ("html", "svg", "text")
ENDINGS = {".html": "html", ".htm": "html", ".svg": "svg", ".txt": "text"}
COLUMNS = 100  # of a text picture that goes to no terminal
EPILOG = """examples:
  python3 -m workbench timeline --db effect.sqlite                  (a picture in the terminal)
  python3 -m workbench timeline --db effect.sqlite -o effect.html   (one page, nothing loaded)
  python3 -m workbench timeline --db effect.sqlite -o effect.svg    (for a README)

Without -o the picture goes to standard output: as text to a terminal, else as HTML. Dates are UTC.
The page and the SVG follow the reader's light or dark scheme."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--db", default="lab.sqlite", metavar="PATH", help="the local database")
    parser.add_argument("--job", metavar="ID", help="which job (default: the database's only one)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write here, whole or not at all; - is stdout"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="default: by FILE's ending, html where that says nothing"
    )
    parser.add_argument(
        "--now",
        type=float,
        metavar="SECONDS",
        help="Unix time to take as now, for a job that is still open (default: the clock)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Draw and deliver; errors are one line."""
    try:
        with signals():
            output = None if arguments.output in (None, "-") else os.path.abspath(arguments.output)
            if output is not None:
                output = _target(output, database_path(arguments.db))
            form = arguments.format or _form(arguments.output)
            now = arguments.now
            clock = time.time if now is None else lambda: float(now)
            drawn = draw(arguments.db, arguments.job, form, clock, *_terminal(output))
            fold_in(database_path(arguments.db))
            if output is None:
                _print(drawn, form)
            else:
                _save(drawn, output)
            return 0
    except Interrupted as interrupted:
        say("error: interrupted; nothing was changed")
        return int(interrupted.args[0])
    except LabError as error:
        say(f"error: {error}")
        return error.exit_code
    except OSError as error:
        say(f"error: {error}")
        return FAILED


def draw(
    path: str,
    job: str | None,
    form: str,
    clock: Callable[[], float] = time.time,
    width: int = COLUMNS,
    encoding: str = "utf-8",
) -> str:
    """A job's picture as text of the given format: html, svg or text. Raises the lab's errors.

    clock: what an open job takes as now. width, encoding: of a text picture, in columns.
    """
    life = life_of(read_record(path, job, clock))
    if form == "text":
        return text(life, width, encoding)
    return image(life) if form == "svg" else page(life)


def _form(output: str | None) -> str:
    if output in (None, "-"):
        return "text" if sys.stdout is not None and sys.stdout.isatty() else "html"
    return ENDINGS.get(os.path.splitext(str(output))[1].lower(), "html")


def _terminal(output: str | None) -> tuple[int, str]:
    if output is not None or sys.stdout is None:
        return COLUMNS, "utf-8"
    columns = shutil.get_terminal_size((COLUMNS, 24)).columns
    return columns, getattr(sys.stdout, "encoding", None) or "ascii"


def _target(output: str, database: str) -> str:
    """Where the picture goes: a link's target, and never one of the databases."""
    real = os.path.realpath(output)
    kept = [database + end for end in ("", "-wal", "-shm", "-journal")]
    kept += [database + ".publisher.sqlite" + end for end in ("", "-journal")]
    if real in kept or any(_same(real, name) for name in kept):
        raise UsageError(f"-o {output!r} is one of the job's own databases; name another file")
    if os.path.isdir(real):
        raise UsageError(f"-o {output!r} is a folder; name a file")
    return real


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _save(drawn: str, real: str) -> None:
    try:
        _write(drawn, real)
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"-o {real!r} cannot be written: {reason}; name another file") from error


def _write(drawn: str, real: str) -> None:
    """The whole file or none: written beside its place, then renamed over it."""
    if os.path.exists(real) and not stat.S_ISREG(os.stat(real).st_mode):
        with open(real, "wb") as device:  # a pipe or a device cannot be replaced by a file
            device.write(drawn.encode("utf-8"))
        return
    beside = f"{real}.{os.getpid()}.part"
    try:
        with open(beside, "xb") as file:
            file.write(drawn.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, real)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _print(drawn: str, form: str) -> None:
    """To stdout; pages are UTF-8 whatever the console is, because they say so themselves."""
    if sys.stdout is None:
        raise OutputError("the picture has nowhere to go: standard output is closed; use -o FILE")
    try:
        buffer = getattr(sys.stdout, "buffer", None)
        if form == "text" or buffer is None:
            sys.stdout.write(drawn)
        else:
            sys.stdout.flush()
            buffer.write(drawn.encode("utf-8"))
        sys.stdout.flush()
    except OSError as error:
        # What could not be written must not be tried again when the interpreter ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            reason = error.strerror or error
            raise OutputError(f"the picture could not be written: {reason}; use -o") from error
