"""What an experiment has shown: exit codes, answers, both databases, the judge's verdict.

Guarantee: every reader raises `Missing` for what is not there, so that a lab that is broken in any
way makes a fact fail by name. Limit: the databases are read by plain SQLite, and as they are now.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Missing(LookupError):
    """There is no such answer, or it has another form."""


class Finished(NamedTuple):
    """A command that has ended. exit None: it had to be ended, because it did not end in time."""

    exit: int | None
    out: str
    err: str


class Evidence:
    """The results of one experiment's commands by name, and its folder.

    look: what the lab's own `inspect` shows of the job at this moment.
    """

    def __init__(self, folder: Path, db: str, look: Callable[[], Finished]) -> None:
        self.folder, self.db, self._look = folder, db, look
        self.finished: dict[str, Finished] = {}
        self.waited: dict[str, bool] = {}  # for each wait that has a sign: did it come
        self.outputs: dict[str, Path] = {}  # of commands that go on behind

    def of(self, name: str) -> Finished:
        if name not in self.finished:
            raise Missing(f"{name} was not run to its end")
        return self.finished[name]

    def exit(self, name: str) -> int | None:
        """The exit code of a command."""
        return self.of(name).exit

    def answer(self, name: str) -> Any:
        """The JSON that a command printed."""
        return _parsed(self.of(name), name)

    def err(self, name: str) -> str:
        """A command's words."""
        return self.of(name).err

    def said(self, name: str) -> str:
        """What a command has printed so far, also before its end."""
        if name in self.finished:
            return self.finished[name].out
        path = self.outputs.get(name)
        return path.read_text("utf-8", "replace") if path and path.exists() else ""

    def look(self) -> Any:
        """The job at this moment, from the lab's `inspect`."""
        return _parsed(self._look(), "inspect")

    def local(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the local database."""
        return self._rows(self.db, sql)

    def publisher(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the report service's database."""
        return self._rows(f"{self.db}.publisher.sqlite", sql)

    def files(self) -> dict[str, bytes]:
        """Every file that the experiment has left, by name."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}

    def one(self, sql: str) -> Any:
        """The first column of the only row; Missing without one."""
        rows = self.local(sql)
        if len(rows) != 1:
            raise Missing(f"{len(rows)} rows, not 1")
        return rows[0][0]

    def events(self) -> list[tuple[str, int, str]]:
        """Kind, generation and detail of every event, in order."""
        sql = "SELECT kind, generation, detail FROM events ORDER BY seq"
        return [(kind, generation, detail) for kind, generation, detail in self.local(sql)]

    def _rows(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        path = self.folder / name
        if not path.exists():
            raise Missing(f"there is no {name}")
        try:
            with reading(path) as connection:
                return list(connection.execute(sql))
        except sqlite3.Error as error:
            raise Missing(f"{name}: {error}") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write rows."""
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
    with contextlib.closing(connection):
        connection.execute("PRAGMA query_only=ON")
        yield connection


def _parsed(finished: Finished, name: str) -> Any:
    try:
        return json.loads(finished.out)
    except ValueError as error:
        raise Missing(f"{name} printed no JSON") from error
