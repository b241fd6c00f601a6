"""The proof can fail: each invariant on an image that breaks it, each changed file by its name."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from workbench.__main__ import main
from workbench.prove import bench, boundaries, command, history, invariants, lives, sweep, trace
from workbench.prove.boundaries import APPROVAL, BASE, Door
from workbench.prove.history import INVARIANTS
from workbench.prove.invariants import Image, judge, judge_change, judge_recovery
from workbench.prove.pool import WorkerFailed
from workbench.prove.report import Result, Settings, Violation, in_order
from workbench.tests.sabotage import copy_lab, empty_body

LAB = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
Change = Callable[[dict[str, Any]], dict[str, Any]]


def images(life: boundaries.Life, commands: tuple[str, ...]) -> Image:
    """What a life of these commands leaves."""
    yard = sweep.Yard(lives.load(LAB))
    try:
        yard.set({}, lives.START)
        yard.hands(life._replace(commands=commands), Door()).live()
        return invariants.read(yard.stage.path)
    finally:
        yard.close()


def edited(image: Image, table: str, number: int, **cells: Any) -> Image:
    """The image with some cells of one row changed, by their names in the contract."""
    kinds = {
        "jobs": history.JobRow,
        "events": history.EventRow,
        "approvals": history.ApprovalRow,
    }
    rows = list(getattr(image, table))
    rows[number] = tuple(kinds[table](*rows[number])._replace(**cells))
    return image._replace(**{table: tuple(rows)})


class Invariants(unittest.TestCase):
    done: Image
    sent: Image
    waiting: Image
    begun: Image

    @classmethod
    def setUpClass(cls) -> None:
        cls.done = images(BASE, BASE.commands)
        cls.sent = images(APPROVAL, APPROVAL.commands)
        cls.waiting = images(APPROVAL, APPROVAL.commands[:3])
        cls.begun = images(BASE, BASE.commands[:2])

    def broken(self, image: Image) -> list[str]:
        return list(dict.fromkeys(finding.invariant for finding in judge(image)))

    def seq(self, image: Image, kind: str, detail: str = "") -> int:
        return next(n for n, e in enumerate(image.events) if e[4] == kind and detail in ("", e[5]))

    def retried(self, *delays: float) -> Image:
        """Claims that each ended in a retry after such a delay; told by the events only."""
        events, at = list(self.begun.events), lives.START
        for generation, delay in enumerate(delays, 1):
            retry = json.dumps({"available_at": at + delay, "reason": "busy"})
            for kind, detail in (
                ("claimed", "w"),
                ("lease_renewed", str(at + lives.LEASE)),
                ("retry_scheduled", retry),
            ):
                events.append((len(events) + 1, lives.JOB, at, generation, kind, detail))
            at += delay
        return self.begun._replace(events=tuple(events))

    def test_a_retry_after_its_delay_is_within_limits(self) -> None:
        for delays in ((2.0,), (2.0, 4.0), (9.0, 99.0)):
            self.assertNotIn("work-within-limits", self.broken(self.retried(*delays)))

    def test_sound_images_pass(self) -> None:
        for image in (self.done, self.sent, self.waiting, self.begun, Image()):
            self.assertEqual(judge(image), [])
        self.assertEqual(judge_recovery(self.begun, self.done), [])
        self.assertEqual(judge_recovery(self.waiting, self.sent), [])

    def test_each_invariant_is_seen_to_fail(self) -> None:
        done, sent = self.done, self.sent
        commit = self.seq(done, "step_committed", "draft")
        late = history.JobRow(*done.jobs[0]).deadline + 1
        dispatched = sent.events[self.seq(sent, "dispatch_started")][2]
        op, hashed, receipt = done.receipts[0]
        cases = {
            "at-most-one-receipt-per-key": (
                done._replace(receipts=(*done.receipts, ("other", hashed, receipt))),
                done._replace(receipts=done.receipts * 2),
            ),
            "terminal-agrees": (
                edited(done, "jobs", 0, status="running", owner="w"),
                done._replace(checkpoints=done.checkpoints[1:]),
                done._replace(receipts=((op, "0", receipt),)),
                edited(done, "events", commit, kind="unheard"),
            ),
            "no-false-certainty": (
                done._replace(receipts=()),
                sent._replace(receipts=()),
                done._replace(receipts=((op, "0", receipt),)),
            ),
            "finished-steps-not-redone": (
                edited(done, "events", commit, detail="collect"),
                edited(done, "events", commit, detail="publish"),
            ),
            "generations-rise": (
                edited(done, "events", commit, generation=2),
                edited(done, "events", self.seq(done, "claimed"), generation=0),
            ),
            "no-write-outside-lease": (
                edited(done, "events", self.seq(done, "lease_renewed"), detail="0"),
                edited(done, "events", commit, at=history.JobRow(*done.jobs[0]).lease_until + 9),
            ),
            "work-within-limits": (
                edited(done, "events", commit, at=late),
                edited(done, "jobs", 0, memory_expires=1.0),
                self.retried(1.9),
                self.retried(2.0, 3.9),
                self.retried(2.0, 4.0, 8.0),
                self.retried(late - 1 - lives.START),
            ),
            "sent-is-approved": (
                edited(sent, "approvals", 0, binding_hash="0"),
                edited(sent, "approvals", 0, decided_by="operator"),
                sent._replace(approvals=()),
                sent._replace(receipts=((op, "0", receipt),)),
                sent._replace(mandates=(("reviewer", dispatched),)),
            ),
            "integrity": (done._replace(damage=("lab.sqlite: page 3 is never used",)),),
        }
        for invariant, wrong in cases.items():
            for number, image in enumerate(wrong):
                with self.subTest(invariant, number=number):
                    self.assertIn(invariant, self.broken(image))
        self.assertEqual(
            {*cases, "nothing-sent-after-dispatch", "can-finish-or-park"}, {*INVARIANTS}
        )

    def test_what_a_later_state_may_not_undo(self) -> None:
        done = self.done
        fewer = done._replace(events=done.events[:-1])
        for wrong, invariant in (
            (fewer, "finished-steps-not-redone"),
            (done._replace(receipts=()), "finished-steps-not-redone"),
            (done._replace(jobs=()), "terminal-agrees"),
            (edited(done, "jobs", 0, status="failed"), "terminal-agrees"),
        ):
            self.assertIn(invariant, [found.invariant for found in judge_change(done, wrong)])
        revoked = self.begun._replace(memory=tuple((*row[:2], 9, row[3]) for row in done.memory))
        found = [finding.invariant for finding in judge_change(revoked, done)]
        self.assertEqual(set(found), {"work-within-limits"})

    def test_what_a_recovery_may_not_do(self) -> None:
        done, sent = self.done, self.sent
        before = sent._replace(receipts=())
        found = [finding.invariant for finding in judge_recovery(before, sent)]
        self.assertIn("nothing-sent-after-dispatch", found)
        unseen = done._replace(events=(*done.events, (99, "demo", 1.0, 1, "effect_unknown", "")))
        found = [finding.invariant for finding in judge_recovery(done, unseen)]
        self.assertEqual(found, ["no-false-certainty"])
        others = tuple((op, "0", receipt) for op, _, receipt in done.receipts)
        before, unseen = done._replace(receipts=others), unseen._replace(receipts=others)
        self.assertEqual(judge_recovery(before, unseen), [])
        stuck = [finding.invariant for finding in judge_recovery(self.begun, self.begun)]
        self.assertEqual(stuck, ["can-finish-or-park"])


class Command(unittest.TestCase):
    def said(self, *arguments: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = main(["prove", *arguments])
        return code, out.getvalue()

    def refused(self, *arguments: str) -> str:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()) as err,
            self.assertRaises(SystemExit) as end,
        ):
            main(["prove", *arguments])
        self.assertEqual(end.exception.code, 2)
        return err.getvalue()

    def test_usage(self) -> None:
        self.assertIn("no instrument 'swep'", self.refused("swep"))
        self.assertIn("replay takes one NAME", self.refused("replay"))
        self.assertIn("begins with its instrument", self.refused("replay", "nothing/1"))
        self.assertIn("no whole number above 0", self.refused("sweep", "--jobs", "0"))
        self.assertIn("no runtime.py in '/'", self.refused("sweep", "--lab", "/"))
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "mine").touch()
            self.assertIn("not empty", self.refused("replay", "sweep/base/1", "--keep", folder))

    def test_a_case_again_leaves_its_databases_and_picture(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            keep = os.path.join(folder, "kept")
            code, text = self.said("replay", "sweep/base/60/run/20/cancel", "--keep", keep)
            self.assertEqual(code, 0, text)
            self.assertIn("the process dies at boundary 60", text)
            kept = sorted(os.listdir(keep))
            self.assertEqual(kept, ["lab.html", "lab.sqlite", "lab.sqlite.publisher.sqlite"])
            for name, why in (
                ("sweep/base/9999", "no death at boundary 9999 of base"),
                ("sweep/base/x", "'x' is no boundary"),
                ("sweep/nobody/1", "no life 'nobody'"),
                ("schedules/claims/w1*999", "w1 has nothing left to do"),
            ):
                self.assertIn(why, self.refused("replay", name, "--keep", keep + "2"))

    def test_a_schedule_that_the_matrix_names_is_replayed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            name = "schedules/twin/w1*7,w1-2*4,tick,w1-2,w1"
            ran = subprocess.run(  # a new process: nothing has loaded the casts yet
                [sys.executable, "-m", "workbench", "prove", "replay", name, "--keep", folder],
                cwd=LAB,
                capture_output=True,
                text=True,
            )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("run ends: LostLease", ran.stdout)

    def test_the_answer_as_data_and_in_words(self) -> None:
        result = Result(
            "sweep",
            "bounds",
            {"real deaths": 1234},
            [Violation("sweep/base/7", "terminal-agrees", "it is not so")],
            1.5,
            table=(("what", "how"), ("a", "b" * 120)),
        )
        text = "\n".join(command.report([result], result.violations))
        for line in text.splitlines():
            self.assertLessEqual(len(line), 124)
        self.assertIn("1,234 real deaths", text)
        self.assertIn("VIOLATED terminal-agrees", text)
        self.assertIn("prove replay 'sweep/base/7'", text)
        for name, words in command.properties().items():
            self.assertIn(name, text)
            self.assertIn(words.split()[0], text)
        self.assertEqual(text.splitlines()[-1], "Violated after 2 s: terminal-agrees.")
        sound = result._replace(violations=[])
        skipped = sound._replace(name="syscalls", skipped="no ptrace here")
        for results, last in (
            ([sound, skipped], "Nothing was violated, in 3 s. Skipped: syscalls."),
            ([skipped], "Nothing is proved. Skipped: syscalls."),
        ):
            self.assertEqual(command.report(results, [])[-1], last)
            self.assertTrue(command.passed(results))

    def test_each_run_says_what_it_ran_on(self) -> None:
        result = Result("sweep", "bounds", {}, [], 1.0)
        with mock.patch.object(command, "measure", return_value=result):
            code, text = self.said("sweep", "--quick", "--jobs", "3")
        first = text.splitlines()[0]
        self.assertEqual(code, 0)
        for words in (
            "quick run",
            "3 processes",
            f"Python {platform.python_version()}",
            f"SQLite {sqlite3.sqlite_version}",
        ):
            self.assertIn(words, first)

    def test_an_instrument_that_breaks_off_proves_nothing_and_leaves_nothing(self) -> None:
        made = []

        def run(settings: Settings) -> Result:
            made.append(bench.scratch())
            raise WorkerFailed("Traceback\nOSError: no space left")

        broken = types.SimpleNamespace(run=run)
        with (
            mock.patch.object(command, "instrument", return_value=broken),
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            code, text = self.said("sweep")
        self.assertEqual(code, 1)
        self.assertIn("broke off: OSError: no space left", text)
        self.assertIn("Nothing is proved. Broke off, which proves nothing: sweep.", text)
        self.assertIn("Traceback", err.getvalue())
        self.assertFalse(os.path.exists(made[0]))

    def test_counts_come_in_one_order_whichever_process_was_first(self) -> None:
        self.assertEqual(
            list(
                in_order({"states of b": 1, "casts": 2, "states of a": 3}, ("casts", "states of a"))
            ),
            ["casts", "states of a"],
        )


class ChangedFiles(unittest.TestCase):
    """A change to the shipped files makes `prove --quick` exit 1 and name the property."""

    def prove(self, instrument: str, program: str, change: Callable[[Path], None]) -> set[str]:
        with tempfile.TemporaryDirectory() as folder:
            lab = copy_lab(Path(folder, "lab"))
            before = (lab / program).read_text("utf-8")
            change(lab / program)
            self.assertNotEqual(before, (lab / program).read_text("utf-8"))
            arguments = ["prove", instrument, "--quick", "--first", "--json"]
            ran = subprocess.run(
                [sys.executable, "-m", "workbench", *arguments],
                cwd=lab,
                capture_output=True,
                text=True,
            )
        self.assertEqual(ran.returncode, 1, ran.stdout[-2000:] + ran.stderr)
        answer = json.loads(ran.stdout)
        self.assertFalse(answer["passed"])
        (found,) = answer["instruments"]
        for violation in found["violations"]:
            self.assertTrue(violation["name"].startswith(f"{instrument}/"))
        return {violation["property"] for violation in found["violations"]}

    def replaced(self, old: str, new: str) -> Callable[[Path], None]:
        def change(module: Path) -> None:
            module.write_text(module.read_text("utf-8").replace(old, new), "utf-8")

        return change

    def test_the_guard_emptied(self) -> None:
        found = self.prove(
            "schedules",
            "runtime.py",
            lambda module: empty_body(module, "Runtime.guard", "return self._own(job)"),
        )
        self.assertIn("no-write-outside-lease", found)

    def test_a_guard_under_which_no_life_comes_to_its_end(self) -> None:
        for instrument in ("sweep", "schedules"):
            with self.subTest(instrument):
                found = self.prove(
                    instrument,
                    "runtime.py",
                    lambda module: empty_body(module, "Runtime.guard"),
                )
                self.assertIn("can-finish-or-park", found)

    def test_the_binding_check_emptied(self) -> None:
        found = self.prove(
            "schedules",
            "approval_runtime.py",
            lambda module: empty_body(module, "ApprovalRuntime.validate_binding"),
        )
        self.assertIn("sent-is-approved", found)

    def test_the_receipts_look_up_removed(self) -> None:
        look_up = 'publisher.execute("SELECT * FROM receipts WHERE op = ?", (op,)).fetchone()'
        found = self.prove("schedules", "runtime.py", self.replaced(look_up, "None"))
        self.assertIn("can-finish-or-park", found)

    @unittest.skipIf(trace.unavailable(), trace.unavailable() or "")
    def test_synchronous_off(self) -> None:
        found = self.prove(
            "powerloss", "runtime.py", self.replaced('"wal", "FULL"', '"wal", "OFF"')
        )
        self.assertIn("acknowledged-commits-held", found)


if __name__ == "__main__":
    unittest.main()
