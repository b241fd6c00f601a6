"""Run the lab's real code one switching point at a time, from any state of the two databases.

A switching point is a statement outside a transaction: a BEGIN IMMEDIATE, or the first read of a
table elsewhere. From one to the next nothing can interleave: SQLite has one writer, and a read
transaction sees one state. A call is stopped at such a point by an exception out of the connection
and taken up again by a new call that is given the recorded answers up to there.

Guarantee: between two points the lab's own code runs on real SQLite files that the lab laid out.
Two calls at the same code position with equal local variables are one `Position`; a variable of a
kind that cannot be compared is an error, never left out. Limit: statements that read only the
schema or set a mode are no switching points, for nothing here changes the schema.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from workbench.prove.bench import scratch
from workbench.prove.invariants import Image, Rows
from workbench.prove.lives import ACTOR, JOB, LEASE, START, Lab

LOCAL, PUBLISHER = "local", "publisher"
TABLES = {LOCAL: ("jobs", "checkpoints", "events", "memory", "approvals"), PUBLISHER: ("receipts",)}
SCHEMA = re.compile(r"\s*(PRAGMA|SELECT\b.*\bsqlite_master)", re.IGNORECASE | re.DOTALL)
SLOW = 9.0  # a slow but steady worker's pace, in seconds before each write: four exceed a lease
SPOILED = "changed by hand after the review"
SWAPPED = "the hash of another report"
HANDS = ("spoil", "swap")  # calls that are not the lab's

Content = tuple[Rows, ...]
Segment = tuple[Any, ...]
Log = tuple[Segment, ...]


class Pause(BaseException):
    """The call has reached the next switching point. No Exception: the lab must not handle it."""


class Stuck(RuntimeError):
    """The instrument cannot go on; nothing was proved."""


class Position(NamedTuple):
    """Where a call stands: an id that equal positions share, and the database it turns to next."""

    id: int
    touches: str


class Outcome(NamedTuple):
    """What one segment did: the position it stopped at, or None when the call is over.

    answer: `done`, or the name of the error raised; empty while it goes on.
    """

    position: Position | None
    answer: str
    local: int
    publisher: int


class Answer:
    """The rows of one statement, as a cursor gives them."""

    def __init__(self, rows: Rows, names: tuple[str, ...]) -> None:
        self.left = list(reversed(rows))
        self.description = [(name,) for name in names]

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.left.pop() if self.left else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while self.left:
            yield self.left.pop()


NOTHING = ((), ())


class Directory(Mapping[str, Any]):
    """Who may act: the lab's own principals, less the approver's role from some time on."""

    def __init__(self, principals: Mapping[str, Any], clock: Callable[[], float], until: float):
        self.principals, self.clock, self.until = principals, clock, until

    def __getitem__(self, name: str) -> Any:
        found = self.principals[name]
        over = name == ACTOR and self.clock() >= self.until
        return found._replace(role=None) if over else found

    def __iter__(self) -> Iterator[str]:
        return iter(self.principals)

    def __len__(self) -> int:
        return len(self.principals)


class Desk:
    """One real file with one plain connection, filled with whichever content is asked for."""

    def __init__(self, path: str, which: str) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA synchronous=OFF")  # no power is cut here
        found = self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        present = {row[0] for row in found}
        self.tables = tuple(name for name in TABLES[which] if name in present)
        self.columns = {
            name: len(self.connection.execute(f"PRAGMA table_info({name})").fetchall())
            for name in self.tables
        }
        self.schema: dict[str, tuple[Rows, tuple[str, ...]]] = {}
        self.known: dict[Rows, Rows] = {}
        self.held = self.dump()

    def dump(self) -> Content:
        """Every row; equal tables are one object."""
        content = []
        for name in self.tables:
            order = "1" if name in ("events", "memory") else "1, 2"
            rows = self.connection.execute(f"SELECT * FROM {name} ORDER BY {order}")  # noqa: S608
            table = tuple(rows)
            content.append(self.known.setdefault(table, table))
        return tuple(content)

    def load(self, content: Content) -> None:
        """Make the file hold exactly this."""
        if content is self.held:
            return
        execute = self.connection.execute
        execute("BEGIN")
        for name, rows, held in zip(self.tables, content, self.held, strict=True):
            if rows is held:
                continue
            marks = ", ".join("?" * self.columns[name])
            keep = 0
            if name == "events":  # they only grow: keep what is common
                while keep < min(len(rows), len(held)) and rows[keep] == held[keep]:
                    keep += 1
                execute("DELETE FROM events WHERE seq > ?", (rows[keep - 1][0] if keep else 0,))
                execute("UPDATE sqlite_sequence SET seq = ?", (rows[-1][0] if rows else 0,))
            else:
                execute(f"DELETE FROM {name}")  # noqa: S608
            self.connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows[keep:])  # noqa: S608
        execute("COMMIT")
        self.held = content

    def answer_schema(self, sql: str) -> tuple[Rows, tuple[str, ...]]:
        """PRAGMA and sqlite_master: the same at any time, so asked once. No mode is set here."""
        if sql not in self.schema:
            setting = sql.lstrip().upper().startswith("PRAGMA") and "=" in sql
            self.schema[sql] = NOTHING if setting else _rows(self.connection.execute(sql))
        return self.schema[sql]


def _rows(cursor: sqlite3.Cursor) -> tuple[Rows, tuple[str, ...]]:
    names = tuple(column[0] for column in cursor.description or ())
    return tuple(cursor), names


def _words(sql: str) -> str:
    """A statement outside a transaction, for a person."""
    found = re.search(r"\b(FROM|INTO|UPDATE)\s+(\w+)", sql, re.IGNORECASE)
    verb = "reads" if sql.lstrip().upper().startswith("SELECT") else "writes"
    return f"{verb} {found[2] if found else '?'}"


class Connection:
    """What the lab's code holds in a step: answers from the log, then from the real file."""

    def __init__(self, play: Play, which: str) -> None:
        self.play, self.which = play, which
        self.begun = ""  # empty, deferred (nothing read yet) or open
        self.read_only = False

    @property
    def in_transaction(self) -> bool:
        return self.begun != "" and not self.play.over

    def execute(self, sql: str, parameters: Any = ()) -> Answer:
        if self.play.over:  # the code is only unwinding: nothing it says counts any more
            return Answer(*NOTHING)
        word = sql.split(None, 1)[0].upper()
        if word == "BEGIN":
            if "IMMEDIATE" in sql.upper():
                self.play.switch(self.which)
                self.play.now += self.play.pace or 0.0
                self.play.ask(self.which, "BEGIN IMMEDIATE", ())
                self.begun = "open"
            else:
                self.begun = "deferred"
            return Answer(*NOTHING)
        if word in ("COMMIT", "ROLLBACK"):
            if self.begun == "open":
                self.play.ask(self.which, word, ())
            self.begun = ""
            return Answer(*NOTHING)
        if SCHEMA.match(sql):
            self.read_only |= "QUERY_ONLY" in sql.upper()
            return Answer(*self.play.stage.desks[self.which].answer_schema(sql))
        if self.read_only and word != "SELECT":
            raise sqlite3.OperationalError("attempt to write a readonly database")
        if self.begun != "open":
            self.play.switch(self.which)
            if self.begun == "deferred":
                self.play.ask(self.which, "BEGIN", ())
                self.begun = "open"
        return Answer(*self.play.ask(self.which, sql, parameters))

    def close(self) -> None:
        """As SQLite does it: what was not committed is rolled back."""
        if self.begun == "open" and not self.play.over:
            self.play.ask(self.which, "ROLLBACK", ())
        self.begun = ""


class Play:
    """One call: replayed from its log, then carried on for one segment, or to its end."""

    def __init__(
        self, stage: Stage, log: Log, now: float, pace: float | None, refuse: bool
    ) -> None:
        self.stage, self.now, self.pace, self.refuse = stage, now, pace, refuse
        self.segments = iter(log)
        self.answers: Iterator[Any] | None = None  # None: live, or before the first segment
        self.recording: list[Any] = []
        self.live = self.over = self.wrote = False
        self.touches = self.did = ""
        self.position: Position | None = None
        self.follow()

    def follow(self) -> bool:
        """Go into the next recorded segment; false when there is none."""
        for segment in self.segments:
            self.answers = iter(segment)
            return True
        self.answers = None
        return False

    def connect(self, uri: str, timeout: float) -> Any:
        return Connection(self, PUBLISHER if ".publisher.sqlite" in uri else LOCAL)

    def clock(self) -> float:
        if self.answers is not None:
            return float(next(self.answers))
        if not self.over:
            self.recording.append(self.now)
        return self.now

    def switch(self, which: str) -> None:
        """A switching point: on with the log, then one segment of life, then a pause."""
        if self.pace is not None:
            return
        if not self.touches:  # the first point of a call belongs to its first segment
            self.touches = which
            self.live = self.answers is None
            return
        if not self.live and self.follow():
            self.touches = which
            return
        if not self.live:
            self.touches, self.live = which, True
            return
        self.over = True
        self.position = Position(self.stage.identify(sys._getframe(2)), which)
        raise Pause

    def ask(self, which: str, sql: str, parameters: Any) -> tuple[Rows, tuple[str, ...]]:
        """A statement's answer, from the log or from the file; an error is an answer too."""
        if self.answers is None and not self.did and sql != "BEGIN":
            self.did = f"writes {which}" if sql == "BEGIN IMMEDIATE" else _words(sql)
        if self.answers is not None:
            answer = next(self.answers)
            if isinstance(answer, sqlite3.Error):
                raise type(answer)(*answer.args)
            rows: tuple[Rows, tuple[str, ...]] = answer
            return rows
        try:
            if self.refuse and which == PUBLISHER and sql == "BEGIN IMMEDIATE":
                raise sqlite3.OperationalError("database is locked")
            connection = self.stage.desks[which].connection
            rows = _rows(connection.execute(sql, parameters))
        except sqlite3.Error as error:
            self.recording.append(error)
            raise
        self.recording.append(rows)
        return rows


class Stage:
    """The lab's two files, the contents that they took on, and the positions that calls reached.

    approval: the workflow with a person in it. Contents and positions are small integers.
    """

    def __init__(self, lab: Lab, *, approval: bool, options: Mapping[str, float]) -> None:
        self.lab, self.approval, self.options = lab, approval, dict(options)
        self.deadline = self.options.pop("deadline_seconds", None)
        self.memory_seconds = self.options.pop("memory_seconds", None)
        role_seconds = self.options.pop("role_seconds", None)
        self.role_until = None if role_seconds is None else START + role_seconds
        self.folder = scratch()
        self.path = os.path.join(self.folder, "lab.sqlite")
        self._lay_out()
        self.desks = {
            LOCAL: Desk(self.path, LOCAL),
            PUBLISHER: Desk(f"{self.path}.publisher.sqlite", PUBLISHER),
        }
        self.contents: dict[str, list[Content]] = {LOCAL: [], PUBLISHER: []}
        self.numbers: dict[str, dict[Content, int]] = {LOCAL: {}, PUBLISHER: {}}
        self.positions: dict[tuple[Any, ...], int] = {}
        self.plays = 0
        self.did = ""  # what the last segment began with, in words
        self.start = self.number(LOCAL), self.number(PUBLISHER)

    def _lay_out(self) -> None:
        with self._runtime(lambda: START, self.lab.runtime.connect_file) as runtime:
            kept = {} if self.memory_seconds is None else {"ttl": self.memory_seconds}
            runtime.memory_put(**kept)
            limits = {} if self.deadline is None else {"deadline_seconds": self.deadline}
            runtime.submit(JOB, **limits)

    def close(self) -> None:
        for desk in self.desks.values():
            desk.connection.close()
        shutil.rmtree(self.folder)

    def _runtime(self, clock: Callable[[], float], connect: Any) -> Any:
        kind, options = self.lab.runtime.Runtime, dict[str, Any](self.options)
        if self.approval:
            if self.lab.approval is None:
                raise Stuck("no approval_runtime.py in the lab under test")
            kind = self.lab.approval.ApprovalRuntime
            if self.role_until is not None:
                known = self.lab.approval.PRINCIPALS
                options["principals"] = Directory(known, clock, self.role_until)
        return kind(self.path, clock=clock, connect=connect, **options)

    def number(self, which: str) -> int:
        """The number of the content that the file holds now."""
        desk = self.desks[which]
        desk.held = desk.dump()
        numbers = self.numbers[which]
        if desk.held not in numbers:
            numbers[desk.held] = len(numbers)
            self.contents[which].append(desk.held)
        number = numbers[desk.held]
        desk.held = self.contents[which][number]
        return number

    def image(self, local: int, publisher: int) -> Image:
        """The rows of one state, for the invariants."""
        rows = dict(zip(self.desks[LOCAL].tables, self.contents[LOCAL][local], strict=True))
        (receipts,) = self.contents[PUBLISHER][publisher]
        approvals = rows.get("approvals", ())
        local_rows = rows["jobs"], rows["checkpoints"], rows["events"], rows["memory"]
        mandates = () if self.role_until is None else ((ACTOR, self.role_until),)
        return Image(*local_rows, approvals, receipts, mandates)

    def leave(self, folder: str) -> None:
        """Copy what the two files hold now to a folder, as single files."""
        os.makedirs(folder, exist_ok=True)
        for which, desk in self.desks.items():
            name = "lab.sqlite" + (".publisher.sqlite" if which == PUBLISHER else "")
            target = os.path.join(folder, name)
            if os.path.exists(target):
                os.unlink(target)
            desk.connection.execute("VACUUM INTO ?", (target,))

    def put(self, local: int, publisher: int) -> None:
        """Make the two real files hold one state."""
        self.desks[LOCAL].load(self.contents[LOCAL][local])
        self.desks[PUBLISHER].load(self.contents[PUBLISHER][publisher])

    def play(
        self,
        call: str,
        actor: str,
        log: Log,
        state: tuple[int, int],
        now: float,
        *,
        pace: float | None = None,
        refuse: bool = False,
    ) -> tuple[Outcome, Log]:
        """One more segment of a call in this state and at this time; or, with a pace, all of it.

        pace: seconds that pass before each write. refuse: the publisher is busy.
        """
        self.put(*state)
        self.plays += 1
        changes = {which: desk.connection.total_changes for which, desk in self.desks.items()}
        play = Play(self, log, now, pace, refuse)
        answer = self._answer(play, call, actor)
        self.did = play.did
        numbers = list(state)
        for index, (which, desk) in enumerate(self.desks.items()):
            if desk.connection.in_transaction:
                raise Stuck(f"{call} left a transaction open")
            if desk.connection.total_changes != changes[which]:
                numbers[index] = self.number(which)
        longer = (*log, tuple(play.recording))
        return Outcome(play.position, answer, *numbers), longer

    def _answer(self, play: Play, call: str, actor: str) -> str:
        try:
            self.perform(play, call, actor)
        except Pause:
            return ""
        except self.lab.runtime.InjectedCrash:
            return "died"
        except self.lab.runtime.LabError as error:
            return type(error).__name__
        except Stuck:
            raise
        except Exception as error:
            return f"!{type(error).__name__}: {error}"
        finally:
            play.over = True
        return "done"

    def perform(self, play: Play, call: str, actor: str) -> None:
        """The bottom of every call: what one process does, with a runtime of its own.

        `run!NAME` is a run that dies at that fault.
        """
        if call == "spoil":
            _spoil(play.connect(self.path, 0.0))
            return
        if call == "swap":
            _swap(play.connect(f"{self.path}.publisher.sqlite", 0.0))
            return
        with self._runtime(play.clock, play.connect) as runtime:
            if call.startswith("run"):
                runtime.fault = call.partition("!")[2] or None
                runtime.run(JOB, actor)
            elif call == "cancel":
                runtime.cancel(JOB)
            elif call in ("approve", "reject"):
                approval = runtime.inspect(JOB)["approval"]
                if approval is not None:
                    getattr(runtime, call)(JOB, approval["binding_hash"], ACTOR)
            elif call == "reconcile":
                runtime.reconcile(JOB)
            elif call == "forget":
                runtime.memory_forget()
            else:
                raise Stuck(f"no call {call!r}")

    def identify(self, frame: types.FrameType | None) -> int:
        """The number of a position: code, instruction and local variables of every frame."""
        bottom, parts = Stage.perform.__code__, []
        while frame is not None and frame.f_code is not bottom:
            code = frame.f_code
            place = (code.co_filename, code.co_firstlineno, code.co_name, frame.f_lasti)
            parts.append((place, _plain(dict(frame.f_locals))))
            frame = frame.f_back
        return self.positions.setdefault(tuple(parts), len(self.positions))


def _spoil(connection: Any) -> None:
    """A hand on the database: another draft under a request that no worker carries out just now."""
    connection.execute("BEGIN IMMEDIATE")
    row = connection.execute("SELECT status FROM jobs").fetchone()
    if row[0] in ("waiting_approval", "queued"):
        connection.execute(
            "UPDATE checkpoints SET payload = json_set(payload, '$.summary', ?)"
            " WHERE step = 'draft'",
            (SPOILED,),
        )
    connection.execute("COMMIT")


def _swap(connection: Any) -> None:
    """A hand at the report service: the receipt that stands is of another report."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE receipts SET payload_hash = ?", (SWAPPED,))
    connection.execute("COMMIT")


def _plain(value: Any) -> Any:
    """A value as something hashable that two equal values share; Stuck for an unknown kind."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value.__class__.__name__, value
    if isinstance(value, (tuple, list)):
        return value.__class__.__name__, tuple(_plain(each) for each in value)
    if isinstance(value, (dict, types.MappingProxyType)):
        return "dict", tuple((str(key), _plain(each)) for key, each in value.items())
    if isinstance(value, BaseException):
        return value.__class__.__name__, _plain(value.args), _plain(vars(value))
    if isinstance(value, Answer):
        return "answer", _plain(value.left)
    if isinstance(value, Connection):
        return "connection", value.which, value.begun, value.read_only
    if isinstance(value, (Play, Directory)):
        return (value.__class__.__name__,)
    if callable(value) or isinstance(value, types.ModuleType):
        return getattr(value, "__qualname__", value.__class__.__name__)
    if isinstance(value, (contextlib.AbstractContextManager, types.GeneratorType)):
        if hasattr(value, "guard"):  # a runtime
            return "runtime", _plain(vars(value))
        return value.__class__.__name__  # its state is its generator's frame, which is on the stack
    raise Stuck(f"cannot compare a local variable of type {type(value).__name__}")


def later(now: float) -> float:
    """When every lease granted until now has run out."""
    return now + LEASE + 1
