"""Where a process can die: before each SQL statement, around each begin, commit, open and close of
a database, around each provider and publisher call, and after each command's answer.

Guarantee: a death is the process's own end (`_exit`, or SIGKILL by itself), at exactly the boundary
named, with no handler, no rollback and no close. Limit: the lab's command lines write no file of
their own; a death inside one statement is the business of the system-call instrument.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import signal
import sqlite3
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from workbench.prove.invariants import OPEN
from workbench.prove.lives import ACTOR, JOB, LEASE, LOCAL, OWNER, PUBLISHER, START, Files, Lab

DIED = 75
PATIENCE = 9  # commands that a person gives before the job counts as stuck
FRAME = 24  # bytes before each page of a log
AROUND = ("BEGIN", "COMMIT", "ROLLBACK")


class Life(NamedTuple):
    """One job's commands in order, and the ways in which a person recovers it."""

    name: str
    approval: bool
    commands: tuple[str, ...]
    ways: tuple[str, ...]


ASK = ("memory-put", "submit", "run")
BASE = Life("base", False, ASK, ("run", "early", "cancel"))
APPROVAL = Life("approval", True, (*ASK, "approve", "run"), (*BASE.ways, "reconcile"))
REVOKED = Life("revoked", False, ("memory-put", "submit", "memory-put", "run"), ("run",))
REJECTED = Life("rejected", True, (*ASK, "reject"), ("run",))
LIVES = (BASE, APPROVAL, REVOKED, REJECTED)
BY_NAME = {life.name: life for life in LIVES}


class Clock:
    """Unix seconds that every process of a case shares: a millisecond passes at each reading."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8)
        self.set(START)

    def set(self, now: float) -> None:
        struct.pack_into("d", self.memory, 0, now)

    @property
    def now(self) -> float:
        return float(struct.unpack_from("d", self.memory)[0])

    def __call__(self) -> float:
        self.set(round(self.now + 0.001, 3))
        return self.now

    def wait(self, seconds: float) -> None:
        """To a whole second, so that a moment lost in a death makes no other history."""
        self.set(float(int(self.now) + 1 + seconds))


class Door:
    """Counts boundaries; `at` is called at each, and may never return.

    worked: whether anything has run since the last boundary that can have changed a file.
    """

    def __init__(self, at: Callable[[int, str], None] = lambda number, label: None) -> None:
        self.count, self.reached, self.worked = 0, at, True

    def at(self, label: str) -> None:
        self.count += 1
        self.reached(self.count, label)


def dying(number: int, kill: bool = False) -> Door:
    """A door at which this process ends."""

    def at(count: int, label: str) -> None:
        if count == number:
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(DIED)

    return Door(at)


def connecting(door: Door) -> Callable[[str, float], sqlite3.Connection]:
    """A connection factory with a boundary at each statement."""

    class Watched(sqlite3.Connection):
        which = LOCAL
        read = False  # a first read may make the files of a log; those after it change nothing

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            word = sql.split(None, 1)[0].upper()
            door.at(f"before {word} {self.which}")
            cursor = super().execute(sql, parameters)
            door.worked |= word != "SELECT" or not self.read
            self.read |= word == "SELECT"
            if word in AROUND:
                door.at(f"after {word} {self.which}")
            return cursor

        def close(self) -> None:
            door.at(f"before close {self.which}")
            super().close()
            door.worked = True
            door.at(f"after close {self.which}")

    def connect(uri: str, timeout: float) -> sqlite3.Connection:
        which = PUBLISHER if ".publisher.sqlite" in uri else LOCAL
        door.at(f"before open {which}")
        connection = sqlite3.connect(
            uri, timeout=timeout, isolation_level=None, uri=True, factory=Watched
        )
        connection.which = which
        door.worked = True
        door.at(f"after open {which}")
        return connection

    return connect


@contextlib.contextmanager
def watching(lab: Lab, door: Door) -> Iterator[None]:
    """Boundaries around the provider's steps and the publisher call."""
    calls = [(lab.runtime.steps, name) for name in ("collect", "draft", "verify")]
    calls.append((lab.runtime, "save_receipt"))
    real = [getattr(module, name) for module, name in calls]

    def watched(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            door.at(f"before call {name}")
            answer = function(*arguments)
            door.at(f"after call {name}")
            return answer

        return call

    for (module, name), function in zip(calls, real, strict=True):
        setattr(module, name, watched(function, name))
    try:
        yield
    finally:
        for (module, name), function in zip(calls, real, strict=True):
            setattr(module, name, function)


class Hands:
    """Gives commands as a person does: each with a runtime of its own."""

    def __init__(self, lab: Lab, life: Life, path: str, clock: Clock, door: Door) -> None:
        self.lab, self.life, self.path, self.clock, self.door = lab, life, path, clock, door
        self.kind: Any = lab.runtime.Runtime
        if life.approval and lab.approval is not None:
            self.kind = lab.approval.ApprovalRuntime
        self.connect = connecting(door)

    def give(self, command: str) -> str | None:
        """One command; the job's status afterwards, None where there is no job yet."""
        with self.kind(self.path, clock=self.clock, connect=self.connect) as runtime:
            if command == "memory-put":
                runtime.memory_put()
                status = None
            else:
                self._give(runtime, command)
                status = str(runtime.job(JOB).status)
        self.door.at(f"after the answer of {command}")
        return status

    def _give(self, runtime: Any, command: str) -> None:
        if command == "submit":
            runtime.submit(JOB)
        elif command == "run":
            runtime.run(JOB, OWNER)
        elif command in ("approve", "reject"):
            approval = runtime.inspect(JOB)["approval"]
            if approval is not None:
                getattr(runtime, command)(JOB, approval["binding_hash"], ACTOR)
        elif command == "cancel":
            runtime.cancel(JOB)
        elif command == "reconcile":
            runtime.reconcile(JOB)
        else:
            raise ValueError(f"no command {command!r}")

    def live(self) -> None:
        """The whole life."""
        with watching(self.lab, self.door):
            for command in self.life.commands:
                self.give(command)

    def recover(self, way: str, given: list[str]) -> None:
        """What a person does after a death, until the job is at rest; `given` takes the commands.

        Whoever got no answer asks again: submit first, and an existing job is the answer. `early`
        runs before the lease is over, `cancel` and `reconcile` come first where they are named.
        """
        with watching(self.lab, self.door):
            self.clock.wait(0)
            given.append("submit")
            status = self.give("submit")
            if way != "run":
                given.append("run" if way == "early" else way)
                status = self._try(given[-1])
            while len(given) < PATIENCE:
                command = next_command(status, given[-1])
                if command is None:
                    break
                self.clock.wait(LEASE)
                given.append(command)
                status = self._try(command)

    def _try(self, command: str) -> str | None:
        """A command that may be refused as things stand; the status all the same."""
        try:
            return self.give(command)
        except self.lab.runtime.LabError as error:
            allowed = {"approve": ("Expired", "Conflict"), "cancel": ("Unresolved",)}
            allowed["reconcile"] = ("Refused", "Unresolved")
            if type(error).__name__ not in allowed.get(command, ()):
                raise
        with self.kind(self.path, clock=self.clock, connect=self.connect) as runtime:
            return str(runtime.job(JOB).status)


def next_command(status: str | None, last: str) -> str | None:
    """What a person does next with a job of this status; None when it is at rest."""
    if status in OPEN:
        return "run"
    if status == "waiting_approval":
        return "run" if last == "approve" else "approve"
    if status == "reconciling" and last != "reconcile":
        return "reconcile"
    return None


def image_key(files: Files) -> bytes:
    """A hash of what the files hold, without the random salts that SQLite puts into its journals.

    Of a `-shm` only that it is there: its first opener rebuilds it.
    """
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(files):
        content = files[name]
        total.update(f"{name}\0".encode())
        if name.endswith("-wal"):
            content = _log_pages(content)
        elif name.endswith("-journal"):
            content = _journal_pages(content)
        elif name.endswith("-shm"):
            content = b""
        total.update(content)
    return total.digest()


def _log_pages(content: bytes) -> bytes:
    """Page numbers, commit marks and pages of a write-ahead log's own frames."""
    if len(content) < 32:
        return content
    size = struct.unpack_from(">I", content, 8)[0]
    salts = content[16:24]
    parts = []
    for at in range(32, len(content) - FRAME - size + 1, FRAME + size):
        own = content[at + 8 : at + 16] == salts
        parts += [b"%d" % own, content[at : at + 8], content[at + FRAME : at + FRAME + size]]
    return b"".join(parts)


def _journal_pages(content: bytes) -> bytes:
    """Header and pages of a rollback journal, without the nonce and the checksums over it."""
    if len(content) < 28:
        return content
    sector, size = struct.unpack_from(">II", content, 20)
    parts = [content[:12], content[16:28]]
    for at in range(sector, len(content) - size - 7, size + 8):
        parts.append(content[at : at + 4 + size])
    return b"".join(parts)
