"""One job as the two databases tell it, read without writing, as one value.

The files are opened by the lab's own rules for looking. Their cells are not trusted: a value of
the wrong type is left out and named in `oddities`, and a report service that cannot be read is a
fact of the picture, never an error.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from approval_runtime import ApprovalRuntime
from provider import LabError, report
from runtime import (
    LOCAL,
    PUBLISHER,
    STEPS,
    NotFound,
    UsageError,
    connect_file,
    database_path,
    digest,
    looking,
    operation_key,
)

from .wording import visible

LONGEST = 4096  # bytes read of any one cell that is only shown
MOST_JOBS = 8
MOST_ODDITIES = 6
LATEST = 1e14  # a number beyond this is no time


class Event(NamedTuple):
    """One row of `events`; None where the stored value is no number."""

    seq: int
    at: float | None
    generation: int | None
    kind: str
    detail: str


class Approval(NamedTuple):
    """What the approvals row says; times None where they are no numbers or not set."""

    status: str
    requested_at: float | None
    expires_at: float | None
    decided_by: str | None
    binding_hash: str


class Receipt(NamedTuple):
    """The receipt under the job's operation key; `agrees`: it is of this job's report."""

    name: str
    agrees: bool | None


class Record(NamedTuple):
    """All that is drawn. `service` is empty, or why the report service could not be read."""

    database: str
    job: str
    workflow: str
    status: str
    generation: int | None
    owner: str | None
    attempts: int | None
    lease_until: float | None
    available_at: float | None
    deadline: float | None
    error: str | None
    events: tuple[Event, ...]
    steps: tuple[str, ...]
    published: dict[str, Any]
    approval: Approval | None
    service: str
    receipt: Receipt | None
    now: float
    oddities: tuple[str, ...]

    @property
    def approvals(self) -> bool:
        """True for the workflow with a person between verify and publish."""
        return self.workflow == ApprovalRuntime.WORKFLOW or self.approval is not None


class Oddities:
    """What could not be understood, each said once, and only so many."""

    def __init__(self) -> None:
        self.said: dict[str, None] = {}  # a set that keeps its order

    def add(self, text: str) -> None:
        self.said[text] = None

    def told(self) -> tuple[str, ...]:
        said = tuple(self.said)
        if len(said) <= MOST_ODDITIES:
            return said
        return (*said[:MOST_ODDITIES], f"and {len(said) - MOST_ODDITIES:,} more of this kind")

    def number(self, value: object, where: str) -> float | None:
        """A finite number of a size that can be a time or a count."""
        if isinstance(value, (int, float)) and math.isfinite(value) and abs(value) <= LATEST:
            return float(value)
        self.add(f"{where} is no usable number: {visible(value, 24)}")
        return None

    def whole(self, value: object, where: str) -> int | None:
        found = self.number(value, where)
        return None if found is None else int(found)

    def text(self, value: object, where: str) -> str:
        if isinstance(value, str):
            return value
        self.add(f"{where} is no text: {visible(value, 24)}")
        return visible(value, 24)

    def json(self, text: object, where: str) -> dict[str, Any]:
        """A JSON object; empty when it is none."""
        try:
            value = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        self.add(f"{where} is no JSON object")
        return {}


def _connect(uri: str, timeout: float) -> sqlite3.Connection:
    connection = connect_file(uri, timeout)
    # Text that is no UTF-8 must not stop the look: its bytes become visible escapes.
    connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    return connection


def read_record(path: str, job: str | None, clock: Callable[[], float]) -> Record:
    """Everything that both files say of one job (None: the only one). Raises the lab's errors.

    The local database is read first: what it says has happened at the report service is then there.
    """
    real = database_path(path)
    odd = Oddities()
    layout = LOCAL._replace(optional=ApprovalRuntime.EXTRA_TABLES)
    with looking(real, layout, _connect) as local:
        rowid = _find(local, job)
        cursor = local.execute("SELECT * FROM jobs WHERE rowid = ?", (rowid,))
        row = dict(zip((column[0] for column in cursor.description), *cursor, strict=True))
        row["id"] = odd.text(row["id"], "jobs.id")
        events = tuple(_events(local, rowid, odd))
        checkpoints = dict(
            local.execute(
                "SELECT step, payload FROM checkpoints"
                " WHERE job_id = (SELECT id FROM jobs WHERE rowid = ?)",
                (rowid,),
            )
        )
        approval = _approval(local, rowid, odd)
    return _record(real, row, events, checkpoints, approval, clock(), odd)


def _find(local: sqlite3.Connection, job: str | None) -> int:
    """The job's rowid: an id that is no text, or no UTF-8, can still be followed."""
    if job is not None:
        with contextlib.suppress(UnicodeEncodeError):
            found = local.execute("SELECT rowid FROM jobs WHERE id = ?", (job,)).fetchone()
            if found:
                return int(found[0])
        raise NotFound(f"no job {visible(job)} in this database")
    rows = local.execute("SELECT rowid, id FROM jobs LIMIT ?", (MOST_JOBS + 1,)).fetchall()
    if not rows:
        raise NotFound("no job in this database: submit one first")
    if len(rows) > 1:
        shown = ", ".join(visible(row[1], 40) for row in rows[:MOST_JOBS])
        more = ", ..." if len(rows) > MOST_JOBS else ""
        raise UsageError(f"several jobs: name one with --job ({shown}{more})")
    return int(rows[0][0])


def _events(local: sqlite3.Connection, rowid: int, odd: Oddities) -> Iterable[Event]:
    rows = local.execute(
        "SELECT seq, at, generation, typeof(kind) = 'text' AND typeof(detail) = 'text',"
        " CAST(substr(CAST(kind AS BLOB), 1, ?) AS TEXT),"
        " CAST(substr(CAST(detail AS BLOB), 1, ?) AS TEXT)"
        " FROM events WHERE job_id = (SELECT id FROM jobs WHERE rowid = ?) ORDER BY seq",
        (LONGEST, LONGEST, rowid),
    )
    for seq, at, generation, are_text, kind, detail in rows:
        where = f"event {seq}"
        if not are_text:
            odd.add(f"{where}: its kind or detail is no text")
        yield Event(
            seq,
            odd.number(at, f"{where}: its time"),
            odd.whole(generation, f"{where}: its generation"),
            kind or "",  # an empty text comes back as NULL
            detail or "",
        )


def _approval(local: sqlite3.Connection, rowid: int, odd: Oddities) -> Approval | None:
    if not local.execute("SELECT 1 FROM sqlite_master WHERE name = 'approvals'").fetchone():
        return None
    row = local.execute(
        "SELECT status, requested_at, expires_at, decided_by, binding_hash"
        " FROM approvals WHERE job_id = (SELECT id FROM jobs WHERE rowid = ?)",
        (rowid,),
    ).fetchone()
    if row is None:
        return None
    return Approval(
        odd.text(row[0], "approvals.status"),
        odd.number(row[1], "approvals.requested_at"),
        odd.number(row[2], "approvals.expires_at"),
        None if row[3] is None else odd.text(row[3], "approvals.decided_by"),
        odd.text(row[4], "approvals.binding_hash"),
    )


def _record(
    real: str,
    row: dict[str, Any],
    events: tuple[Event, ...],
    checkpoints: dict[Any, Any],
    approval: Approval | None,
    now: float,
    odd: Oddities,
) -> Record:
    service, receipt = _service(real + ".publisher.sqlite", row["id"], checkpoints, odd)
    published = checkpoints.get("publish")
    return Record(
        database=os.path.basename(real),
        job=row["id"],
        workflow=str(odd.json(row["spec"], "jobs.spec").get("workflow", "")),
        status=odd.text(row["status"], "jobs.status"),
        generation=odd.whole(row["generation"], "jobs.generation"),
        owner=None if row["owner"] is None else odd.text(row["owner"], "jobs.owner"),
        attempts=odd.whole(row["attempts"], "jobs.attempts"),
        lease_until=odd.number(row["lease_until"], "jobs.lease_until"),
        available_at=odd.number(row["available_at"], "jobs.available_at"),
        deadline=odd.number(row["deadline"], "jobs.deadline"),
        error=None if row["error"] is None else odd.text(row["error"], "jobs.error"),
        events=events,
        steps=tuple(step for step in STEPS if step in checkpoints),
        published={} if published is None else odd.json(published, "the publish checkpoint"),
        approval=approval,
        service=service,
        receipt=receipt,
        now=now,
        oddities=odd.told(),
    )


def _service(
    path: str, job: str, checkpoints: dict[Any, Any], odd: Oddities
) -> tuple[str, Receipt | None]:
    """Why the report service cannot be read (empty: it can), and the job's receipt there."""
    try:
        with looking(path, PUBLISHER, _connect) as publisher:
            found = publisher.execute(
                "SELECT payload_hash, receipt FROM receipts WHERE op = ?", (operation_key(job),)
            ).fetchone()
    except NotFound:
        return "is missing", None
    except LabError as error:
        return ("is busy" if error.exit_code == 3 else "cannot be read"), None
    if found is None:
        return "", None
    return "", Receipt(visible(found[1], 40), _same_report(checkpoints, found[0], odd))


def _same_report(checkpoints: dict[Any, Any], payload_hash: object, odd: Oddities) -> bool | None:
    """Whether the receipt is of the drafted report; None when no draft tells what that is."""
    draft = odd.json(checkpoints["draft"], "the draft") if "draft" in checkpoints else {}
    if not {"summary", "citations"} <= draft.keys():
        return None
    try:
        return digest(report(draft)) == payload_hash
    except LabError:
        return None
