"""Durable execution of one fixed workflow, `report/v1`: collect -> draft -> verify -> publish.

Guarantee: a process may die at any instruction. Finished steps stay finished, a stale worker writes
nothing, and the report service saves one report for a job however often publish is called.
Limit: it holds because the report service answers a repeated operation key from its stored receipt.
Nothing here can make an effect exactly-once against a service that does not deduplicate.

Three mechanisms, each for another window: checkpoints name the next step (`commit_step`), the lease
generation fences stale workers (`claim`, `guard`), the operation key finds the receipt (`publish`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, TypeVar

import provider as steps
from provider import LabError, PermanentError, RetryableError

__all__ = [
    "SCHEMA",
    "InjectedCrash",
    "LostLease",
    "PermanentError",
    "RetryableError",
    "Runtime",
    "digest",
    "encode",
]

VERSION = "1.0.1"
WORKFLOW = "report/v1"
COMMANDS = {WORKFLOW: "cli.py", "report-approval/v1": "approval_cli.py"}
STEPS = ("collect", "draft", "verify", "publish")
FAULTS = ("after_claim", *(f"after_{step}" for step in STEPS[:3]))
FAULTS += ("before_effect", "after_effect", "after_publish")

LEASE_SECONDS = 30.0  # longer than a whole provider call (25 s), so a healthy step ends within it
CALL_SECONDS = 25.0  # longer than the longest silence on a socket (20 s) that is worth waiting for
RECORD_SECONDS = 0.5  # of a lease, kept back from a call for the commit after it
MAX_CLAIMS = 3  # counts the first execution: two recoveries, then a person looks
RETRY_SECONDS = {1: 2.0, 2: 4.0}  # lab settings, small enough to watch; by attempts used
DEADLINE_SECONDS = 600.0  # three whole leases, both retries and a person's 120 s fit in
MEMORY_TTL = 3600.0  # well past the deadline of a job submitted soon after
LOCK_SECONDS = 5.0  # every transaction is short: a lock held longer than this is somebody's mistake
VAIN_SECONDS = 1.0  # after a wait for a lock in vain, how long the next look does not wait
MIN_SECONDS = 0.001  # far above what a REAL of this century can tell apart
MAX_SECONDS = 366 * 86400.0  # no duration may reach a date that a clock cannot show
DEFAULT_SCOPE = ("local", "operator", "research")
DEFAULT_MEMORY = "Prefer short sentences, and name the source of every claim."
BUDGET_SPENT = "deadline_or_attempt_budget"


class Status:
    """Job statuses of the base workflow."""

    QUEUED = "queued"
    RUNNING = "running"
    RETRY_WAIT = "retry_wait"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event:
    """Event kinds of the base workflow; the detail of each is in the README's table."""

    SUBMITTED = "submitted"
    CLAIMED = "claimed"
    LEASE_RENEWED = "lease_renewed"
    STEP_COMMITTED = "step_committed"
    RETRY_SCHEDULED = "retry_scheduled"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EFFECT_FOUND = "effect_found"
    EFFECT_UNKNOWN = "effect_unknown"


TABLES = {
    "jobs": """CREATE TABLE jobs (
    id TEXT NOT NULL PRIMARY KEY,
    spec TEXT NOT NULL,
    input_hash TEXT NOT NULL,
    status TEXT NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0,
    owner TEXT,
    lease_until REAL NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    available_at REAL NOT NULL DEFAULT 0,
    scope TEXT NOT NULL,
    memory_rev INTEGER NOT NULL,
    memory_expires REAL NOT NULL,
    deadline REAL NOT NULL,
    error TEXT
)""",
    "checkpoints": """CREATE TABLE checkpoints (
    job_id TEXT NOT NULL REFERENCES jobs(id),
    step TEXT NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (job_id, step)
)""",
    "events": """CREATE TABLE events (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL REFERENCES jobs(id),
    at REAL NOT NULL,
    generation INTEGER NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL
)""",
    "memory": """CREATE TABLE memory (
    scope TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL,
    revision INTEGER NOT NULL,
    expires REAL NOT NULL
)""",
}
INDEXES = ("CREATE INDEX events_of_job ON events (job_id, seq)",)
SCHEMA = ";\n".join((*TABLES.values(), *INDEXES)) + ";\n"
RECEIPTS = {
    "receipts": """CREATE TABLE receipts (
    op TEXT NOT NULL PRIMARY KEY,
    payload_hash TEXT NOT NULL,
    receipt TEXT NOT NULL
)"""
}


class UsageError(LabError, ValueError):
    """Input of the wrong form; nothing was looked at or changed."""

    exit_code = 2


class Refused(LabError):
    """Not allowed as things stand; nothing changed."""


class NotFound(Refused):
    """No such database or job."""


class Conflict(Refused, PermanentError):
    """The same name already stands for something else; to repeat it changes nothing."""


class NotCanonical(PermanentError, ValueError):
    """A value that has no canonical JSON form (NaN, a lone surrogate, a set)."""


class StorageError(LabError):
    """A database file cannot be used; the job, if one is running, is left to its lease."""

    definite = False


class StorageFull(StorageError):
    """The disk is full: the statement was undone."""


class Busy(LabError):
    """Another process holds the database's lock."""

    exit_code = 3
    definite = False


class PublisherUnavailable(LabError):
    """The report service's database is missing, damaged or foreign: a person must restore it."""

    exit_code = 3
    definite = False


class LostLease(LabError):
    """The lease is over: this worker wrote nothing. What it had sent may have arrived."""

    exit_code = 3
    definite = False

    def __init__(self, message: str, lease: Lease) -> None:
        super().__init__(message)
        self.lease = lease


class InjectedCrash(BaseException):
    """A named fault fired. Not an Exception, so that no handler can mistake it for an outcome."""


class Lease(NamedTuple):
    """The right to write for a job, until another claim raises the generation or time runs out."""

    job: str
    owner: str
    generation: int


class Job(NamedTuple):
    """One row of `jobs`, columns in order; times in Unix seconds."""

    id: str
    spec: str
    input_hash: str
    status: str
    generation: int
    owner: str | None
    lease_until: float
    attempts: int
    available_at: float
    scope: str
    memory_rev: int
    memory_expires: float
    deadline: float
    error: str | None

    def __getitem__(self, column: Any) -> Any:
        """Also by a column's name, as from sqlite3.Row."""
        if isinstance(column, str):
            return self._asdict()[column]
        return tuple.__getitem__(self, column)


class Memory(NamedTuple):
    """One row of `memory`; an empty value is a forgotten one."""

    scope: str
    value: str
    revision: int
    expires: float


class Submission(NamedTuple):
    """The stored job, and whether this call stored it."""

    job: Job
    created: bool


class Run(NamedTuple):
    """What one `run` did: the job afterwards, the steps it executed and those it found done."""

    job: Job
    steps_run: tuple[str, ...]
    steps_reused: tuple[str, ...]


class Start(NamedTuple):
    """What a step starts from: the job's spec and the text of its pinned memory."""

    spec: dict[str, Any]
    memory: str


class Effect(NamedTuple):
    """What a look at the report service showed. `receipt` None never means "not published"."""

    receipt: str | None
    reason: str
    trouble: LabError | None = None


NOT_LOOKED_UP = Effect(None, "the report service was not asked")


def encode(value: object) -> str:
    """Canonical JSON text: sorted keys, no blanks, no NaN, non-ASCII as itself. SPEC section 3."""
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise NotCanonical(f"value has no canonical JSON form: {error}") from error
    return text


def digest(value: object) -> str:
    """Hex SHA-256 of the UTF-8 of `encode(value)`."""
    return hashlib.sha256(encode(value).encode("utf-8")).hexdigest()


def input_hash(spec: Mapping[str, Any]) -> str:
    """The digest of all of a spec but where its report is meant to go. SPEC section 4."""
    return digest({name: value for name, value in spec.items() if name != "report_target"})


def operation_key(job: str) -> str:
    """The idempotency key of a job's publish: no generation, owner, attempt or time in it."""
    return digest([job, "publish/v1"])


# --- Database files -------------------------------------------------------------------------------


class Layout(NamedTuple):
    """One kind of database file: how it is recognised, and how its commits survive power loss."""

    noun: str
    application_id: int
    tables: Mapping[str, str]
    indexes: Sequence[str]
    journal: str
    synchronous: str
    optional: Mapping[str, str] = {}  # tables that a later command adds


USER_VERSION = 1
HEADER_BYTES = 100  # of every SQLite file
# WAL with FULL syncs the log at every commit. Without auto-checkpoints the log is folded in only by
# the last connection to close, alone with the file: before SQLite 3.51.3 a checkpoint that meets a
# writer can corrupt the database.
LOCAL = Layout("local database", 0x5265634C, TABLES, INDEXES, "wal", "FULL")
# FULL would not sync the directory after the journal is unlinked: after a power loss the journal
# could come back and roll an acknowledged receipt away. EXTRA syncs it.
PUBLISHER = Layout("publisher database", 0x52656350, RECEIPTS, (), "delete", "EXTRA")

R = TypeVar("R", bound="Runtime")
Connect = Callable[[str, float], sqlite3.Connection]


def connect_file(uri: str, timeout: float) -> sqlite3.Connection:
    """The connection factory: autocommit, so that each BEGIN is written where it happens."""
    return sqlite3.connect(uri, timeout=timeout, isolation_level=None, uri=True)


def database_path(path: str | os.PathLike[str]) -> str:
    """The resolved path, so that a link and its target share one publisher.

    Refused for what can be no regular file: an empty path, `:memory:`, a folder, a device.
    """
    path = os.fspath(path)
    if not path or path == ":memory:" or "\0" in path:
        raise Refused(f"not a database file: {path!r}; name a regular file with --db")
    try:
        real = os.path.realpath(path)
    except OSError as error:
        raise Refused(
            f"cannot resolve {path!r}: {error.strerror}; is the current folder still there?"
        ) from error
    if os.path.exists(real) and not os.path.isfile(real):
        raise Refused(f"not a regular file: {path!r}; name a database file with --db")
    return real


def storage_error(layout: Layout, path: str, error: sqlite3.Error) -> LabError:
    """The lab's error for SQLite's; by message, because Python 3.10 gives no error code."""
    what, reason = f"{layout.noun} {path!r}", str(error)
    # "locking protocol": another process was stopped while it opened the log.
    if "locked" in reason or "locking protocol" in reason:
        return Busy(f"{what} is busy: another process holds its lock; try again")
    if "is full" in reason:
        return StorageFull(f"{what}: {reason}; free some space, then run again")
    if "not a database" in reason or "malformed" in reason:
        return StorageError(f"{what} is damaged: {reason}; restore it from a copy")
    return StorageError(f"{what} cannot be used: {reason}; check its disk and permissions")


def _uri(path: str, query: str) -> str:
    """A file URI by hand: urllib.parse would be one more import in the start of every command."""
    plain = b"/-_.~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    name = "".join(chr(b) if b in plain else f"%{b:02X}" for b in os.fsencode(path))
    return f"file:{name}?{query}"


@contextlib.contextmanager
def naming(layout: Layout, path: str) -> Iterator[None]:
    """Turns SQLite's errors into the lab's, which name the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(layout, path, error) from error


def is_laid_out(connection: sqlite3.Connection, path: str, layout: Layout) -> bool:
    """False for an empty file; StorageError for any that is not of this kind and version."""
    stamp = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    schema = connection.execute("SELECT name, sql, type FROM sqlite_master").fetchall()
    found = {name: sql for name, sql, _ in schema}
    if not found and stamp == 0 and version == 0:
        return False
    if (stamp, version) != (layout.application_id, USER_VERSION):
        refuse(path, layout, stamp, version)
    wrong = [name for name, sql in layout.tables.items() if found.get(name) != sql]
    wrong += [name for name, sql in layout.optional.items() if found.get(name, sql) != sql]
    wrong += [name for name, _, kind in schema if kind in ("trigger", "view")]
    if wrong:
        raise StorageError(f"{layout.noun} {path!r} has another {wrong[0]!r} than this version")
    return True


def is_there(path: str, layout: Layout) -> bool:
    """Whether the file exists; StorageError where that cannot be known."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StorageError(f"{layout.noun} {path!r} cannot be read: {error.strerror}") from error
    return True


def is_writable(path: str) -> bool:
    """Whether file and folder can be written: a log needs both, and may not be left half usable."""
    return os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)


def refuse_foreign(path: str, layout: Layout, connect: Connect, timeout: float) -> None:
    """StorageError for a file that is not ours, before SQLite may recover its log into it.

    A read-only connection does not fold a log in. It cannot look past a hot journal either; only
    then are the header's own bytes read.
    """
    if not any(os.path.exists(path + end) for end in ("-wal", "-journal")):
        return
    try:
        with (
            contextlib.closing(connect(_uri(path, "mode=ro"), timeout)) as connection,
            transaction(connection, "BEGIN"),
        ):
            is_laid_out(connection, path, layout)
    except sqlite3.OperationalError as error:
        if "readonly" not in str(error):
            raise
        refuse_foreign_header(path, layout)


def refuse_foreign_header(path: str, layout: Layout) -> None:
    """As refuse_foreign, from the bytes of page 1 (SQLite file format, sections 1.3 and 1.6).

    Only beside a hot journal, when no connection holds a lock: closing any descriptor of a file
    drops all of this process's POSIX locks on it.
    """
    with open(path, "rb") as file:
        head = file.read(105)
    if not any(head):
        return  # a page that a power loss kept from arriving: the journal takes the file back
    version, stamp = (int.from_bytes(head[at : at + 4], "big") for at in (60, 68))
    empty = head[100:101] == b"\x0d" and head[103:105] == b"\0\0"
    if (stamp, version) != (layout.application_id, USER_VERSION) and not (
        (stamp, version) == (0, 0) and empty
    ):
        refuse(path, layout, stamp, version)


def refuse(path: str, layout: Layout, stamp: int, version: int) -> NoReturn:
    """StorageError that says what the file is instead."""
    if stamp != layout.application_id:
        raise StorageError(f"{path!r} is not a {layout.noun} of this lab; it was left as it is")
    age = "a newer" if version > USER_VERSION else "an older"
    raise StorageError(f"{layout.noun} {path!r} was written by {age} version of this lab")


def require(connection: sqlite3.Connection, path: str, layout: Layout) -> None:
    """StorageError unless the file is of this kind and version."""
    if not is_laid_out(connection, path, layout):
        raise StorageError(f"{path!r} is empty: not a {layout.noun} of this lab")


def _set_journal(connection: sqlite3.Connection, journal: str) -> None:
    """Switch the journal mode; "locked" comes at once here, so wait for it as for any lock."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == journal:
        return
    patience = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={journal}").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > patience:
                raise
            time.sleep(0.01)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """All or nothing; what is raised is the failed statement's reason, never the rollback's."""
    try:
        connection.execute(begin)
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk has ended the transaction already: a bare ROLLBACK would hide that cause.
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def _lay_out(connection: sqlite3.Connection, layout: Layout) -> None:
    """Fill an empty file; many processes may try at once, one does it."""
    _set_journal(connection, layout.journal)
    with transaction(connection):
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            return
        for statement in (*layout.tables.values(), *layout.indexes):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={layout.application_id}")
        connection.execute(f"PRAGMA user_version={USER_VERSION}")


def open_database(
    path: str, layout: Layout, connect: Connect = connect_file, *, create: bool = False
) -> sqlite3.Connection:
    """A connection for writing; only `create` makes or fills a file."""
    with naming(layout, path):
        connection = open_file(path, layout, connect, LOCK_SECONDS, create=create)
        try:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute("PRAGMA foreign_keys=ON")
            with transaction(connection, "BEGIN"):
                filled = is_laid_out(connection, path, layout)
            if create and not filled:
                _lay_out(connection, layout)
            require(connection, path, layout)
            _set_journal(connection, layout.journal)
        except BaseException:
            connection.close()
            raise
        return connection


def open_file(
    path: str, layout: Layout, connect: Connect, timeout: float, *, create: bool = False
) -> sqlite3.Connection:
    """A durable connection to a file not looked into yet; timeout: seconds to wait for a lock."""
    if is_there(path, layout):
        if not is_writable(path):
            raise StorageError(
                f"{layout.noun} {path!r} cannot be written: file or folder is read-only"
            )
        if 0 < os.path.getsize(path) < HEADER_BYTES:  # SQLite takes a single byte for an empty file
            raise StorageError(f"{layout.noun} {path!r} is damaged: file is not a database")
        begin = time.monotonic()
        refuse_foreign(path, layout, connect, timeout)
        timeout = max(0.0, timeout - (time.monotonic() - begin))
    elif not create:
        raise NotFound(f"no such {layout.noun}: {path!r}")
    connection = connect(_uri(path, "mode=rwc" if create else "mode=rw"), timeout)
    try:
        connection.execute(f"PRAGMA synchronous={layout.synchronous}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def looking(
    path: str, layout: Layout, connect: Connect = connect_file, timeout: float = LOCK_SECONDS
) -> Iterator[sqlite3.Connection]:
    """One read transaction that changes nothing logically, also after a writer was killed.

    timeout: seconds to wait for a lock.
    """
    ends = time.monotonic() + timeout
    if not is_there(path, layout):
        raise NotFound(f"no such {layout.noun}: {path!r}")
    writable = is_writable(path)
    if not writable and any(os.path.exists(path + end) for end in ("-wal", "-journal")):
        raise StorageError(
            f"{layout.noun} {path!r} needs recovery and cannot be written: "
            "copy it with its -wal or -journal to a folder that can"
        )
    query = "mode=rw" if writable else "mode=ro&immutable=1"
    with naming(layout, path):
        refuse_foreign(path, layout, connect, timeout)
        left = max(0.0, ends - time.monotonic())
    with (
        naming(layout, path),
        contextlib.closing(connect(_uri(path, query), left)) as connection,
    ):
        connection.execute("PRAGMA query_only=ON")
        with transaction(connection, "BEGIN"):
            require(connection, path, layout)
            yield connection


# --- Views: plain functions that only read ------------------------------------------------------


def read_job(connection: sqlite3.Connection, job: str) -> Job:
    """The job's row; NotFound without one."""
    row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
    if row is None:
        raise NotFound(f"no job {job!r} in this database; `list` shows those there are")
    return Job(*row)


def read_memory(connection: sqlite3.Connection, scope: str) -> Memory | None:
    """The one value of a scope (canonical text), or None."""
    row = connection.execute("SELECT * FROM memory WHERE scope = ?", (scope,)).fetchone()
    return None if row is None else Memory(*row)


def read_checkpoints(connection: sqlite3.Connection, job: str) -> dict[str, Any]:
    """Step -> payload, in workflow order."""
    found = dict(
        connection.execute("SELECT step, payload FROM checkpoints WHERE job_id = ?", (job,))
    )
    return {step: json.loads(found[step]) for step in STEPS if step in found}


def committed_steps(connection: sqlite3.Connection, job: str) -> tuple[str, ...]:
    """The steps that have a checkpoint, in workflow order."""
    rows = connection.execute("SELECT step FROM checkpoints WHERE job_id = ?", (job,))
    found = {row[0] for row in rows}
    return tuple(step for step in STEPS if step in found)


@functools.lru_cache(maxsize=8)
def workflow_in(spec: str) -> str:
    """The workflow named in a job's spec; empty when the spec cannot be read.

    Kept, because every transaction asks and a spec with its sources in it is long.
    """
    try:
        return str(json.loads(spec)["workflow"])
    except (ValueError, KeyError, TypeError):
        return ""


def read_receipts(
    path: str, job: str, connect: Connect = connect_file, timeout: float = LOCK_SECONDS
) -> list[dict[str, str]]:
    """The receipts under the job's operation key: none or one; timeout: seconds for a lock.

    Busy, or PublisherUnavailable when the publisher is missing, damaged or foreign.
    """
    names = ("op", "payload_hash", "receipt")
    try:
        with looking(path, PUBLISHER, connect, timeout) as publisher:
            rows = publisher.execute("SELECT * FROM receipts WHERE op = ?", (operation_key(job),))
            return [dict(zip(names, row, strict=True)) for row in rows]
    except (NotFound, StorageError) as error:
        raise PublisherUnavailable(f"{error}; restore it") from error


def verified(draft: Any, collected: Any, report: object) -> dict[str, Any]:
    """The verify checkpoint: what was checked of a draft, and the hash of the report it makes."""
    hashes = {"draft_hash": digest(draft), "payload_hash": digest(report)}
    return {**steps.verify(draft, collected), **hashes}


def effect_of(view: Mapping[str, Any]) -> str:
    """`confirmed`, `none` or `unknown` for an inspect view; SPEC section 9.

    `none` needs proof that no publish call can have been made: base jobs before `verify` is
    committed, jobs with an approval before dispatch.
    """
    checkpoints = view["checkpoints"]
    if "draft" in checkpoints and view["receipts"]:
        report_hash = digest(steps.report(checkpoints["draft"]))
        if any(row["payload_hash"] == report_hash for row in view["receipts"]):
            return "confirmed"
    if view["job"]["spec"]["workflow"] == WORKFLOW:
        return "unknown" if "verify" in checkpoints else "none"
    dispatched = any(event["kind"] == "dispatch_started" for event in view["events"])
    return "unknown" if dispatched else "none"


# --- The runtime ----------------------------------------------------------------------------------


def raise_crash(fault: str) -> NoReturn:
    """What a fault does in-process; the command lines end the process instead."""
    raise InjectedCrash(fault)


class Runtime:
    """Owns claims, guarded commits and events of one local database and its publisher.

    clock: Unix seconds. lease_seconds, call_seconds: seconds, above 0. fault: one of FAULTS, with
    `crash` as what it does. keepalive: wraps the steps of a claim and the record of their failure
    (a heartbeat); without one a call gets at most what is left of the lease.
    Raises LabError and its kinds.
    """

    WORKFLOW = WORKFLOW
    EXTRA_TABLES: Mapping[str, str] = {}  # added when `submit` first uses a file
    TERMINAL: tuple[str, ...] = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
    # Which status may follow which. A job leaves a terminal status for nothing.
    TRANSITIONS: Mapping[str, tuple[str, ...]] = {
        Status.QUEUED: (Status.RUNNING, Status.FAILED, Status.CANCELLED),
        Status.RUNNING: (
            Status.RUNNING,
            Status.RETRY_WAIT,
            Status.SUCCEEDED,
            Status.FAILED,
            Status.CANCELLED,
        ),
        Status.RETRY_WAIT: (Status.RUNNING, Status.FAILED, Status.CANCELLED),
    }

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.time,
        lease_seconds: float = LEASE_SECONDS,
        fault: str | None = None,
        crash: Callable[[str], NoReturn] = raise_crash,
        call_seconds: float = CALL_SECONDS,
        keepalive: Callable[[Runtime, Lease], AbstractContextManager[object]] | None = None,
        connect: Connect = connect_file,
    ) -> None:
        for name, value in (("lease_seconds", lease_seconds), ("call_seconds", call_seconds)):
            check_seconds(name, value)
        if fault is not None and fault not in FAULTS:
            raise UsageError(f"unknown fault {fault!r}: one of {', '.join(FAULTS)}")
        self.path = database_path(path)
        self.publisher_path = self.path + ".publisher.sqlite"
        self.clock, self.lease_seconds, self.call_seconds = clock, lease_seconds, call_seconds
        self.fault, self.crash, self.keepalive, self.connect = fault, crash, keepalive, connect
        self.layout = LOCAL._replace(optional=self.EXTRA_TABLES)
        self._connection: sqlite3.Connection | None = None
        self._now: float | None = None
        self._lease: Lease | None = None  # set while a step executes
        self._in_vain = -math.inf  # when the last wait for the publisher ended so
        self._lease_until: float | None = None  # of the lease that a step of `run` started under

    def __enter__(self: R) -> R:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connection; the last one to close folds the log into the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Submitting and remembering: the only two that create files.

    def submit(
        self,
        job: str,
        *,
        sources: list[dict[str, Any]] = steps.DEFAULT_SOURCES,
        provider: str = "fixture",
        model: str | None = None,
        endpoint: str | None = None,
        scope: Sequence[str] = DEFAULT_SCOPE,
        report_target: str | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Submission:
        """Store one job, or answer with the one that this id and input already made.

        Raises UsageError for input of the wrong form, Conflict for other input under this id.
        """
        check_name("job id", job)
        check_seconds("deadline_seconds", deadline_seconds)
        stored_scope = scope_text(scope)
        check_input(provider, model, endpoint, sources)
        spec: dict[str, Any] = {
            "sources": sources,
            "provider": provider,
            "model": model,
            "endpoint": endpoint,
            "workflow": self.WORKFLOW,
            "scope": list(scope),
        }
        if report_target is not None:
            check_name("report target", report_target)
            spec["report_target"] = report_target
        hashed, spec_text = input_hash(spec), encode(spec)
        with self._transaction(create=True):
            for table in self.EXTRA_TABLES.values():
                self._db.execute(table.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1))
            found = self._db.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
            if found is not None:
                return Submission(self._same_input(Job(*found), hashed, spec_text), False)
            self._store(job, spec_text, hashed, stored_scope, deadline_seconds)
            return Submission(read_job(self._db, job), True)

    def _store(self, job: str, spec: str, hashed: str, scope: str, deadline_seconds: float) -> None:
        revision, expires = self._memory_in_force(scope)
        deadline = self.now + deadline_seconds
        self._db.execute(
            "INSERT INTO jobs (id, spec, input_hash, status, scope, memory_rev,"
            " memory_expires, deadline) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (job, spec, hashed, Status.QUEUED, scope, revision, expires, deadline),
        )
        detail = {
            "input_hash": hashed,
            "deadline": deadline,
            "memory_rev": revision,
            "memory_expires": expires,
        }
        self._event(job, 0, Event.SUBMITTED, encode(detail))

    def _same_input(self, job: Job, hashed: str, spec: str) -> Job:
        if job.input_hash != hashed or job.spec != spec:
            raise Conflict(
                f"job {job.id!r} exists with other input (status {job.status}): "
                "it was left as it is; changed input needs a new job id"
            )
        return job

    def _memory_in_force(self, scope: str) -> tuple[int, float]:
        memory = read_memory(self._db, scope)
        if memory is None or not memory.value or memory.expires <= self.now:
            return 0, 0.0
        return memory.revision, memory.expires

    def memory_put(
        self,
        value: str = DEFAULT_MEMORY,
        *,
        scope: Sequence[str] = DEFAULT_SCOPE,
        ttl: float = MEMORY_TTL,
    ) -> Memory:
        """Store the scope's one value as a new revision that expires in ttl seconds."""
        check_seconds("ttl", ttl)
        if not value:
            raise UsageError("an empty memory is a forgotten one: use memory-forget")
        encode(value)
        key = scope_text(scope)
        with self._transaction(create=True):
            return self._remember(key, value, self.now + ttl)

    def memory_forget(self, *, scope: Sequence[str] = DEFAULT_SCOPE) -> Memory:
        """Empty the scope's value as a new revision; NotFound where there never was one."""
        key = scope_text(scope)
        with self._transaction():
            memory = read_memory(self._db, key)
            if memory is None:
                raise NotFound(f"no memory for scope {key}: nothing to forget")
            return self._remember(key, "", 0.0) if memory.value else memory

    def _remember(self, scope: str, value: str, expires: float) -> Memory:
        last = read_memory(self._db, scope)
        memory = Memory(scope, value, last.revision + 1 if last else 1, expires)
        self._db.execute("INSERT OR REPLACE INTO memory VALUES (?, ?, ?, ?)", memory)
        return memory

    # The state loop.

    def run(self, job: str, owner: str) -> Run:
        """Claim the job and do its missing steps in order, each outside any transaction.

        A job that is not ready comes back as it stands. Recovery reads checkpoints; no model is
        asked what to do next. Raises LostLease when the job was taken over, Busy, StorageError or
        PublisherUnavailable when a database is out of reach; a step's own failure is an outcome,
        recorded on the job.
        """
        self._before_claim(job)
        generation = self.claim(job, owner)
        if generation is None:
            return Run(self.job(job), (), ())
        lease = Lease(job, owner, generation)
        with self._storage():
            done = read_checkpoints(self._db, job)
        reused, ran = tuple(done), []
        self._door("after_claim")
        with self.keepalive(self, lease) if self.keepalive else contextlib.nullcontext():
            try:
                for step in STEPS[len(done) :]:
                    start = self._start(lease, step)
                    if start is None:
                        break
                    payload = self._execute(lease, step, start, done)
                    self.commit_step(*lease, step, payload)
                    done[step] = payload
                    ran.append(step)
                    self._door(f"after_{step}")
            except (PermanentError, RetryableError) as error:
                self._settle(lease, error)
            finally:
                self._lease_until = None
        return Run(self.job(job), tuple(ran), reused)

    def _before_claim(self, job: str) -> None:
        """What is no fault of the job's costs it no attempt: an unusable key, an edited row."""
        with self._transaction("BEGIN"):
            row, done = self._own(job), committed_steps(self._db, job)
        if row.status in self.TERMINAL:
            return
        self._check_input(row)
        if done == STEPS:
            raise Refused(f"job {job!r} is {row.status} with every step done: run evaluate.py")
        if "draft" not in done:
            steps.check_ready(json.loads(row.spec))

    def _check_input(self, row: Job) -> None:
        """Refused for a spec that is not what was submitted: it may name another workflow."""
        if input_hash(json.loads(row.spec)) != row.input_hash:
            raise Refused(f"job {row.id!r}: its spec was changed after submit; run evaluate.py")

    def claim(self, job: str, owner: str) -> int | None:
        """Take the job if it is ready: its new generation, or None. One transaction.

        Ready is queued, a retry whose time has come, or a running job whose lease ran out. A ready
        job with its deadline passed or its claims spent becomes failed instead. Raises Busy or
        PublisherUnavailable, with no attempt used, while the publisher is out of reach.
        """
        check_name("owner", owner)
        effect = self._look_up(job)
        with self._transaction():
            return self._grant(self._own(job), owner, effect)

    def _grant(self, row: Job, owner: str, effect: Effect) -> int | None:
        if not self._ready(row):
            return None
        if row.deadline <= self.now or row.attempts >= MAX_CLAIMS:
            self._end(row, Status.FAILED, Event.FAILED, BUDGET_SPENT, effect, error=BUDGET_SPENT)
            return None
        if effect.trouble is not None:
            raise effect.trouble
        generation = row.generation + 1
        self._move(
            row,
            Status.RUNNING,
            generation=generation,
            owner=owner,
            attempts=row.attempts + 1,
            error=None,
        )
        self._event(row.id, generation, Event.CLAIMED, owner)
        self._renew(Lease(row.id, owner, generation))
        return generation

    def _ready(self, row: Job) -> bool:
        if row.status == Status.RUNNING:
            return row.lease_until <= self.now
        if row.status == Status.RETRY_WAIT:
            return row.available_at <= self.now
        return row.status == Status.QUEUED

    def guard(self, job: str, owner: str, generation: int) -> Job:
        """The fence, inside the writer's transaction: the row, or LostLease.

        Asked alone it only tells, in a transaction of its own: it fences no later write.
        """
        if self._now is None:
            with self._transaction("BEGIN"):
                return self.guard(job, owner, generation)
        row = self._own(job)
        if row.status == Status.RUNNING and row.lease_until > self.now:
            if row.owner == owner and row.generation == generation:
                return row
            why = f"generation {row.generation} of {row.owner!r} has it"
        elif row.status == Status.RUNNING and row.generation == generation:
            why = "it ran out during the work; raise --lease-seconds or use --heartbeat"
        else:
            why = f"the job is {row.status} under generation {row.generation}"
        message = f"lease lost for job {job!r}, generation {generation}: {why}"
        raise LostLease(message, Lease(job, owner, generation))

    def renew(self, job: str, owner: str, generation: int) -> float:
        """Extend the lease by its whole length from now, guarded; its new end in Unix seconds."""
        with self._transaction():
            self.guard(job, owner, generation)
            return self._renew(Lease(job, owner, generation))

    def _renew(self, lease: Lease) -> float:
        until = self.now + self.lease_seconds
        self._db.execute("UPDATE jobs SET lease_until = ? WHERE id = ?", (until, lease.job))
        self._event(lease.job, lease.generation, Event.LEASE_RENEWED, encode(until))
        return until

    def _start(self, lease: Lease, step: str) -> Start | None:
        """The last look before anything is sent: lease, memory, deadline.

        None ends the run without a failure; the base workflow never does that.
        """
        with self._transaction("BEGIN"):
            row = self.guard(*lease)
            self._lease_until = row.lease_until
            return Start(json.loads(row.spec), self._check_limits(row))

    def _check_limits(self, row: Job) -> str:
        """Memory and deadline of a job at this moment; the pinned memory's text, or empty."""
        text = ""
        if row.memory_rev:
            memory = read_memory(self._db, row.scope)
            if memory is None or memory.revision != row.memory_rev:
                raise PermanentError("memory_revision_changed")
            if row.memory_expires <= self.now:
                raise PermanentError("memory_expired")
            text = memory.value
        if row.deadline <= self.now:
            raise PermanentError("deadline exceeded")
        return text

    def _execute(self, lease: Lease, step: str, start: Start, done: Mapping[str, Any]) -> Any:
        """One step's work, outside any transaction; only here is the lease it runs under set."""
        spec, memory = start
        self._lease = lease
        try:
            if step == "collect":
                return steps.collect(spec, (self.path, f"{self.path}-shm", self.publisher_path))
            if step == "draft":
                seconds = self._at_most(self.call_seconds)
                return steps.draft(spec, done["collect"], memory, seconds)
            if step == "verify":
                report = steps.report(done["draft"])
                return verified(done["draft"], done["collect"], report)
            return self.publish(lease.job, steps.report(done["draft"]))
        finally:
            self._lease = None

    def publish(self, job: str, payload: object) -> dict[str, Any]:
        """Save the report under the job's operation key: the receipt, and whether it was there.

        RetryableError when the publisher is busy or full, PublisherUnavailable when it is missing,
        damaged or foreign, PermanentError when the key holds another payload.
        """
        self._own(job)
        self._door("before_effect")
        with self._publisher_wait() as seconds:
            receipt = save_receipt(self.publisher_path, job, payload, seconds, self.connect)
        self._door("after_effect")
        return receipt

    def _at_most(self, seconds: float) -> float:
        """Seconds for a call: without a keepalive less than what is left of the lease.

        The rest is for recording how it ended, so that a slow call is a retry and no lost lease.
        """
        if self.keepalive is not None or self._lease_until is None:
            return seconds
        left = max(0.0, self._lease_until - self.clock())
        return min(seconds, left - min(RECORD_SECONDS, left / 10))

    def commit_step(self, job: str, owner: str, generation: int, step: str, payload: Any) -> None:
        """Result and event in one guarded transaction; the last step ends the job.

        LostLease from the guard; PermanentError for memory or deadline; Refused out of order.
        """
        text = encode(payload)
        with self._transaction():
            row = self.guard(job, owner, generation)
            self._check_limits(row)
            self._checkpoint(job, generation, step, text)
            if step == STEPS[-1]:
                self._finish(row, payload)
            else:
                self._renew(Lease(job, owner, generation))

    def _checkpoint(self, job: str, generation: int, step: str, payload: str) -> None:
        done = len(committed_steps(self._db, job))
        if step not in STEPS[done : done + 1]:
            expected = STEPS[done] if done < len(STEPS) else "none"
            raise Refused(f"job {job!r}: step {step!r} is out of order; next is {expected}")
        self._db.execute("INSERT INTO checkpoints VALUES (?, ?, ?)", (job, step, payload))
        self._event(job, generation, Event.STEP_COMMITTED, step)

    def _finish(self, row: Job, payload: Mapping[str, Any]) -> None:
        self._move(row, Status.SUCCEEDED, error=None)

    def _settle(self, lease: Lease, error: PermanentError | RetryableError) -> None:
        """Record a failed step: a later attempt where one is left, else the end. Guarded."""
        effect = self._hidden_effect(lease.job)
        with self._transaction():
            self._record(self.guard(*lease), error, effect)

    def _record(self, row: Job, error: LabError, effect: Effect) -> None:
        reason, retry_at = str(error), self._retry_at(row, error)
        if retry_at is None:
            if isinstance(error, RetryableError) and row.attempts in RETRY_SECONDS:
                reason += "; another attempt would be past the deadline"
            self._end(row, Status.FAILED, Event.FAILED, reason, effect, error=reason)
            return
        self._move(row, Status.RETRY_WAIT, available_at=retry_at, error=reason)
        detail = encode({"available_at": retry_at, "reason": reason})
        self._event(row.id, row.generation, Event.RETRY_SCHEDULED, detail)

    def _retry_at(self, row: Job, error: LabError) -> float | None:
        """When to try again; None when it is permanent, the claims are spent or it is too late."""
        delay = RETRY_SECONDS.get(row.attempts)
        if not isinstance(error, RetryableError) or delay is None:
            return None
        retry_at = self.now + max(delay, error.retry_after or 0.0)
        return retry_at if retry_at < row.deadline else None

    def cancel(self, job: str) -> Job:
        """Stop a job that has not ended; raising the generation fences its worker off.

        A job that has ended comes back as it stands. A report already saved is not undone.
        """
        effect = self._hidden_effect(job)
        with self._transaction():
            row = self._own(job)
            if row.status in self.TERMINAL:
                return row
            if effect is not NOT_LOOKED_UP or not self._may_have_published(job):
                self._cancel(row, effect)
                return read_job(self._db, job)
        return self.cancel(job)  # `verify` came between: look again

    def _cancel(self, row: Job, effect: Effect) -> None:
        raised = row._replace(generation=row.generation + 1)
        self._end(raised, Status.CANCELLED, Event.CANCELLED, "", effect)

    def _end(
        self, row: Job, status: str, kind: str, detail: str, effect: Effect, **changes: Any
    ) -> None:
        """End a job without its report confirmed, and say what is known of a hidden effect."""
        self._move(row, status, **changes)
        self._event(row.id, row.generation, kind, detail)
        if not self._may_have_published(row.id):
            return
        if effect.receipt is not None:
            self._event(row.id, row.generation, Event.EFFECT_FOUND, effect.receipt)
        else:
            self._event(row.id, row.generation, Event.EFFECT_UNKNOWN, effect.reason)

    def _hidden_effect(self, job: str) -> Effect:
        """Before a job ends: what the report service shows, if it can have been called."""
        with self._storage():
            possible = self._may_have_published(self._own(job).id)
        return self._look_up(job) if possible else NOT_LOOKED_UP

    def _may_have_published(self, job: str) -> bool:
        return "verify" in committed_steps(self._db, job)

    # Looking.

    def job(self, job: str) -> Job:
        """The job's row; NotFound without one."""
        with self._storage():
            return read_job(self._db, job)

    def jobs(self) -> list[Job]:
        """Every job, in the order of their ids. Changes nothing."""
        with looking(self.path, self.layout, self.connect) as local:
            return [Job(*row) for row in local.execute("SELECT * FROM jobs ORDER BY id")]

    def inspect(self, job: str) -> dict[str, Any]:
        """All that both databases say of a job, for a person; SPEC section 9. Changes nothing."""
        view = self._look(job)
        if view["receipts"] and view["effect"] == "none":
            view = self._look(job)  # saved since the look at the local database
        view["now"] = self.clock()
        return view

    def _look(self, job: str) -> dict[str, Any]:
        with looking(self.path, self.layout, self.connect) as local:
            view = self._view(local, job)
        try:
            view["receipts"] = self._receipts(job)
        except LabError as error:
            view["receipts"], view["trouble"] = [], str(error)
        view["effect"] = effect_of(view)
        return view

    def _view(self, local: sqlite3.Connection, job: str) -> dict[str, Any]:
        row = read_job(local, job)
        columns = row._asdict()
        columns.update(spec=json.loads(row.spec), scope=json.loads(row.scope))
        memory = read_memory(local, row.scope)
        events = local.execute("SELECT * FROM events WHERE job_id = ? ORDER BY seq", (job,))
        names = [column[0] for column in events.description]
        return {
            "job": columns,
            "checkpoints": read_checkpoints(local, job),
            "events": [dict(zip(names, event, strict=True)) for event in events],
            "memory": None if memory is None else memory._asdict(),
        }

    def _look_up(self, job: str) -> Effect:
        """Ask the report service, read-only, what stands under the job's operation key.

        A failed look-up prevents no end. The draft is read after the receipts: whoever has sent a
        report had committed its draft.
        """
        self._own(job)
        try:
            receipts = self._receipts(job)
        except Busy as busy:
            return Effect(None, "the publisher was busy", busy)
        except PublisherUnavailable as error:
            return Effect(None, "the publisher could not be read", error)
        with self._storage():
            draft = read_checkpoints(self._db, job).get("draft")
        trouble: PublisherUnavailable | None = None
        if not is_writable(self.publisher_path):
            what = f"publisher database {self.publisher_path!r} cannot be written"
            trouble = PublisherUnavailable(f"{what}; make it and its folder writable")
        if not receipts:
            return Effect(None, "no receipt seen; a request may be under way", trouble)
        if draft is None or receipts[0]["payload_hash"] != digest(steps.report(draft)):
            return Effect(None, "the operation key holds another payload", trouble)
        return Effect(receipts[0]["receipt"], "", trouble)

    def _receipts(self, job: str) -> list[dict[str, str]]:
        with self._publisher_wait() as seconds:
            return read_receipts(self.publisher_path, job, self.connect, seconds)

    @contextlib.contextmanager
    def _publisher_wait(self) -> Iterator[float]:
        """Seconds to wait for the publisher's lock, within the lease of a step.

        None right after a wait in vain: a command waits once, however often it has to look.
        """
        vain = time.monotonic() < self._in_vain + VAIN_SECONDS
        try:
            yield 0.0 if vain else self._at_most(LOCK_SECONDS)
        except (Busy, RetryableError):
            if not vain:
                self._in_vain = time.monotonic()
            raise

    # One door to each database.

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_database(self.path, self.layout, self.connect)
        return self._connection

    @property
    def now(self) -> float:
        """The transaction's one reading of the clock."""
        if self._now is None:
            raise RuntimeError("only inside a transaction: a write has one time, read after BEGIN")
        return self._now

    def _storage(self) -> AbstractContextManager[None]:
        return naming(self.layout, self.path)

    @contextlib.contextmanager
    def _transaction(
        self, begin: str = "BEGIN IMMEDIATE", *, create: bool = False
    ) -> Iterator[None]:
        if create and self._connection is None:
            self._create_pair()
        with self._storage(), transaction(self._db, begin):
            self._now = self.clock()
            try:
                yield
            finally:
                self._now = None

    def _create_pair(self) -> None:
        """The publisher first: a filled local database then had one, so it is never made again."""
        if os.path.exists(self.path):
            with (
                self._storage(),
                contextlib.closing(
                    open_file(self.path, self.layout, self.connect, LOCK_SECONDS)
                ) as local,
                transaction(local, "BEGIN"),
            ):
                if is_laid_out(local, self.path, self.layout):
                    return
        open_database(self.publisher_path, PUBLISHER, self.connect, create=True).close()
        self._connection = open_database(self.path, self.layout, self.connect, create=True)

    def _own(self, job: str) -> Job:
        """The job's row, if it is of this runtime's workflow."""
        with self._storage():
            row = read_job(self._db, job)
        workflow = workflow_in(row.spec)
        if workflow != self.WORKFLOW:
            command = COMMANDS.get(workflow, "the command line that made it")
            raise Refused(
                f"job {job!r} is of workflow {workflow!r}: use {command}; nothing changed"
            )
        return row

    def _move(self, row: Job, status: str, **changes: Any) -> None:
        """The one place a status changes; whoever leaves `running` gives the lease back."""
        if status not in self.TRANSITIONS.get(row.status, ()):
            raise Refused(f"job {row.id!r} is {row.status}: it cannot become {status}")
        moved = row._replace(**{"owner": None, **changes, "status": status})
        self._db.execute(
            "UPDATE jobs SET status = ?, generation = ?, owner = ?, attempts = ?,"
            " available_at = ?, error = ? WHERE id = ?",
            (
                moved.status,
                moved.generation,
                moved.owner,
                moved.attempts,
                moved.available_at,
                moved.error,
                row.id,
            ),
        )

    def _event(self, job: str, generation: int, kind: str, detail: str) -> None:
        self._db.execute(
            "INSERT INTO events (job_id, at, generation, kind, detail) VALUES (?, ?, ?, ?, ?)",
            (job, self.now, generation, kind, detail),
        )

    def _door(self, name: str) -> None:
        """The fault door: every injected crash happens here."""
        if name == self.fault:
            self.crash(name)


def check_seconds(name: str, value: float) -> None:
    """UsageError unless value is a number of seconds from a millisecond to a year."""
    if not (math.isfinite(value) and MIN_SECONDS <= value <= MAX_SECONDS):
        raise UsageError(f"{name} must be {MIN_SECONDS} to {MAX_SECONDS:.0f} seconds")


def check_name(what: str, text: str) -> None:
    """UsageError unless text has 1 to 200 characters, all printable."""
    if not 1 <= len(text) <= 200 or not text.isprintable():
        raise UsageError(f"{what} must be 1 to 200 printable characters, not {text!r}")


def scope_text(scope: Sequence[str]) -> str:
    """The canonical text of [tenant, requester, project]; UsageError unless all are names."""
    for what, part in zip(("tenant", "requester", "project"), scope, strict=True):
        check_name(what, part)
    return encode(list(scope))


def check_input(
    provider: str, model: str | None, endpoint: str | None, sources: list[dict[str, Any]]
) -> None:
    """UsageError unless these can be a job's input."""
    try:
        steps.check_sources(sources)
        if provider not in steps.PROVIDERS:
            raise UsageError(f"unknown provider {provider!r}: one of {', '.join(steps.PROVIDERS)}")
        if provider == "api":
            if not model or not endpoint:
                raise UsageError("the api provider needs a model and an endpoint")
            check_name("model", model)
            steps.check_endpoint(endpoint)
        elif model is not None or endpoint is not None:
            raise UsageError("model and endpoint belong to the api provider: name --provider api")
    except ValueError as error:
        raise UsageError(str(error)) from error


def save_receipt(
    path: str, job: str, payload: object, timeout: float, connect: Connect = connect_file
) -> dict[str, Any]:
    """The report service's side of publish: one transaction checks the key and inserts.

    The receipt of an earlier call with the same payload answers a repeated one. timeout: seconds.
    """
    op, payload_hash = operation_key(job), digest(payload)
    try:
        with (
            naming(PUBLISHER, path),
            contextlib.closing(open_file(path, PUBLISHER, connect, timeout)) as publisher,
            transaction(publisher),
        ):
            require(publisher, path, PUBLISHER)
            row = publisher.execute("SELECT * FROM receipts WHERE op = ?", (op,)).fetchone()
            if row is None:
                receipt = f"report-{op[:12]}"
                stored = (op, payload_hash, receipt)
                publisher.execute("INSERT INTO receipts VALUES (?, ?, ?)", stored)
    except (Busy, StorageFull) as error:
        raise RetryableError(str(error)) from error
    except (NotFound, StorageError) as error:
        raise PublisherUnavailable(f"{error}; restore it") from error
    if row is None:
        return {"receipt": receipt, "deduplicated": False}
    if row[1] != payload_hash:
        raise PermanentError("idempotency key reused with different payload")
    return {"receipt": row[2], "deduplicated": True}
