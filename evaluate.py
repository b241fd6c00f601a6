"""Mechanical acceptance of one lab's two databases, by a judge that shares no code with the judged.

Guarantee: nothing is believed that can be recomputed. Hashes, keys and bindings are derived again,
and the events are replayed: each row must be what the history leads to. Each rule is one named
check (the tables below say what it holds); what cannot be read as the contract has it fails a
check and never the judge.
Limit: taken as they stand are `available_at` outside `retry_wait`, the rows of `memory`, an event's
time within what lease, deadline and neighbours allow, the owner's name and the reason texts. Nor is
there a second record of a report or its target until it is asked for or sent, of what a model's
server told (usage, finish reason, Retry-After), of the length of a generation's only lease, of
whether a repeated call found its receipt, or of a receipt that no history names yet. A clock that
was set back cannot be told from an edited row: both fail.
Whether the sources support the text, and how good it is, is not judged.
"""

import _signal  # the built-in part of signal, which would load enum first

if __name__ == "__main__" and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C while modules load: no traceback

import argparse
import contextlib
import functools
import hashlib
import json
import math
import os
import signal
import sqlite3
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TextIO

VERSION = "1.0.1"
BASE, APPROVAL = "report/v1", "report-approval/v1"
STEPS = ("collect", "draft", "verify", "publish")
MAX_CLAIMS, RETRY_SECONDS = 3, {1: 2.0, 2: 4.0}
BUDGET_SPENT = "deadline_or_attempt_budget"
# What the lab says where the operation key holds another report: the job id was used before.
OTHER_PAYLOAD = ("key reused with different payload", "key holds another payload")
ROUNDING = 1e-5  # seconds; sums of times of this century are exact to less than a microsecond
LOCK_SECONDS = 5.0
LOOKS = 5  # at a database that others are writing to
VERDICTS = ("accepted", "not_accepted", "unknown", "unsound")  # from best to worst
NUMBER, TEXT_OR_NONE = (int, float), (str, type(None))
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
Row = dict[str, Any]
Receipts = dict[str, tuple[str, str]] | str  # op: (payload_hash, receipt); or why not read
Connection = sqlite3.Connection

# --- The contract's layout, and every rule there is -----------------------------------------------

LOCAL, PUBLISHER = "local database", "publisher database"
STAMPS = {LOCAL: 0x5265634C, PUBLISHER: 0x52656350}  # application_id
LAYOUT = {
    LOCAL: """
CREATE TABLE jobs (id TEXT NOT NULL PRIMARY KEY, spec TEXT NOT NULL, input_hash TEXT NOT NULL,
    status TEXT NOT NULL, generation INTEGER NOT NULL DEFAULT 0, owner TEXT,
    lease_until REAL NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0,
    available_at REAL NOT NULL DEFAULT 0, scope TEXT NOT NULL, memory_rev INTEGER NOT NULL,
    memory_expires REAL NOT NULL, deadline REAL NOT NULL, error TEXT);
CREATE TABLE checkpoints (job_id TEXT NOT NULL REFERENCES jobs(id), step TEXT NOT NULL,
    payload TEXT NOT NULL, PRIMARY KEY (job_id, step));
CREATE TABLE events (seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL REFERENCES jobs(id), at REAL NOT NULL, generation INTEGER NOT NULL,
    kind TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE memory (scope TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL,
    revision INTEGER NOT NULL, expires REAL NOT NULL);
CREATE TABLE approvals (job_id TEXT NOT NULL PRIMARY KEY REFERENCES jobs(id),
    action_json TEXT NOT NULL, binding_hash TEXT NOT NULL, operation_key TEXT NOT NULL,
    status TEXT NOT NULL, requested_at REAL NOT NULL, expires_at REAL NOT NULL,
    decided_by TEXT, decided_at REAL);
""",
    PUBLISHER: """
CREATE TABLE receipts (op TEXT NOT NULL PRIMARY KEY, payload_hash TEXT NOT NULL,
    receipt TEXT NOT NULL);
""",
}
DATABASE_RULES = {
    "layout": "tables, columns, types, defaults and keys are the contract's, and no others",
    "integrity": "SQLite's integrity_check finds nothing",
    "foreign_keys": "every checkpoint, event and approval belongs to a job",
    "event_sequence": "events are numbered from 1 without a gap, to the last number given out",
    "publisher": "the publisher database is there, whole, and has the contract's layout",
    "receipts_of_no_job": "every receipt stands under the operation key of a job here",
}
JOB_RULES = {
    "values": "every value has its column's type, finite and valid text; the id is printable",
    "spec": "the spec is canonical, of a known workflow and shape; jobs.scope is its scope",
    "input_hash": "the input hash, computed again from the spec, is the job's",
    "sources": "the collected texts are those the spec gives, or names by length and SHA-256",
    "draft": "the draft has its shape and names the spec's provider and model",
    "citations": "a verified draft cites known sources, at least one, each once",
    "binding": "an approval's action, hash and operation key, computed again, are those stored",
    "history": "each transaction wrote exactly its events, in order, where its status allows it",
    "generation": "a claim, a cancel, a reconcile raise the generation by one; events carry it",
    "time": "the times of the events never decrease",
    "lease": "no write at or after the end of its lease, and no takeover before it",
    "attempts": "at most 3 claims; a retry waits 2 s, then 4 s, and is not claimed before",
    "limits": "nothing is claimed, committed, asked or sent past the deadline or the memory's end",
    "decision": "one request, after verify; one decision, in time and not by the requester",
    "dispatch": "sent once, after a yes in force; then only this run or a reconcile goes on",
    "job_row": "the job's row is what its history leads to",
    "approval_row": "the approvals row is what the job's history leads to; a base job has none",
    "checkpoints": "one checkpoint for each committed step, in workflow order, and no other",
    "publish": "the publish result and the events name this job's receipt; fresh only if first",
    "receipt": "one receipt, of this report, where one must be; none where none can be",
}

# --- Canonical form -------------------------------------------------------------------------------


def encode(value: object) -> str:
    """The contract's JSON text: keys sorted, no blanks, no NaN, non-ASCII as itself."""
    separators = (",", ":")
    return json.dumps(
        value, sort_keys=True, separators=separators, ensure_ascii=False, allow_nan=False
    )


def digest(value: object) -> str:
    """Hex SHA-256 of the canonical text."""
    return hashlib.sha256(encode(value).encode("utf-8")).hexdigest()


def decode(text: str, what: str, **kinds: Any) -> Any:
    """The value of canonical JSON text, an object of these kinds if any are named; ValueError."""
    try:
        value = json.loads(text)
        if encode(value) != text:
            raise ValueError
    except (ValueError, RecursionError):
        raise ValueError(f"{what} is not canonical JSON") from None
    if kinds and not shaped(value, **kinds):
        raise ValueError(f"{what} has other keys or types")
    return value


def shaped(value: object, **kinds: Any) -> bool:
    """Whether value is an object of exactly these keys, each of its type (or one of its types)."""
    return (
        type(value) is dict
        and value.keys() == kinds.keys()
        and all(type(value[key]) in (k if type(k) is tuple else (k,)) for key, k in kinds.items())
    )


# --- Checks ---------------------------------------------------------------------------------------


class Unreadable(Exception):
    """What a rule is about cannot be read: it is neither kept nor broken."""


def readable(receipts: Receipts) -> dict[str, tuple[str, str]]:
    """The receipts; Unreadable without them."""
    if isinstance(receipts, str):
        raise Unreadable(receipts)
    return receipts


class Checks:
    """Named rules over one subject; unjudged is not passed.

    A rule is judged by the method of its name, or held by another's on the way.
    """

    gates: tuple[str, ...] = ()  # where one of these is broken, those below it stay unjudged

    def __init__(self, rules: dict[str, str]) -> None:
        self.rules = rules
        self.unjudged = dict.fromkeys(rules, "not judged: what it builds on is unsound")
        self.wrong: dict[str, str] = {}

    def judge(self) -> None:
        """Apply the rules in order; whatever is stored, the judge does not fall over it."""
        for rule in self.rules:
            try:
                getattr(self, f"check_{rule}", lambda: None)()
                self.unjudged.pop(rule, None)
            except Unreadable as reason:
                self.unjudged[rule] = f"not judged: {reason}"
            except sqlite3.Error:
                raise  # the file is at fault, not what it says
            except Exception as error:
                told = str(error) if type(error) is ValueError else type(error).__name__
                self.hold(rule, False, f"cannot be followed: {told}")
            if rule in self.gates and rule in self.wrong:
                break

    def hold(self, rule: str, fact: object, why: str) -> None:
        """One fact that a rule asks for; the first that is missing is what the check says."""
        if not fact:
            self.wrong.setdefault(rule, why[:300])

    def verdict(self) -> str:
        """The best that the checks leave possible."""
        if self.wrong:
            return "unsound"
        return "unknown" if self.unjudged else "accepted"

    def listed(self) -> list[Row]:
        """The checks as they are printed."""
        found = self.unjudged | self.wrong
        return [
            {"name": name, "passed": name not in found, "detail": found.get(name, rule)}
            for name, rule in self.rules.items()
        ]


# --- The replay: what the events of one job lead to -----------------------------------------------

OPEN = ("queued", "retry_wait", "running")
MOVES = {  # kind: (the statuses it may come from, the status it leads to, "" for the same)
    "submitted": (("",), "queued"),
    "claimed": (OPEN, "running"),
    "lease_renewed": (("running",), ""),
    "step_committed": (("running", "reconciling"), ""),  # `publish`, under a lease: succeeded
    "retry_scheduled": (("running",), "retry_wait"),
    "failed": ((*OPEN, "waiting_approval"), "failed"),
    "cancelled": ((*OPEN, "waiting_approval"), "cancelled"),
    "effect_found": (("failed", "cancelled"), ""),
    "effect_unknown": (("failed", "cancelled"), ""),
    "approval_requested": (("running",), "waiting_approval"),
    "approved": (("waiting_approval",), "queued"),
    "rejected": (("waiting_approval",), "rejected"),
    "dispatch_started": (("running",), ""),
    "reconciling": (("running",), "reconciling"),
    "reconcile_started": (("running", "reconciling"), "reconciling"),
    "reconcile_inconclusive": (("reconciling",), ""),
    "effect_confirmed": (("reconciling",), "effect_confirmed"),
}
RAISES = ("claimed", "cancelled", "reconcile_started")  # the generation, by one
RIDES = ("effect_found", "effect_unknown", "effect_confirmed")  # never first in a transaction
LIMITED = ("step_committed", "approval_requested", "dispatch_started")  # by deadline and memory
GUARDED = (*LIMITED, "lease_renewed", "retry_scheduled")  # by the lease
UNSENT = ("claimed", "retry_scheduled", "failed", "cancelled", "dispatch_started")


class History:
    """A job's state after each of its events, with one method for each kind of event.

    A method returns the kinds of which one must follow in the same transaction.
    """

    def __init__(self, case: "Case") -> None:
        self.case, self.base, self.where = case, case.base, ""
        self.status, self.owner, self.generation, self.attempts = "", "", 0, 0
        self.lease_until = self.available_at = 0.0
        self.lease_seconds: float | None = None  # of this generation
        self.pinned: Row = {}  # what the submission fixed
        self.steps: tuple[str, ...] = ()
        self.error: str | None = None
        self.approval: Row = {}
        self.effect = ""
        self.rides = self.sent = self.asking = self.called_before = False

    def hold(self, rule: str, fact: object, why: str) -> None:
        self.case.hold(rule, fact, f"{self.where}: {why}")

    def follow(self, events: list[Row]) -> None:
        """Event by event; ValueError where the history cannot be followed."""
        due: tuple[str, ...] = ()
        last = (0, -math.inf, 0)
        for seq, _, at, generation, kind, detail in map(dict.values, events):
            self.where = f"event {seq} ({kind[:40]!r})"
            origins, target = MOVES.get(kind, ((), ""))
            if self.status not in origins:
                raise ValueError(f"{self.where} in status {self.status!r}")
            if (due or kind in RIDES) and (kind not in due or (seq - 1, at, generation) != last):
                raise ValueError(f"{self.where}, where {' or '.join(due) or 'another'} had to come")
            self.rides = bool(due)
            self.generation += kind in RAISES
            carried = generation == self.generation
            self.hold("generation", carried, f"{generation}, not {self.generation}")
            self.hold("time", at >= last[1], "earlier than the event before it")
            self.fence(kind, at)
            due = getattr(self, kind)(at, detail) or ()
            self.status, last = target or self.status, (seq, at, generation)
        if due or not events:
            raise ValueError(f"it ends where {' or '.join(due) or 'submitted'} had to come")

    def fence(self, kind: str, at: float) -> None:
        """The guards that a write had to pass, seen from afterwards."""
        running, live = self.status == "running", at < self.lease_until
        if kind in GUARDED and running and not self.rides:
            self.hold("lease", live, f"at {at}, and the lease ended at {self.lease_until}")
        if kind == "reconcile_started" or (kind == "claimed" and running):
            self.hold("lease", not live, f"at {at}, and the lease ended at {self.lease_until}")
        if kind in LIMITED and running:
            kept = not self.pinned["memory_rev"] or at < self.pinned["memory_expires"]
            self.hold("limits", kept, "when the memory had expired")
        if (kind in LIMITED and running) or kind == "claimed":
            self.hold("limits", at < self.pinned["deadline"], "at or after the deadline")
        self.hold("dispatch", not (self.sent and kind in UNSENT), "after the dispatch")

    def submitted(self, at: float, detail: str) -> None:
        pin = {"deadline": NUMBER, "input_hash": str, "memory_expires": NUMBER, "memory_rev": int}
        self.pinned = decode(detail, self.where, **pin)
        self.hold("limits", at < self.pinned["deadline"], "at or after the deadline")
        revision, expires = self.pinned["memory_rev"], self.pinned["memory_expires"]
        valid = revision > 0 and expires > at
        self.hold("limits", valid or revision == expires == 0, "its memory was not in force")

    def claimed(self, at: float, detail: str) -> tuple[str, ...]:
        self.hold("attempts", self.attempts < MAX_CLAIMS, "no claim was left")
        due = self.status != "retry_wait" or at >= self.available_at
        self.hold("attempts", due, "before the retry's time")
        self.called_before = "verify" in self.steps
        self.attempts, self.owner = self.attempts + 1, detail
        self.error = self.lease_seconds = None
        return ("lease_renewed",)

    def lease_renewed(self, at: float, detail: str) -> None:
        until, before = decode(detail, self.where), self.lease_seconds
        seconds = until - at
        same = before is None or abs(seconds - before) < ROUNDING
        self.hold("lease", same, "a lease of another length in this generation")
        self.hold("lease", seconds > 0, "a lease of no time")
        self.lease_seconds, self.lease_until = seconds, until

    def step_committed(self, at: float, detail: str) -> tuple[str, ...]:
        self.steps += (detail,)
        self.hold("checkpoints", self.steps == STEPS[: len(self.steps)], "out of order or twice")
        if self.status == "reconciling":
            self.hold("dispatch", detail == "publish" and self.asking, "no reconcile had asked")
            return ("effect_confirmed",)
        if detail != "publish":
            return ("lease_renewed",)
        self.hold("dispatch", self.base or self.sent, "published without a dispatch")
        self.status = "succeeded"
        if not self.base:
            self.approval["status"] = "executed"
        return ()

    def retry_scheduled(self, at: float, detail: str) -> None:
        retry = decode(detail, self.where, available_at=NUMBER, reason=str)
        self.available_at, self.error = retry["available_at"], retry["reason"]
        delay, least = self.available_at - at, RETRY_SECONDS.get(self.attempts, math.inf)
        # Only a model's endpoint can ask for more, by Retry-After.
        asked = self.case.spec["provider"] == "api" and self.steps == ("collect",)
        right = delay > least - ROUNDING and (asked or delay < least + ROUNDING)
        self.hold("attempts", right, f"a delay of {delay} s after claim {self.attempts}")
        self.hold("limits", self.available_at < self.pinned["deadline"], "past the deadline")

    def failed(self, at: float, detail: str) -> tuple[str, ...]:
        if self.status == "waiting_approval":
            expired = detail == "approval_expired" and at >= self.approval["expires_at"]
            self.hold("decision", expired, "a waiting job fails only when its request has expired")
        elif self.status != "running" or at >= self.lease_until:
            self.hold("lease", detail == BUDGET_SPENT, "a step's failure outside a lease")
            spent = self.attempts >= MAX_CLAIMS or at >= self.pinned["deadline"]
            self.hold("attempts", spent, "neither claims nor deadline were spent")
        self.error = detail
        return self.ended()

    def cancelled(self, at: float, detail: str) -> tuple[str, ...]:
        self.hold("history", detail == "", "has no detail")
        return self.ended()

    def ended(self) -> tuple[str, ...]:
        """An end that may hide an effect says what is known of it."""
        return ("effect_found", "effect_unknown") if self.base and "verify" in self.steps else ()

    def effect_found(self, at: float, detail: str) -> None:
        self.effect = "found"
        self.hold("publish", detail == self.case.receipt_text, "names another receipt")

    def effect_unknown(self, at: float, detail: str) -> None:
        self.effect = "unknown"
        self.hold("publish", detail != self.case.receipt_text, "names a receipt: it was found")

    def approval_requested(self, at: float, detail: str) -> None:
        asked = decode(detail, self.where, binding_hash=str, expires_at=NUMBER)
        first = not (self.approval or self.base) and self.steps == STEPS[:3]
        self.hold("decision", first, "asked twice, before verify, or by a base job")
        in_time = at < asked["expires_at"] <= self.pinned["deadline"]
        self.hold("decision", in_time, "a request that does not end by the deadline")
        self.hold("attempts", self.attempts < MAX_CLAIMS, "no claim was left for a yes")
        undecided = {"requested_at": at, "decided_by": None, "decided_at": None}
        self.approval = {**asked, **undecided, "status": "pending"}

    def approved(self, at: float, detail: str) -> None:
        self.hold("decision", at < self.approval["expires_at"], "the request had expired")
        self.hold("decision", detail != self.case.spec["scope"][1], "decided by the requester")
        self.approval.update(status="approved", decided_by=detail, decided_at=at)

    def rejected(self, at: float, detail: str) -> None:
        self.approved(at, detail)
        self.approval["status"] = "rejected"

    def dispatch_started(self, at: float, detail: str) -> None:
        in_force = self.approval["status"] == "approved" and at < self.approval["expires_at"]
        self.hold("dispatch", in_force, "no yes was in force")
        self.hold("dispatch", detail == self.case.op, "names another operation key")
        self.approval["status"], self.sent = "dispatching", True

    def reconciling(self, at: float, detail: str) -> None:
        self.hold("dispatch", self.sent, "of a job that was never sent")
        self.error = detail

    def reconcile_started(self, at: float, detail: str) -> None:
        self.hold("dispatch", self.sent, "of a job that was never sent")
        self.hold("dispatch", detail == self.case.op, "names another operation key")
        self.asking = True

    def reconcile_inconclusive(self, at: float, detail: str) -> None:
        self.hold("dispatch", self.asking, "no reconcile had asked")
        self.error, self.asking = detail, False

    def effect_confirmed(self, at: float, detail: str) -> None:
        self.effect_found(at, detail)
        self.approval["status"] = "effect_confirmed"


# --- One job --------------------------------------------------------------------------------------


class Case(Checks):
    """One job: its rows by table, and the receipts, or why they cannot be read."""

    gates = ("values", "spec", "history")

    def __init__(self, rows: dict[str, list[Row]], receipts: Receipts) -> None:
        super().__init__(JOB_RULES)
        self.rows, self.job, self.receipts = rows, rows["jobs"][0], receipts
        name = str(self.job["id"]).encode("utf-8", "replace").decode("utf-8")
        self.op = digest([name, "publish/v1"])
        self.receipt_text = f"report-{self.op[:12]}"
        self.judge()

    def verdict(self) -> str:
        """As the checks leave it, and the end of the history deserves."""
        best = super().verdict()
        if best != "accepted" or self.history.status in ("succeeded", "effect_confirmed"):
            return best
        ended = self.history.status in ("failed", "cancelled", "rejected")
        return "not_accepted" if ended and self.history.effect != "unknown" else "unknown"

    def result(self, step: str) -> Any:
        """The step's checkpoint, an object; None without one."""
        for row in self.rows["checkpoints"]:
            if row["step"] == step:
                value = decode(row["payload"], f"the {step} checkpoint")
                if type(value) is dict:
                    return value
                raise ValueError(f"the {step} checkpoint is no object")
        return None

    def compare(self, rule: str, table: str, row: Row, expected: Row) -> None:
        for name, value in expected.items():
            why = f"{table}.{name} is {row[name]!r:.80}, and had to be {value!r:.80}"
            self.hold(rule, row[name] == value, why)

    def check_values(self) -> None:
        for table, rows in self.rows.items():
            for name, kind, required, *_ in contract(LOCAL)[table][1]:
                for wrong in (row[name] for row in rows if not fits(row[name], kind, required)):
                    why = f"{table}.{name} holds {wrong!r:.80}, which is no {kind}"
                    self.hold("values", False, why)
        named = 1 <= len(self.job["id"]) <= 200 and self.job["id"].isprintable()
        self.hold("values", named, "the id is not 1 to 200 printable characters")

    def check_spec(self) -> None:
        self.spec = spec = decode(self.job["spec"], "jobs.spec")
        kinds: Row = {"sources": list, "provider": str, "workflow": str, "scope": list}
        told = {"report_target": "none", **spec}  # the one key that may be left out
        kinds |= {"model": TEXT_OR_NONE, "endpoint": TEXT_OR_NONE, "report_target": str}
        self.hold("spec", shaped(told, **kinds), "jobs.spec has other keys or types")
        self.base = spec["workflow"] == BASE
        self.hold("spec", self.base or spec["workflow"] == APPROVAL, "an unknown workflow")
        fixed = {"fixture": type(None), "api": str}.get(spec["provider"])
        both = type(spec["model"]) is type(spec["endpoint"]) is fixed
        self.hold("spec", both, "provider, model and endpoint do not fit each other")
        for source in spec["sources"]:
            by_value = shaped(source, id=str, text=str)
            by_reference = shaped(source, id=str, uri=str, bytes=int, sha256=str)
            self.hold("spec", by_value or by_reference, "a source of another shape")
        names = [source["id"] for source in spec["sources"]]
        named = names and all(name and name.isprintable() for name in names)
        self.hold("spec", named and len(set(names)) == len(names), "source ids that name nothing")
        parts = [type(part) for part in spec["scope"]] == [str] * 3
        self.hold("spec", parts and encode(spec["scope"]) == self.job["scope"], "another scope")

    def check_input_hash(self) -> None:
        inputs = {name: self.spec[name] for name in self.spec.keys() - {"report_target"}}
        self.compare("input_hash", "jobs", self.job, {"input_hash": digest(inputs)})

    def check_sources(self) -> None:
        collected, given = self.result("collect"), self.spec["sources"]
        if collected is None:
            return
        read = collected["sources"]
        whole = shaped(collected, sources=list) and all(shaped(s, id=str, text=str) for s in read)
        same = whole and [s["id"] for s in read] == [s["id"] for s in given]
        self.hold("sources", same, "the collect checkpoint has other sources than the spec")
        for named, text in zip(given, (s["text"] for s in read), strict=True):
            data = text.encode("utf-8")
            facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            same = text == named["text"] if "text" in named else facts.items() <= named.items()
            self.hold("sources", same, f"source {named['id']!r:.40} is not what was submitted")

    def check_draft(self) -> None:
        draft = self.result("draft")
        if draft is None:
            return
        told = {"usage": {COUNTS[0]: 0}, **draft}  # the one key that may be left out
        kinds = {"summary": str, "citations": list, "provider": str, "usage": dict}
        whole = shaped(told, model=TEXT_OR_NONE, finish_reason=TEXT_OR_NONE, **kinds)
        self.hold("draft", whole, "the draft checkpoint has other keys or types")
        counts = dict.fromkeys(told["usage"].keys() & COUNTS, int)
        counted = counts and shaped(told["usage"], **counts) and min(told["usage"].values()) >= 0
        self.hold("draft", counted, "the token usage is no count of tokens")
        for name in ("provider", "model"):
            self.hold("draft", draft[name] == self.spec[name], f"another {name} than the spec's")
        remote = draft["provider"] == "api"
        self.hold("draft", remote or "usage" not in draft, "a fixture uses no tokens")
        finished = draft["finish_reason"] == "stop" or (remote and draft["finish_reason"] is None)
        self.hold("draft", finished and draft["summary"].strip(), "the draft was not finished")
        self.report = {"summary": draft["summary"], "citations": draft["citations"]}

    def check_citations(self) -> None:
        verified = self.result("verify")
        if verified is None:
            return
        cited, known = self.report["citations"], {source["id"] for source in self.spec["sources"]}
        once = 0 < len(cited) == len(set(cited))
        self.hold("citations", once and known.issuperset(cited), f"citations {cited!r:.80}")
        expected = {
            "citations": len(cited),
            "draft_hash": digest(self.result("draft")),
            "known": True,
            "payload_hash": digest(self.report),
            "semantic_support": "not_judged",
        }
        why = f"the verify checkpoint had to be {encode(expected)}"
        self.hold("citations", encode(verified) == encode(expected), why)

    def check_binding(self) -> None:
        for row in self.rows["approvals"]:
            action = {
                "job_id": self.job["id"],
                "action": "report.publish/v1",
                "target": self.spec.get("report_target", "local-report-store"),
                "scope": self.job["scope"],
                "requester": self.spec["scope"][1],
                "input_hash": self.job["input_hash"],
                "payload_hash": digest(self.report),
                "memory_rev": self.job["memory_rev"],
                "memory_expires": self.job["memory_expires"],
            }
            bound = {"action_json": encode(action), "binding_hash": digest(action)}
            self.compare("binding", "approvals", row, {**bound, "operation_key": self.op})

    def check_history(self) -> None:
        self.history = History(self)
        self.history.follow(self.rows["events"])

    def check_job_row(self) -> None:
        end = self.history
        names = ("status", "generation", "attempts", "lease_until", "error")
        expected = {**end.pinned, **{name: getattr(end, name) for name in names}}
        expected["owner"] = end.owner if end.status == "running" else None
        if end.status == "retry_wait":
            expected["available_at"] = end.available_at
        self.compare("job_row", "jobs", self.job, expected)

    def check_approval_row(self) -> None:
        rows, expected = self.rows["approvals"], self.history.approval
        right = len(rows) == bool(expected)
        self.hold("approval_row", right, f"{len(rows)} approvals rows, {bool(expected)} asked for")
        for row in rows:
            self.compare("approval_row", "approvals", row, expected)

    def check_checkpoints(self) -> None:
        stored, steps = [row["step"] for row in self.rows["checkpoints"]], self.history.steps
        why = f"checkpoints of {sorted(stored)!r:.80}, committed: {steps!r:.80}"
        self.hold("checkpoints", sorted(stored) == sorted(steps), why)

    def check_publish(self) -> None:
        published, end = self.result("publish"), self.history
        if published is None:
            return
        # Only an earlier claim that got past `verify` can have saved what this call found.
        repeated = end.called_before and self.base and published.get("deduplicated") is True
        expected: Row = {"receipt": self.receipt_text, "deduplicated": repeated}
        if end.status == "effect_confirmed":
            expected = {"receipt": self.receipt_text, "fresh_write_performed": False}
        elif not self.base:
            expected["fresh_write_performed"] = True
        why = f"the publish checkpoint had to be {encode(expected)}: was the job id used before?"
        self.hold("publish", encode(published) == encode(expected), why)

    def check_receipt(self) -> None:
        end, found = self.history, readable(self.receipts).get(self.op)
        saved = end.status in ("succeeded", "effect_confirmed") or end.effect == "found"
        self.hold("receipt", found or not saved, "no receipt under the operation key")
        possible = end.sent or (self.base and "verify" in end.steps)
        self.hold(
            "receipt",
            possible or not found,
            "a receipt where no call can have begun: was the job id used before?",
        )
        if not (found and possible):
            return
        payload_hash, text = found
        self.hold("receipt", text == self.receipt_text, "a receipt of another text")
        said = [row["detail"] for row in self.rows["events"]]
        other = not saved and any(phrase in words for words in said for phrase in OTHER_PAYLOAD)
        own = payload_hash == digest(self.report)
        self.hold("receipt", own or other, "a receipt of another report than the draft")


def fits(value: object, kind: str, required: int) -> bool:
    """Whether a stored value is what its column's declared type promises."""
    if type(value) is str and kind == "TEXT":
        return value.isascii() or value.encode("utf-8", "replace").decode("utf-8") == value
    if type(value) is float and kind == "REAL":
        return math.isfinite(value)
    return (type(value) is int and kind == "INTEGER") or (value is None and not required)


# --- Both databases -------------------------------------------------------------------------------


def judge(local: Connection, receipts: Receipts, job: str | None = None) -> Row:
    """The verdict on what a connection shows, of one job or of all; Refused for an unknown job."""
    jobs: list[Row] = []
    keys = set()
    for rows in stored_jobs(local, job):
        case = Case(rows, receipts)
        keys.add(case.op)
        told = {"job_id": str(case.job["id"]), "verdict": case.verdict(), "checks": case.listed()}
        jobs.append(told)
    if job is not None and not jobs:
        raise Refused(f"no job {job!r} in this database")
    whole = Whole(local, receipts, keys if job is None else None)
    verdicts = [told["verdict"] for told in jobs] or ["not_accepted"]
    worst = max(*verdicts, whole.verdict(), key=VERDICTS.index)
    return {
        "passed": worst == "accepted",
        "verdict": worst,
        "jobs": jobs,
        "checks": whole.listed(),
        "semantic_support": "not_scored",
        "model_quality": "not_scored",
    }


class Whole(Checks):
    """The databases as a whole; `keys`: the operation keys of all jobs, None where one is asked."""

    def __init__(self, local: Connection, receipts: Receipts, keys: set[str] | None) -> None:
        rules = dict(DATABASE_RULES)
        if keys is None:
            del rules["receipts_of_no_job"]
        super().__init__(rules)
        self.local, self.receipts, self.keys = local, receipts, keys or set()
        self.judge()

    def check_layout(self) -> None:
        other = ", ".join(deviations(self.local, LOCAL))
        self.hold("layout", not other, f"other than the contract has it: {other}")

    def check_integrity(self) -> None:
        (finding,) = self.local.execute("PRAGMA integrity_check(1)").fetchone()
        self.hold("integrity", finding == "ok", finding)

    def check_foreign_keys(self) -> None:
        stray = self.local.execute("PRAGMA foreign_key_check").fetchone()
        self.hold("foreign_keys", stray is None, f"(table, row, parent): {stray!r}")

    def check_event_sequence(self) -> None:
        query = "SELECT count(*), coalesce(min(seq), 1), coalesce(max(seq), 0) FROM events"
        count, *numbered = self.local.execute(query).fetchone()
        query = "SELECT seq FROM sqlite_sequence WHERE name = 'events'"
        given = [row[0] for row in self.local.execute(query)] or [0]
        why = f"{count} events, numbered from and to {numbered}, numbers given out {given!r:.80}"
        self.hold("event_sequence", numbered == [1, count] and given == [count], why)

    def check_publisher(self) -> None:
        readable(self.receipts)

    def check_receipts_of_no_job(self) -> None:
        strays = sorted(readable(self.receipts).keys() - self.keys, key=repr)
        self.hold("receipts_of_no_job", not strays, f"operation keys {strays!r}")


def stored_jobs(local: Connection, job: str | None) -> Iterator[dict[str, list[Row]]]:
    """The rows of each job, or of one, by table; ids go as bytes: not all text is UTF-8."""

    def rows(query: str, *ids: object) -> list[Row]:
        keys = [i.encode("utf-8", "surrogateescape") if isinstance(i, str) else b"" for i in ids]
        cursor = local.execute(query, keys)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    queries = {
        "checkpoints": "SELECT * FROM checkpoints WHERE job_id = CAST(? AS TEXT)",
        "events": "SELECT * FROM events WHERE job_id = CAST(? AS TEXT) ORDER BY seq",
        "approvals": "SELECT * FROM approvals WHERE job_id = CAST(? AS TEXT)",
    }
    if not rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'approvals'"):
        queries["approvals"] = "SELECT 1 WHERE 0 AND ?"
    one = "SELECT * FROM jobs WHERE id = CAST(? AS TEXT)"
    for found in rows("SELECT * FROM jobs") if job is None else rows(one, job):
        rest = {table: rows(query, found["id"]) for table, query in queries.items()}
        yield {"jobs": [found], **rest}


def describe(connection: Connection) -> dict[str, tuple[Any, ...]]:
    """Each table with its columns and references; all else but an index by its type alone."""
    shape = 'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)'
    references = 'SELECT "from", "table", "to", on_delete FROM pragma_foreign_key_list(?)'
    query = "SELECT name, type FROM sqlite_master WHERE type <> 'index' AND name <> 'sqlite_stat1'"
    found = {}
    for name, kind in connection.execute(query).fetchall():
        parts = (shape, references) if kind == "table" else ()
        found[name] = (kind, *(connection.execute(sql, (name,)).fetchall() for sql in parts))
    return found


def columns(described: tuple[Any, ...]) -> list[str]:
    """The names of a described table's columns, in order; none of what is no table."""
    return [column[0] for column in described[1]] if described[1:] else []


@functools.cache
def contract(kind: str) -> dict[str, tuple[Any, ...]]:
    """What `describe` says of a database that is as the contract has it."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(LAYOUT[kind])
        return describe(connection)


def deviations(connection: Connection, kind: str) -> list[str]:
    """What is missing, too much, or other than it should be; approvals come with their runtime."""
    found, wanted = describe(connection), contract(kind)
    names = sorted(found.keys() | wanted.keys() - {"approvals"})
    return [name for name in names if found.get(name) != wanted.get(name)]


# --- Looking at files -----------------------------------------------------------------------------


class Refused(Exception):
    """No verdict: the reason for a person, and the exit code."""

    def __init__(self, reason: str, code: int = 1) -> None:
        super().__init__(reason)
        self.code = code


def connect(path: str, mode: str) -> Connection:
    """A connection that only looks; text that is not UTF-8 is read all the same."""
    plain = b"/-_.~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    name = "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in os.fsencode(path))
    connection = sqlite3.connect(
        f"file:{name}?mode={mode}", timeout=LOCK_SECONDS, isolation_level=None, uri=True
    )
    connection.text_factory = functools.partial(str, encoding="utf-8", errors="surrogateescape")
    connection.execute("PRAGMA query_only=ON")
    return connection


def recognise(connection: Connection, kind: str, what: str) -> None:
    """Refused unless the database is stamped as one of this kind, in this version."""
    (stamp,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if stamp != STAMPS[kind]:
        raise Refused(f"{what} is {'foreign' if stamp else 'empty or foreign'}: not of the lab")
    if version != 1:
        raise Refused(f"{what} was written by {'a newer' if version > 1 else 'an older'} version")


def mode_for(path: str, kind: str, what: str) -> str:
    """How to open a file: nothing is created, and no log is folded into a file that is not ours."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        raise Refused(f"no such {what}") from None
    except (OSError, ValueError) as error:
        raise Refused(f"{what} cannot be read: {getattr(error, 'strerror', error)}") from None
    if not regular:
        raise Refused(f"{what} is no regular file")
    logs = [end for end in ("-wal", "-journal") if os.path.exists(path + end)]
    if not (os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)):
        if logs:
            raise Refused(f"{what} needs recovery and cannot be written: copy it with its log")
        return "ro&immutable=1"
    if logs:
        peek(path, kind, what)
    return "rw"


def peek(path: str, kind: str, what: str) -> None:
    """As recognise, under the locks of the living, through a connection that folds no log in."""
    try:
        with contextlib.closing(connect(path, "ro")) as connection:
            recognise(connection, kind, what)
    except sqlite3.OperationalError as error:
        if "readonly" not in str(error):
            raise
        # A hot journal: whoever wrote is dead, so there is no lock to respect.
        with contextlib.closing(connect(path, "ro&immutable=1")) as bare:
            recognise(bare, kind, what)


@contextlib.contextmanager
def looking(path: str, kind: str, named: str) -> Iterator[Connection]:
    """A connection to a database of this kind; Refused, in words for a person, where it is none."""
    what = f"{kind} {named!r}"
    try:
        with contextlib.closing(connect(path, mode_for(path, kind, what))) as connection:
            recognise(connection, kind, what)
            found = describe(connection)
            for name, wanted in contract(kind).items():
                has = columns(found.get(name, ()))
                if has != columns(wanted) and (has or name != "approvals"):
                    raise Refused(f"{what} has another table {name!r} than this version")
            yield connection
    except sqlite3.Error as error:  # by its message: Python 3.10 gives no error code
        if "locked" in str(error) or "locking protocol" in str(error):
            raise Refused(f"{what} is busy: another process holds its lock; try again", 3) from None
        damaged = "malformed" in str(error) or "not a database" in str(error)
        raise Refused(f"{what} {'is damaged' if damaged else 'cannot be read'}: {error}") from None


def read_receipts(path: str) -> Receipts:
    """The receipts, or why there are none to read; Refused while another process has the lock."""
    try:
        with looking(path, PUBLISHER, path) as publisher:
            return whole_receipts(publisher)
    except Refused as reason:
        if reason.code != 1:
            raise
        return f"{reason}; restore it"


def whole_receipts(publisher: Connection) -> Receipts:
    """The receipts, or what is wrong with their database."""
    (found,) = publisher.execute("PRAGMA integrity_check(1)").fetchone()
    wrong = ", ".join(deviations(publisher, PUBLISHER)) or found
    if wrong != "ok":
        return f"the publisher database is damaged ({wrong}); restore it"
    return {op: (sent, text) for op, sent, text in publisher.execute("SELECT * FROM receipts")}


def evaluate(path: str, job: str | None = None) -> Row:
    """The verdict on the database at path, or on one of its jobs; Refused where there is none."""
    real = path if "\0" in path else os.path.realpath(path)
    with looking(real, LOCAL, path) as local:
        for _ in range(LOOKS):
            # The databases share no transaction: a look counts only if no one wrote meanwhile.
            version = local.execute("PRAGMA data_version").fetchone()
            receipts = read_receipts(real + ".publisher.sqlite")
            local.execute("BEGIN")
            verdict = judge(local, receipts, job)
            local.execute("COMMIT")
            if local.execute("PRAGMA data_version").fetchone() == version:
                return verdict
    raise Refused(f"{LOCAL} {path!r} is being written to: look again", 3)


# --- Command line ---------------------------------------------------------------------------------


def shown(text: str, encoding: str) -> str:
    """Control and format characters, and what a console cannot show, as escapes."""
    import unicodedata

    def escape(char: str) -> str:
        hidden = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        with contextlib.suppress(UnicodeError):
            if not hidden and char.encode(encoding).decode(encoding) == char:
                return char
        units = char.encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))

    odd = {char for char in set(text) if not (char.isascii() and char.isprintable())}
    return text.translate({ord(char): escape(char) for char in odd})


def write(stream: TextIO | None, text: str) -> None:
    """All of the text, line by line as it stands; OSError where it cannot arrive."""
    if stream is None:
        raise OSError("it is closed")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = "\n".join(shown(line, encoding) for line in text.split("\n")) + "\n"
    try:
        if hasattr(stream, "buffer"):
            rest = memoryview(text.encode(encoding))
            while rest:  # unbuffered, a write may take only a part, and tells nobody but us
                taken = stream.buffer.write(rest)
                if not taken:
                    raise BlockingIOError("the reader is too slow")
                rest = rest[taken:]
        else:
            stream.write(text)
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):  # nothing left for the interpreter's end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line, and help that may meet a closed pipe."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; see {self.prog} --help", 2)

    def print_help(self, file: Any = None) -> None:
        write(sys.stdout, self.format_help().rstrip())


def on_ctrl_c(handler: Any) -> None:
    """What Ctrl-C does to this process, unless its parent ignores it or the judge is a guest."""
    own = (signal.SIG_DFL, signal.default_int_handler)
    if __name__ == "__main__" and signal.getsignal(signal.SIGINT) in own:
        signal.signal(signal.SIGINT, handler)


def command_line() -> Parser:
    parser = Parser(
        prog="evaluate.py",
        description="Judge the jobs of one lab from its two databases alone.",
        epilog="example: python3 evaluate.py --db lab.sqlite --job demo",
        allow_abbrev=False,
    )
    parser.add_argument("--db", default="lab.sqlite", help="local database (default: %(default)s)")
    parser.add_argument("--job", help="judge this job only (default: every job)")
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdict; 0 where it is passed, 1 where not, 2 usage, 3 busy."""
    code = 0
    try:
        on_ctrl_c(signal.default_int_handler)
        parser = command_line()
        options = parser.parse_args(argv)
        if [] in vars(options).values():  # what Python 3.11 makes of `--db=--`
            parser.error("an option expects a value")
        if options.version:
            write(sys.stdout, f"recovery lab {VERSION}")
            return code
        report = evaluate(options.db, options.job)
        code = 0 if report["passed"] else 1
        write(sys.stdout, json.dumps(report, ensure_ascii=False, indent=2))
        return code
    except BrokenPipeError:
        return code  # the reader has gone; the exit code still tells the verdict
    except Refused as reason:
        words, code = str(reason), reason.code
    except OSError as error:
        words, code = f"the answer could not be written: {error.strerror or error}", 1
    except KeyboardInterrupt:
        words, code = "interrupted", 130
    finally:
        on_ctrl_c(signal.SIG_DFL)
    with contextlib.suppress(OSError):
        write(sys.stderr, shown(f"error: {words}", "utf-8"))
    return code


if __name__ == "__main__":
    sys.exit(main())
