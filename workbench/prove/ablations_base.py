"""The base lab with one mechanism taken out, one method at a time.

Each function returns what it would put in place of the lab's own: (owner, name, replacement). The
replacement is the method as the lab has it, less the one thing that the ablation is named for.
Limit: a change that needs two methods at once is two ablations, or one marked as a pair.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from workbench.prove.history import CERTAIN, INVARIANTS, LEASE, ONE
from workbench.prove.lives import Lab

Patch = tuple[object, str, object]


class Ablation(NamedTuple):
    """One mechanism taken out.

    masked: why nothing can notice it; then no instrument must. harm: the invariant that shows what
    the mechanism is for, where another one would be broken before it.
    """

    name: str
    words: str
    patches: Callable[[Lab], list[Patch]]
    approval: bool = False
    masked: str = ""
    harm: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """The invariants that count as noticed."""
        return (self.harm,) if self.harm else tuple(INVARIANTS)

    def of(self, findings: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those findings that count."""
        return [each for each in findings if not self.harm or each[0] == self.harm]


def _guarded(lab: Lab, allows: Callable[[Any, Any, str, int], bool]) -> list[Patch]:
    """A guard that lets through what `allows` says of (runtime, row, owner, generation)."""
    real = lab.runtime.Runtime.guard

    def guard(self: Any, job: str, owner: str, generation: int) -> Any:
        row = self._own(job)
        return row if allows(self, row, owner, generation) else real(self, job, owner, generation)

    return [(lab.runtime.Runtime, "guard", guard)]


def no_guard(lab: Lab) -> list[Patch]:
    return _guarded(lab, lambda self, row, owner, generation: True)


def guard_without_lease(lab: Lab) -> list[Patch]:
    return _guarded(
        lab,
        lambda self, row, owner, generation: (
            (row.status, row.owner, row.generation) == ("running", owner, generation)
        ),
    )


def guard_without_owner(lab: Lab) -> list[Patch]:
    return _guarded(
        lab,
        lambda self, row, owner, generation: (
            (row.status, row.generation) == ("running", generation) and row.lease_until > self.now
        ),
    )


def guard_without_generation(lab: Lab) -> list[Patch]:
    return _guarded(
        lab,
        lambda self, row, owner, generation: (
            (row.status, row.owner) == ("running", owner) and row.lease_until > self.now
        ),
    )


def guard_without_owner_and_generation(lab: Lab) -> list[Patch]:
    return _guarded(
        lab,
        lambda self, row, owner, generation: row.status == "running" and row.lease_until > self.now,
    )


def guard_without_status(lab: Lab) -> list[Patch]:
    return _guarded(
        lab,
        lambda self, row, owner, generation: (
            (row.owner, row.generation) == (owner, generation) and row.lease_until > self.now
        ),
    )


def guard_in_own_transaction(lab: Lab) -> list[Patch]:
    def commit_step(
        self: Any, job: str, owner: str, generation: int, step: str, payload: Any
    ) -> None:
        text = lab.runtime.encode(payload)
        with self._transaction():
            row = self.guard(job, owner, generation)
        with self._transaction():
            self._check_limits(row)
            self._checkpoint(job, generation, step, text)
            if step == lab.runtime.STEPS[-1]:
                self._finish(row, payload)
            else:
                self._renew(lab.runtime.Lease(job, owner, generation))

    return [(lab.runtime.Runtime, "commit_step", commit_step)]


def event_split(lab: Lab) -> list[Patch]:
    """The event of a step in a transaction after its checkpoint's."""

    def commit_step(
        self: Any, job: str, owner: str, generation: int, step: str, payload: Any
    ) -> None:
        text = lab.runtime.encode(payload)
        with self._transaction():
            row = self.guard(job, owner, generation)
            self._check_limits(row)
            self._db.execute("INSERT INTO checkpoints VALUES (?, ?, ?)", (job, step, text))
        with self._transaction():
            row = self.guard(job, owner, generation)
            self._event(job, generation, "step_committed", step)
            if step == lab.runtime.STEPS[-1]:
                self._finish(row, payload)
            else:
                self._renew(lab.runtime.Lease(job, owner, generation))

    return [(lab.runtime.Runtime, "commit_step", commit_step)]


def status_split(lab: Lab) -> list[Patch]:
    """The job's status in a transaction after the last checkpoint's."""

    def commit_step(
        self: Any, job: str, owner: str, generation: int, step: str, payload: Any
    ) -> None:
        text = lab.runtime.encode(payload)
        with self._transaction():
            row = self.guard(job, owner, generation)
            self._check_limits(row)
            self._checkpoint(job, generation, step, text)
            if step != lab.runtime.STEPS[-1]:
                self._renew(lab.runtime.Lease(job, owner, generation))
                return
        with self._transaction():
            self._finish(self.guard(job, owner, generation), payload)

    return [(lab.runtime.Runtime, "commit_step", commit_step)]


def no_checkpoints(lab: Lab) -> list[Patch]:
    """A recovery that does not read what is done."""
    real = lab.runtime.read_checkpoints

    def read_checkpoints(connection: Any, job: str) -> Any:
        done = real(connection, job)
        return {} if "publish" not in done else done

    return [(lab.runtime, "read_checkpoints", read_checkpoints)]


def claim_without_lease_check(lab: Lab) -> list[Patch]:
    real = lab.runtime.Runtime._ready

    def _ready(self: Any, row: Any) -> Any:
        return row.status == "running" or real(self, row)

    return [(lab.runtime.Runtime, "_ready", _ready)]


def claim_without_budget(lab: Lab) -> list[Patch]:
    return [(lab.runtime, "MAX_CLAIMS", 99)]


def claim_without_generation(lab: Lab) -> list[Patch]:
    real = lab.runtime.Runtime._move

    def _move(self: Any, row: Any, status: str, **changes: Any) -> None:
        if status == "running":
            changes["generation"] = row.generation or 1
        real(self, row, status, **changes)

    return [(lab.runtime.Runtime, "_move", _move)]


def cancel_keeps_generation(lab: Lab) -> list[Patch]:
    def _cancel(self: Any, row: Any, effect: Any) -> None:
        self._end(row, "cancelled", "cancelled", "", effect)

    return [(lab.runtime.Runtime, "_cancel", _cancel)]


def no_renewal(lab: Lab) -> list[Patch]:
    real = lab.runtime.Runtime._renew

    def _renew(self: Any, lease: Any) -> Any:
        row = self._own(lease.job)
        granted = row.lease_until > self.now and row.owner == lease.owner
        return row.lease_until if granted else real(self, lease)

    return [(lab.runtime.Runtime, "_renew", _renew)]


def generation_in_key(lab: Lab) -> list[Patch]:
    real = lab.runtime.save_receipt

    def publish(self: Any, job: str, payload: Any) -> Any:
        key = f"{job}/{self._lease.generation}"
        return real(self.publisher_path, key, payload, 5.0, self.connect)

    return [(lab.runtime.Runtime, "publish", publish)]


def _service(
    lab: Lab, *, look: bool = True, together: bool = True, compare: bool = True
) -> list[Patch]:
    """The report service's side, without the look-up, the one transaction or the comparison."""
    runtime = lab.runtime

    def save_receipt(path: str, job: str, payload: Any, timeout: float, connect: Any) -> Any:
        op, payload_hash = runtime.operation_key(job), runtime.digest(payload)
        receipt = f"report-{op[:12]}"
        try:
            with runtime.naming(runtime.PUBLISHER, path):
                publisher = connect(runtime._uri(path, "mode=rw"), timeout)
                try:
                    if together:
                        publisher.execute("BEGIN IMMEDIATE")
                    found = publisher.execute("SELECT * FROM receipts WHERE op = ?", (op,))
                    row = found.fetchone() if look else None
                    if row is None:
                        stored = op, payload_hash, receipt
                        publisher.execute("INSERT INTO receipts VALUES (?, ?, ?)", stored)
                    if together:
                        publisher.execute("COMMIT")
                finally:
                    publisher.close()
        except runtime.Busy as error:
            raise runtime.RetryableError(str(error)) from error
        except runtime.StorageError as error:
            raise runtime.PublisherUnavailable(str(error)) from error
        if compare and row is not None and row[1] != payload_hash:
            raise runtime.PermanentError("idempotency key reused with different payload")
        return {"receipt": receipt, "deduplicated": row is not None}

    return [(runtime, "save_receipt", save_receipt)]


def service_without_lookup(lab: Lab) -> list[Patch]:
    return _service(lab, look=False)


def service_without_transaction(lab: Lab) -> list[Patch]:
    return _service(lab, together=False)


def service_without_comparison(lab: Lab) -> list[Patch]:
    return _service(lab, compare=False)


def _keyless(lab: Lab) -> Patch:
    runtime = lab.runtime
    table = {"receipts": runtime.RECEIPTS["receipts"].replace(" PRIMARY KEY", "")}
    return runtime, "PUBLISHER", runtime.PUBLISHER._replace(tables=table)


def service_without_key(lab: Lab) -> list[Patch]:
    return [_keyless(lab)]


def service_without_transaction_and_key(lab: Lab) -> list[Patch]:
    return [*service_without_transaction(lab), _keyless(lab)]


def memory_unchecked(lab: Lab) -> list[Patch]:
    real = lab.runtime.Runtime._check_limits

    def _check_limits(self: Any, row: Any) -> Any:
        return real(self, row._replace(memory_rev=0))

    return [(lab.runtime.Runtime, "_check_limits", _check_limits)]


def _starting(lab: Lab, *, guarded: bool, limited: bool) -> list[Patch]:
    """A step's start with the fence or the limits alone; its commit keeps both."""
    runtime = lab.runtime

    def _start(self: Any, lease: Any, step: str) -> Any:
        with self._transaction("BEGIN"):
            row = self.guard(*lease) if guarded else self._own(lease.job)
            self._lease_until = row.lease_until
            memory = runtime.read_memory(self._db, row.scope)
            text = memory.value if row.memory_rev and memory else ""
            return runtime.Start(json.loads(row.spec), self._check_limits(row) if limited else text)

    return [(runtime.Runtime, "_start", _start)]


def start_unguarded(lab: Lab) -> list[Patch]:
    return _starting(lab, guarded=False, limited=True)


def limits_unchecked_at_start(lab: Lab) -> list[Patch]:
    return _starting(lab, guarded=True, limited=False)


def limits_unchecked_at_commit(lab: Lab) -> list[Patch]:
    """Memory and deadline are looked at before a step, not when it commits."""

    def commit_step(
        self: Any, job: str, owner: str, generation: int, step: str, payload: Any
    ) -> None:
        text = lab.runtime.encode(payload)
        with self._transaction():
            row = self.guard(job, owner, generation)
            self._checkpoint(job, generation, step, text)
            if step == lab.runtime.STEPS[-1]:
                self._finish(row, payload)
            else:
                self._renew(lab.runtime.Lease(job, owner, generation))

    return [(lab.runtime.Runtime, "commit_step", commit_step)]


def deadline_unchecked(lab: Lab) -> list[Patch]:
    real = lab.runtime.Runtime._check_limits

    def _check_limits(self: Any, row: Any) -> Any:
        return real(self, row._replace(deadline=self.now + 1))

    return [(lab.runtime.Runtime, "_check_limits", _check_limits)]


def effect_unsaid(lab: Lab) -> list[Patch]:
    """An end after verify that does not look for a hidden effect."""
    return [(lab.runtime.Runtime, "_may_have_published", lambda self, job: False)]


def absence_as_fact(lab: Lab) -> list[Patch]:
    """An end that says nothing where no receipt was seen."""
    real = lab.runtime.Runtime._event

    def _event(self: Any, job: str, generation: int, kind: str, detail: str) -> None:
        if kind != "effect_unknown":
            real(self, job, generation, kind, detail)

    return [(lab.runtime.Runtime, "_event", _event)]


def effect_of_any_report(lab: Lab) -> list[Patch]:
    """What stands under the key is the effect, whatever report it is of."""
    real = lab.runtime.Runtime._look_up

    def _look_up(self: Any, job: str) -> Any:
        effect = real(self, job)
        if effect.receipt or effect.trouble:
            return effect
        receipts = self._receipts(job)
        return effect._replace(receipt=receipts[0]["receipt"]) if receipts else effect

    return [(lab.runtime.Runtime, "_look_up", _look_up)]


def _retrying(lab: Lab, late: Callable[[Any, Any, Any], float | None]) -> list[Patch]:
    """Another time for a retry than the lab's, by (runtime, row, the lab's method)."""
    real = lab.runtime.Runtime._retry_at

    def _retry_at(self: Any, row: Any, error: Any) -> float | None:
        return late(self, row, lambda row: real(self, row, error))

    return [(lab.runtime.Runtime, "_retry_at", _retry_at)]


def retry_without_delay(lab: Lab) -> list[Patch]:
    return _retrying(lab, lambda self, row, real: self.now if real(row) else None)


def retry_past_deadline(lab: Lab) -> list[Patch]:
    return _retrying(lab, lambda self, row, real: real(row._replace(deadline=math.inf)))


def settle_unguarded(lab: Lab) -> list[Patch]:
    runtime = lab.runtime

    def _settle(self: Any, lease: Any, error: Any) -> None:
        effect = self._hidden_effect(lease.job)
        with self._transaction():
            row = self._own(lease.job)
            if row.status == "running":
                self._record(row, error, effect)

    return [(runtime.Runtime, "_settle", _settle)]


GENERATION_MASKS = (
    "masked by the generation, which one claim and so one owner has; the pair of both is caught"
    " (guard-without-owner-and-generation)"
)
STATUS_MASKS = (
    "masked by the owner, which is NULL in every status but running, and by the generation, which a"
    " cancel raises: whoever else leaves running is the holder itself, and it writes nothing after"
)
KEY_MASKS = (
    "masked by the receipts' primary key, which refuses the second insert; the pair of both is"
    " caught (service-without-transaction-and-key)"
)
LOOKUP_MASKS = (
    "masked by the look-up in the same transaction as the insert; the pair of both is caught"
    " (service-without-transaction-and-key)"
)
START_MASKS = (
    "masked by the same look at the commit, which writes nothing; harmless as far as rows can tell:"
    " what was sent in between stands under the job's own key, and its end says found or unknown"
)
BASE_ABLATIONS = (
    Ablation("no-guard", "the fence lets everyone through", no_guard),
    Ablation("guard-without-lease", "the lease's end is not looked at", guard_without_lease),
    Ablation(
        "guard-without-owner",
        "the owner is not looked at",
        guard_without_owner,
        False,
        GENERATION_MASKS,
    ),
    Ablation(
        "guard-without-generation",
        "only the owner's name counts",
        guard_without_generation,
        harm=LEASE,
    ),
    Ablation(
        "guard-without-owner-and-generation",
        "any live lease will do",
        guard_without_owner_and_generation,
        harm=LEASE,
    ),
    Ablation(
        "guard-without-status",
        "the status is not looked at",
        guard_without_status,
        False,
        STATUS_MASKS,
    ),
    Ablation(
        "guard-in-own-transaction", "the fence stands before the write", guard_in_own_transaction
    ),
    Ablation("event-split", "a step's event commits after its checkpoint", event_split),
    Ablation("status-split", "the end commits after the last checkpoint", status_split),
    Ablation("no-checkpoints", "a recovery begins at the first step", no_checkpoints),
    Ablation("claim-without-lease-check", "a live lease is taken over", claim_without_lease_check),
    Ablation("claim-without-budget", "a job is claimed for ever", claim_without_budget),
    Ablation("claim-without-generation", "a claim keeps the generation", claim_without_generation),
    Ablation("cancel-keeps-generation", "a cancel fences nobody off", cancel_keeps_generation),
    Ablation("no-renewal", "a lease is granted once", no_renewal),
    Ablation("generation-in-key", "each claim publishes under a key of its own", generation_in_key),
    Ablation("service-without-lookup", "a known key is not looked up", service_without_lookup),
    Ablation(
        "service-without-transaction",
        "the service looks and inserts apart",
        service_without_transaction,
        False,
        KEY_MASKS,
    ),
    Ablation(
        "service-without-key",
        "receipts have no primary key",
        service_without_key,
        False,
        LOOKUP_MASKS,
    ),
    Ablation(
        "service-without-transaction-and-key",
        "nothing at the service makes a key unique",
        service_without_transaction_and_key,
        harm=ONE,
    ),
    Ablation(
        "service-without-comparison", "a known key answers any report", service_without_comparison
    ),
    Ablation("memory-unchecked", "revoked memory is used", memory_unchecked),
    Ablation(
        "start-unguarded",
        "a step starts under a lease that is over",
        start_unguarded,
        False,
        START_MASKS,
    ),
    Ablation(
        "limits-unchecked-at-start",
        "memory and deadline are looked at when a step commits only",
        limits_unchecked_at_start,
        False,
        START_MASKS,
    ),
    Ablation(
        "limits-unchecked-at-commit",
        "memory and deadline are looked at before a step only",
        limits_unchecked_at_commit,
    ),
    Ablation("deadline-unchecked", "a step commits past the deadline", deadline_unchecked),
    Ablation("effect-unsaid", "an end after verify does not ask the service", effect_unsaid),
    Ablation(
        "absence-as-fact", "no receipt seen is taken for none there", absence_as_fact, harm=CERTAIN
    ),
    Ablation(
        "effect-of-any-report", "an end takes any receipt for its report's", effect_of_any_report
    ),
    Ablation("retry-without-delay", "a retry is due at once", retry_without_delay),
    Ablation("retry-past-deadline", "a retry is put off past the deadline", retry_past_deadline),
    Ablation("settle-unguarded", "a failed step is recorded by whoever had it", settle_unguarded),
)
