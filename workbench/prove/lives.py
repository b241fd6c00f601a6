"""The lives of a job that the system-call and power-loss instruments play, break off and recover.

Guarantee: a life is real commands on real files; with the stopped clock of `Clock` two plays write
the same rows. Recovery uses only what a person has: the same command again, run, approve, cancel,
reconcile. Limit: commands are the runtime's methods, called in a forked child, not a new Python.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

from workbench.prove import trace
from workbench.prove.invariants import OPEN, TABLES, Image

JOB, OWNER, ACTOR = "demo", "worker-1", "reviewer"
START = 1_800_000_000.0
LEASE = 30.0  # the lab's own; the second after it a new worker may claim
LOCAL, PUBLISHER = "local", "publisher"
APART = "reports.sqlite"  # the publisher, where it has a folder of its own
MODULES = ("provider", "runtime", "approval_runtime", "evaluate")
PATIENCE = 8  # commands a person gives before the job counts as stuck

Files = dict[str, bytes]
Tables = tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...]
Connect = Callable[[str, float], sqlite3.Connection]
Edit = Callable[[str, str], str]


class Lab(NamedTuple):
    """The modules of the lab under test."""

    runtime: ModuleType
    approval: ModuleType | None
    evaluate: ModuleType | None


class Life(NamedTuple):
    """The commands of one job, in order, each with a runtime of its own, and its command line."""

    name: str
    commands: tuple[str, ...]
    script: str


BASE = Life("base", ("memory-put", "submit", "run"), "cli.py")
APPROVAL = Life("approval", ("memory-put", "submit", "run", "approve", "run"), "approval_cli.py")
LIVES = {life.name: life for life in (BASE, APPROVAL)}


class Facts(NamedTuple):
    """What the two files say, opened by plain SQLite; None for a database not yet laid out."""

    local: Tables | None
    publisher: Tables | None
    trouble: tuple[str, ...]

    @property
    def image(self) -> Image:
        """The same rows as the invariants take them."""
        rows = {
            name: found for tables in (self.local, self.publisher) for name, found in tables or ()
        }
        known = {name: found for name, found in rows.items() if name in TABLES}
        return Image(**known, damage=self.trouble)

    @property
    def status(self) -> str | None:
        """The status of the only job, or None."""
        return self.image.status


class Clock:
    """Unix seconds that move by a millisecond at each reading, and ahead when told."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now = round(self.now + 0.001, 3)
        return self.now


def load(folder: str) -> Lab:
    """Import the lab of this folder, whichever was imported before. In a process of its own."""
    folder = os.path.realpath(folder)
    known = sys.modules.get("runtime")
    if known is None or os.path.dirname(os.path.realpath(known.__file__ or "")) != folder:
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.path.insert(0, folder)
    found: dict[str, ModuleType | None] = {}
    for name in MODULES:
        exists = os.path.exists(os.path.join(folder, f"{name}.py"))
        found[name] = importlib.import_module(name) if exists else None
    runtime = found["runtime"]
    if runtime is None:
        raise FileNotFoundError(f"no runtime.py in {folder}")
    return Lab(runtime, found["approval_runtime"], found["evaluate"])


def connecting(edit: Edit | None = None) -> Connect:
    """A connection factory that marks each acknowledged commit; `edit` may rewrite statements."""

    class Watched(sqlite3.Connection):
        which = LOCAL

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            cursor = super().execute(edit(self.which, sql) if edit else sql, parameters)
            if sql.lstrip().upper().startswith(("COMMIT", "END")):
                trace.mark(f"commit {self.which}")
            return cursor

        def commit(self) -> None:
            super().commit()
            trace.mark(f"commit {self.which}")

    def connect(uri: str, timeout: float) -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, timeout=timeout, isolation_level=None, uri=True, factory=Watched
        )
        if ".publisher.sqlite" in uri:
            connection.which = PUBLISHER
        return connection

    return connect


def synchronous(which: str, level: str) -> Edit:
    """An edit that opens one of the databases with another `synchronous` than the lab's."""

    def edit(opened: str, sql: str) -> str:
        if opened != which:
            return sql
        return re.sub(r"(?i)(PRAGMA\s+synchronous\s*=\s*)\w+", rf"\g<1>{level}", sql)

    return edit


class Stage:
    """A folder that holds one job's databases: laid out, played in, copied, put back."""

    def __init__(self, folder: str, apart: bool = False) -> None:
        self.folder = folder
        self.apart = apart
        self.path = os.path.join(folder, "job", "lab.sqlite")
        os.makedirs(os.path.join(folder, "job"), exist_ok=True)
        self.publisher = self.path + ".publisher.sqlite"
        if apart:  # the publisher's name is fixed: a link puts it elsewhere, as a person would
            os.makedirs(os.path.join(folder, "far"), exist_ok=True)
            if not os.path.islink(self.publisher):
                os.symlink(f"../far/{APART}", self.publisher)

    def names(self) -> list[str]:
        """Every regular file, by its path in the folder."""
        found = []
        for name in ("job", "far") if self.apart else ("job",):
            with os.scandir(os.path.join(self.folder, name)) as entries:
                found += [f"{name}/{e.name}" for e in entries if e.is_file(follow_symlinks=False)]
        return found

    def copy(self) -> Files:
        """The content of every file."""
        return {name: self._read(name) for name in self.names()}

    def look(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """The content of these files; None for one that is not there."""
        found: dict[str, bytes | None] = {}
        for name in names:
            try:
                found[name] = self._read(name)
            except (FileNotFoundError, IsADirectoryError):
                found[name] = None
        return found

    def _read(self, name: str) -> bytes:
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()

    def put(self, files: Files) -> None:
        """Make the folder hold exactly these files."""
        for name in set(self.names()) - files.keys():
            os.unlink(os.path.join(self.folder, name))
        for name, content in files.items():
            with open(os.path.join(self.folder, name), "wb") as file:
                file.write(content)

    def facts(self) -> Facts:
        """Open both databases by plain SQLite (which recovers them) and read everything."""
        trouble: list[str] = []
        found = []
        for which, path in ((LOCAL, self.path), (PUBLISHER, self.publisher)):
            try:
                found.append(_tables(path))
            except (sqlite3.Error, ValueError) as error:
                found.append(None)
                trouble.append(f"{which}: {error}")
        return Facts(found[0], found[1], tuple(trouble))


def _tables(path: str) -> Tables | None:
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        return None
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
        loose = connection.execute("PRAGMA foreign_key_check").fetchall()
        if verdict != "ok" or loose:
            raise ValueError(f"integrity_check: {verdict}; rows without a job: {loose}")
        names = [
            row[0]
            for row in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            )
        ]
        if not names:
            return None
        return tuple(
            (name, tuple(connection.execute(f'SELECT * FROM "{name}" ORDER BY 1, 2')))  # noqa: S608
            for name in names
        )


class Actor:
    """Gives the commands of a life, one runtime each, on one path and clock."""

    def __init__(
        self, lab: Lab, life: Life, path: str, clock: Clock, edit: Edit | None = None
    ) -> None:
        self.lab, self.life, self.path, self.clock = lab, life, path, clock
        self.connect = connecting(edit)

    def runtime(self) -> Any:
        if self.life.name == BASE.name:
            return self.lab.runtime.Runtime(self.path, clock=self.clock, connect=self.connect)
        if self.lab.approval is None:
            raise FileNotFoundError("no approval_runtime.py in the lab under test")
        return self.lab.approval.ApprovalRuntime(self.path, clock=self.clock, connect=self.connect)

    def give(self, command: str) -> str:
        """One command, as its command line gives it; the job's status afterwards, or "".

        Raises what the runtime raises.
        """
        with self.runtime() as runtime:
            if command == "memory-put":
                runtime.memory_put()
                return ""
            if command == "submit":
                runtime.submit(JOB)
            elif command == "run":
                runtime.run(JOB, OWNER)
            elif command == "approve":
                approval = runtime.inspect(JOB)["approval"]
                runtime.approve(JOB, approval["binding_hash"], ACTOR)
            elif command == "cancel":
                runtime.cancel(JOB)
            elif command == "reconcile":
                runtime.reconcile(JOB)
            else:
                raise ValueError(f"no command {command!r}")
            status: str = runtime.job(JOB).status
            return status

    def live(self, without_last: bool = False) -> int:
        """The whole life, or all but its last command; the exit code of a child that does it."""
        for command in self.life.commands[: -1 if without_last else None]:
            self.give(command)
        return 0

    def recover(self, way: str, status: str | None) -> list[str]:
        """What a person does after a death: the commands given, until the job rests.

        `run` carries it to its end, `cancel` tries to stop it first; status: the job's, None where
        there is no job yet, and then it is submitted again. Raises what a command raises.
        """
        given = ["" if status else "submit"]
        status = status or self.give("submit")
        if way == "cancel":
            given.append(way)
            status = self._try(way)
        while len(given) < PATIENCE:
            command = _next(status, given[-1])
            if command is None:
                break
            self.clock.now += LEASE + 1
            given.append(command)
            status = self._try(command)
        return given

    def _try(self, command: str) -> str:
        """A command that may be answered "not now", or for an approval "expired"."""
        try:
            return self.give(command)
        except self.lab.runtime.LabError as error:
            if self.life is BASE or (error.exit_code != 3 and command != "approve"):
                raise
        with self.runtime() as runtime:
            status: str = runtime.job(JOB).status
            return status


def _next(status: str, last: str) -> str | None:
    """The command that a job of this status asks of a person; None for one that rests."""
    if status in OPEN:
        return "run"
    if status == "waiting_approval":  # a refused approve (it expired): a run says so
        return "run" if last == "approve" else "approve"
    if status == "reconciling" and last != "reconcile":
        return "reconcile"
    return None
