"""The command line of jobs that wait for a person: the base's verbs, and four more.

Guarantee: a decision is made on the full hash of what was shown, and is made once. After a dispatch
nothing here sends again: `reconcile` asks the report service and reads.
Limit: `--actor` picks a local fixture. It is no login; a service takes the actor from its session.
"""

import _signal  # the built-in part of signal, which would load enum first

if __name__ == "__main__" and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C while modules load: no traceback

import argparse
import sys
from collections.abc import Callable
from typing import Any

from approval_runtime import (
    APPROVAL_SECONDS,
    ApprovalRuntime,
    ApprovalStatus,
    Decided,
    Decision,
)
from cli import DONE, FAILED, NOT_NOW, Command, CommandLine, emit, main, say, seconds, text_of

Decide = Callable[[ApprovalRuntime, str, str, str], Decided]  # of job, binding hash, actor


class ApprovalCommandLine(CommandLine):
    """Adds approve, reject and reconcile; memory belongs to the base command line."""

    PROG = "approval_cli.py"
    ABOUT = __doc__
    DB = "approval.sqlite"
    JOB = "approval-demo"
    EXITS = {
        **CommandLine.EXITS,
        ApprovalStatus.WAITING_APPROVAL: DONE,
        ApprovalStatus.EFFECT_CONFIRMED: DONE,
        ApprovalStatus.REJECTED: FAILED,
        ApprovalStatus.RECONCILING: NOT_NOW,
    }

    def commands(self) -> dict[str, Command]:
        base = super().commands()
        decide = "--actor reviewer --hash HASH"
        return {
            **{name: base[name] for name in ("submit", "run", "inspect", "list", "cancel")},
            "approve": Command("permit it", decide, self.decide_options, self.approve),
            "reject": Command("refuse it", decide, self.decide_options, self.reject),
            "reconcile": Command(
                "ask the report service what became of a dispatched job",
                "--job j1",
                self.job_option,
                self.reconcile,
            ),
        }

    def run_options(self, verb: argparse.ArgumentParser) -> None:
        super().run_options(verb)
        verb.add_argument(
            "--approval-seconds", type=seconds, default=APPROVAL_SECONDS, help="time to decide"
        )

    def decide_options(self, verb: argparse.ArgumentParser) -> None:
        self.job_option(verb)
        verb.add_argument("--actor", default="reviewer", help="a fixture (default: %(default)s)")
        verb.add_argument(
            "--hash", required=True, help="binding_hash that inspect showed, or - to read it"
        )

    def runtime(self, arguments: argparse.Namespace, **options: Any) -> ApprovalRuntime:
        if hasattr(arguments, "approval_seconds"):
            options["approval_seconds"] = arguments.approval_seconds
        return ApprovalRuntime(arguments.db, **options)

    def approve(self, arguments: argparse.Namespace) -> int:
        return self.decide(arguments, ApprovalRuntime.approve, Decision.APPROVED)

    def reject(self, arguments: argparse.Namespace) -> int:
        return self.decide(arguments, ApprovalRuntime.reject, Decision.REJECTED)

    def decide(self, arguments: argparse.Namespace, verb: Decide, decision: str) -> int:
        binding_hash = text_of(arguments.hash, "--hash")
        with self.runtime(arguments) as runtime:
            job = self.job_of(arguments, runtime)
            row, approval = verb(runtime, job, binding_hash, arguments.actor)
        emit(
            {
                "job_id": job,
                "status": row.status,
                "decision": decision,
                "actor": approval.decided_by,
                "binding_hash": approval.binding_hash,
                "decided_at": approval.decided_at,
            }
        )
        return DONE

    def reconcile(self, arguments: argparse.Namespace) -> int:
        with self.runtime(arguments) as runtime:
            job = self.job_of(arguments, runtime)
            reconciled = runtime.reconcile(job)
            effect = runtime.inspect(job)["effect"]
        emit(
            {
                "job_id": job,
                "status": reconciled.job.status,
                "effect": effect,
                "receipt": reconciled.receipt,
                "fresh_write_performed": False,
            }
        )
        if reconciled.receipt is not None:
            return DONE
        say(f"error: job {job!r} stays reconciling: {reconciled.reason}; reconcile again later")
        return NOT_NOW

    def words(self, view: dict[str, Any]) -> str:
        if view["job"]["status"] == ApprovalStatus.RECONCILING:
            job = f"job {view['job']['id']!r}"
            return (
                f"{job} was dispatched and its outcome is {view['effect']}: {view['job']['error']};"
                f" nothing is sent again; use {self.PROG} reconcile"
            )
        return super().words(view)


if __name__ == "__main__":
    sys.exit(main(line=ApprovalCommandLine()))
