"""Jobs of every kind for the timeline's tests, made in process by the real runtimes.

Each function plays one story on a manual clock and leaves its two databases behind.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sqlite3
import tempfile
from collections.abc import Callable
from typing import Any

import runtime
from approval_runtime import ApprovalRuntime
from provider import LabError, PermanentError, RetryableError
from runtime import InjectedCrash, Lease, Runtime

JOB = "report-001"
BEGIN = 1790327642.118
TAKES = {"collect": 0.03, "draft": 0.48, "verify": 0.05}


class Clock:
    """Moves by a few milliseconds at each look, and further when told to."""

    def __init__(self) -> None:
        self.at = BEGIN

    def __call__(self) -> float:
        self.at += 0.004
        return self.at

    def go(self, seconds: float) -> None:
        self.at += seconds


class Bench:
    """One job in one database, the clock it lives by, and trouble that waits for a step."""

    def __init__(self, folder: str, name: str, base: type[Runtime] = Runtime) -> None:
        self.path = os.path.join(folder, f"{name}.sqlite")
        self.clock = Clock()
        self.trouble: dict[str, list[LabError]] = {}
        self.interlude: dict[str, Callable[[], object]] = {}
        bench = self

        class Slow(base):  # type: ignore[misc, valid-type]
            def _execute(self, lease: Lease, step: str, done: Any, memory: str) -> Any:
                bench.clock.go(TAKES.get(step, 0.0))
                if bench.trouble.get(step):
                    raise bench.trouble[step].pop()
                result = super()._execute(lease, step, done, memory)
                bench.interlude.pop(step, lambda: None)()
                return result

        self.kind: Callable[..., Runtime] = Slow

    def open(self, **options: Any) -> Runtime:
        return self.kind(self.path, clock=self.clock, **options)

    def submit(self, memory: bool = False, **options: Any) -> None:
        with self.open() as lab:
            if memory:
                lab.memory_put("Prefer short sentences.")
            lab.submit(JOB, **options)
        self.clock.go(1.9)

    def run(self, owner: str, fault: str | None = None, lease: float = 30.0) -> None:
        """Run; a fault ends it as a dead process would, a lost lease is only lost."""
        gone = contextlib.suppress(InjectedCrash, runtime.LostLease)
        with self.open(fault=fault, lease_seconds=lease) as lab, gone:
            lab.run(JOB, owner)

    def crash(self, fault: str, owner: str = "w-7f2a", wait: float = 3.1) -> None:
        self.run(owner, fault, lease=2.0)
        self.clock.go(wait)

    def cancel(self) -> None:
        with self.open() as lab:
            lab.cancel(JOB)

    def decide(self, verb: str = "approve") -> None:
        with self.open() as lab:
            binding = lab.inspect(JOB)["approval"]["binding_hash"]
            getattr(lab, verb)(JOB, binding, "reviewer")

    def reconcile(self, times: int = 1, every: float = 0.0) -> None:
        with self.kind(self.path, clock=self.clock) as lab:
            for _ in range(times):
                self.clock.go(every)
                lab.reconcile(JOB)  # type: ignore[attr-defined]

    def edit(
        self, statement: str, values: tuple[object, ...] = (), publisher: bool = False
    ) -> None:
        """Change a database behind the lab's back."""
        path = self.path + (".publisher.sqlite" if publisher else "")
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute(statement, values)


def _base(folder: str, name: str) -> Bench:
    bench = Bench(folder, name)
    bench.submit()
    return bench


def _waiting(folder: str, name: str) -> Bench:
    bench = Bench(folder, name, ApprovalRuntime)
    bench.submit()
    bench.run("w-7f2a")
    return bench


def _approved(folder: str, name: str, fault: str | None = None) -> Bench:
    bench = _waiting(folder, name)
    bench.clock.go(38.8)
    bench.decide()
    bench.clock.go(6.55)
    if fault:
        bench.crash(fault, "w-c019", 4.2)
    return bench


queued, waiting, approved = _base, _waiting, _approved


def normal(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.run("w-7f2a")
    return bench


def crash_after_claim(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.crash("after_claim")
    bench.run("w-c019")
    return bench


def crash_after_collect(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.crash("after_collect")
    bench.run("w-c019")
    return bench


def effect_commit_gap(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.crash("after_effect")
    bench.run("w-c019")
    return bench


def before_effect(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.crash("before_effect")
    bench.run("w-c019")
    return bench


def stale_worker(folder: str, name: str) -> Bench:
    """Generation 1 pauses inside draft past its lease; generation 2 does the rest."""
    bench = _base(folder, name)

    def meanwhile() -> None:
        bench.clock.go(3.0)
        bench.run("w-c019")

    bench.interlude["draft"] = meanwhile
    bench.run("w-7f2a", lease=2.0)
    return bench


def three_claims(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.crash("after_collect", "w-1")
    bench.crash("after_effect", "w-2", 2.5)
    bench.run("w-3")
    return bench


def three_effects(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.crash("after_effect", "w-1")
    bench.crash("after_effect", "w-2")
    bench.run("w-3")
    return bench


def budget_spent(folder: str, name: str, fault: str = "after_effect") -> Bench:
    bench = _base(folder, name)
    for owner in ("w-1", "w-2", "w-3"):
        bench.crash(fault, owner)
    bench.run("w-4")
    return bench


def budget_spent_unknown(folder: str, name: str) -> Bench:
    return budget_spent(folder, name, "before_effect")


def retry_waiting(folder: str, name: str, after: float | None = None) -> Bench:
    bench = _base(folder, name)
    trouble = RetryableError("HTTP 429: slow down, please")
    trouble.retry_after = after
    bench.trouble["draft"] = [trouble]
    bench.run("w-7f2a")
    return bench


def retry_then_success(folder: str, name: str) -> Bench:
    bench = retry_waiting(folder, name)
    bench.clock.go(2.2)
    bench.run("w-c019")
    return bench


def retry_after(folder: str, name: str) -> Bench:
    bench = retry_waiting(folder, name, 47.0)
    bench.clock.go(51)
    bench.run("w-c019")
    return bench


def retries_spent(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.trouble["draft"] = [RetryableError("HTTP 503: overloaded") for _ in range(3)]
    for owner in ("w-1", "w-2", "w-3"):
        bench.run(owner)
        bench.clock.go(5)
    return bench


def permanent(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.trouble["draft"] = [PermanentError("HTTP 401: invalid api key")]
    bench.run("w-7f2a")
    return bench


def memory_revoked(folder: str, name: str, fault: str = "after_draft") -> Bench:
    bench = Bench(folder, name)
    bench.submit(memory=True)
    bench.crash(fault)
    with bench.open() as lab:
        lab.memory_forget()
    bench.run("w-c019")
    return bench


def memory_revoked_after_effect(folder: str, name: str) -> Bench:
    return memory_revoked(folder, name, "after_effect")


def cancel_queued(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.cancel()
    return bench


def cancel_mid_run(folder: str, name: str, fault: str = "after_draft") -> Bench:
    bench = _base(folder, name)
    bench.run("w-7f2a", fault)
    bench.clock.go(0.7)
    bench.cancel()
    return bench


def cancel_after_effect(folder: str, name: str) -> Bench:
    return cancel_mid_run(folder, name, "after_effect")


def cancel_then_saved(folder: str, name: str) -> Bench:
    """The cancel comes first, the paused worker's report arrives all the same."""
    bench = _base(folder, name)
    bench.run("w-7f2a", "before_effect")
    bench.cancel()
    with bench.open() as lab:
        draft = lab.inspect(JOB)["checkpoints"]["draft"]
        report = {"summary": draft["summary"], "citations": draft["citations"]}
        runtime.save_receipt(lab.publisher_path, JOB, report, 1.0)
    return bench


def live(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.run("w-7f2a", "after_collect")
    return bench


def live_sending(folder: str, name: str) -> Bench:
    bench = _base(folder, name)
    bench.run("w-7f2a", "after_effect")
    return bench


def approval(folder: str, name: str) -> Bench:
    bench = _approved(folder, name)
    bench.run("w-c019")
    return bench


def rejected(folder: str, name: str) -> Bench:
    bench = _waiting(folder, name)
    bench.clock.go(12)
    bench.decide("reject")
    return bench


def approval_expired(folder: str, name: str) -> Bench:
    bench = _waiting(folder, name)
    bench.clock.go(140)
    bench.run("w-c019")
    return bench


def expired_before_dispatch(folder: str, name: str) -> Bench:
    bench = _approved(folder, name)
    bench.clock.go(100)
    bench.run("w-c019")
    return bench


def drift(folder: str, name: str) -> Bench:
    bench = _approved(folder, name)
    bench.edit("UPDATE checkpoints SET payload = replace(payload, 'the', 'teh') WHERE step='draft'")
    bench.run("w-c019")
    return bench


def approval_cancelled(folder: str, name: str) -> Bench:
    bench = _approved(folder, name)
    bench.cancel()
    return bench


def approved_effect(folder: str, name: str) -> Bench:
    bench = _approved(folder, name, "after_effect")
    bench.reconcile()
    return bench


def approved_before_effect(folder: str, name: str) -> Bench:
    bench = _approved(folder, name, "before_effect")
    bench.reconcile()
    return bench


def reconcile_many(folder: str, name: str) -> Bench:
    bench = _approved(folder, name, "before_effect")
    bench.reconcile(40, 60.0)
    return bench


def dispatched(folder: str, name: str) -> Bench:
    """A crash after the effect that nobody has looked at since."""
    return _approved(folder, name, "after_effect")


def parked_by_cancel(folder: str, name: str) -> Bench:
    bench = _approved(folder, name)
    bench.run("w-c019", "after_effect", lease=20.0)
    bench.clock.go(1.2)
    bench.cancel()
    bench.clock.go(22)
    bench.reconcile()
    return bench


def parked_by_claim(folder: str, name: str) -> Bench:
    bench = _approved(folder, name, "after_effect")
    bench.run("w-3")
    return bench


def heartbeat(folder: str, name: str, times: int = 25) -> Bench:
    """Renewals as a heartbeat makes them, written straight into the table: thousands are slow."""
    bench = _base(folder, name)
    bench.run("w-7f2a", "after_collect")
    renewals = []
    for _ in range(times):
        bench.clock.go(5)
        renewals.append((JOB, bench.clock.at, 1, "lease_renewed", repr(bench.clock.at + 30)))
    with contextlib.closing(sqlite3.connect(bench.path)) as database, database:
        insert = "INSERT INTO events (job_id, at, generation, kind, detail) VALUES (?, ?, ?, ?, ?)"
        database.executemany(insert, renewals)
        database.execute("UPDATE jobs SET lease_until = ?, deadline = 9e9", (bench.clock.at + 30,))
    bench.clock.go(40)
    bench.run("w-c019")
    return bench


def clock_back(folder: str, name: str) -> Bench:
    """The clock is set back an hour while the draft is made, and a second after the verify."""
    bench = _base(folder, name)
    bench.interlude["draft"] = lambda: bench.clock.go(-3600)
    bench.interlude["publish"] = lambda: bench.clock.go(-1)
    bench.run("w-7f2a")
    return bench


def older_receipt(folder: str, name: str) -> Bench:
    bench = normal(folder, name)
    os.remove(bench.path)
    bench.submit()
    bench.run("w-c019")
    return bench


def foreign_receipt(folder: str, name: str) -> Bench:
    bench = normal(folder, name)
    os.remove(bench.path)
    bench.submit(sources=[{"id": "X", "text": "Another text altogether."}])
    bench.run("w-c019")
    return bench


def service_missing(folder: str, name: str) -> Bench:
    bench = effect_commit_gap(folder, name)
    os.remove(bench.path + ".publisher.sqlite")
    return bench


def service_damaged(folder: str, name: str) -> Bench:
    bench = dispatched(folder, name)
    with open(bench.path + ".publisher.sqlite", "wb") as file:
        file.write(b"no database at all " * 300)
    return bench


def receipt_gone(folder: str, name: str) -> Bench:
    bench = normal(folder, name)
    bench.edit("DELETE FROM receipts", publisher=True)
    return bench


def forged(folder: str, name: str) -> Bench:
    bench = cancel_mid_run(folder, name)
    bench.edit("UPDATE jobs SET status = 'succeeded'")
    return bench


def no_history(folder: str, name: str) -> Bench:
    bench = normal(folder, name)
    bench.edit("DELETE FROM events")
    return bench


def memory_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder where a sync costs nothing, if this machine has one."""
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(dir=fast)


@functools.cache
def _made() -> tempfile.TemporaryDirectory[str]:
    folder = memory_folder()
    atexit.register(folder.cleanup)
    return folder


@functools.cache
def made(name: str) -> str:
    """The path of a job's database that no test changes: made once."""
    bench: Bench = globals()[name](_made().name, name)
    return bench.path


NASTY = (
    "<script>document.title='owned'</script>\"'&amp;]]></svg><!--\u202eevil\u2066\u200b\x1b[2J\x00"
    "\r\n\u2028Z" + "\u0301" * 9 + "\ufdfd\U00012031\u05e9\u05dc\ud83d"[:-1] + "x" * 100_000
)


def hostile(folder: str, name: str) -> Bench:
    """Every field that a picture can show holds what no field should."""
    bench = _approved(folder, name, "before_effect")
    for table, column in (("jobs", "owner"), ("jobs", "error"), ("approvals", "decided_by")):
        bench.edit(f"UPDATE {table} SET {column} = ?", (NASTY,))  # noqa: S608
    bench.edit("UPDATE jobs SET id = ?, status = ?", (NASTY[:190], NASTY))
    for table in ("events", "checkpoints", "approvals"):
        bench.edit(f"UPDATE {table} SET job_id = (SELECT id FROM jobs)")  # noqa: S608
    bench.edit("UPDATE events SET detail = ? WHERE detail NOT LIKE '{%'", (NASTY,))
    bench.edit("UPDATE events SET kind = ? WHERE seq = 4", (NASTY,))
    bench.edit("UPDATE events SET detail = CAST(? AS TEXT) WHERE seq = 6", (b"\xff\xed\xa0\xbd",))
    bench.edit("UPDATE events SET at = '<u>when', generation = 'who' WHERE seq = 3")
    bench.edit("UPDATE events SET at = 9e999 WHERE seq = 5")
    bench.edit("UPDATE events SET detail = x'00ff' WHERE seq = 7")
    bench.edit("UPDATE jobs SET generation = '<b>', lease_until = 'soon', spec = '[1'")
    bench.edit("UPDATE approvals SET binding_hash = x'00', expires_at = 'never'")
    return bench
