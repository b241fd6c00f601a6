"""Ablations: one mechanism out, noticed or accounted for, and put back whole."""

from __future__ import annotations

import contextlib
import io
import os
import unittest
from unittest import mock

from workbench.__main__ import main
from workbench.prove import ablations, lives, schedules, trace
from workbench.prove.ablations import ABLATIONS, BY_NAME, Caught
from workbench.prove.invariants import RESTS
from workbench.prove.report import NoCase, Settings, Violation

LAB = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# What is asked for by name, and what it is called here.
ASKED = (
    "no-guard",
    "guard-without-lease",
    "guard-without-owner",
    "guard-without-generation",
    "guard-without-status",
    "guard-in-own-transaction",
    "generation-in-key",
    "event-split",
    "status-split",
    "claim-without-lease-check",
    "cancel-keeps-generation",
    "service-without-transaction",
    "no-renewal",
    "memory-unchecked",
    "approval-as-boolean",
    "binding-unchecked",
    "expiry-unchecked-at-dispatch",
    "no-dispatch-marker",
    "resend-after-dispatch",
    "dispatching-back-to-queued",
    "reconcile-keeps-generation",
    "absence-as-proof",
    "expiry-over-effect",
)
FAST = (
    "no-guard",
    "guard-without-owner-and-generation",
    "event-split",
    "generation-in-key",
    "no-dispatch-marker",
    "dispatching-back-to-queued",
    "absence-as-proof",
    "approval-as-boolean",
    "reconcile-under-lease",
)


def said(*arguments: str) -> tuple[int, str]:
    """A command of the workbench: its exit code and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(list(arguments))
    return code, out.getvalue()


class Matrix(unittest.TestCase):
    def test_there_are_at_least_24_and_all_that_were_asked_for(self) -> None:
        self.assertEqual([name for name in ASKED if name not in BY_NAME], [])
        self.assertGreaterEqual(len(ABLATIONS), 24)
        self.assertEqual(len(BY_NAME), len(ABLATIONS))

    def test_schedules_notice_what_is_missing(self) -> None:
        lab = lives.load(LAB)
        for name in FAST:
            with self.subTest(name), ablations.without(lab, BY_NAME[name]):
                self.assertIsNotNone(ablations.by_schedules(lab, BY_NAME[name]))

    def test_the_start_that_shows_it_is_there(self) -> None:
        lab = lives.load(LAB)
        for name, cast, harm in (
            ("service-without-comparison", "swapped", "no-false-certainty"),
            ("effect-of-any-report", "swapped", "no-false-certainty"),
            ("reconcile-takes-any-report", "conflict", "no-false-certainty"),
            ("approver-unchecked-at-dispatch", "role", "sent-is-approved"),
            ("retry-without-delay", "retries", "work-within-limits"),
            ("retry-past-deadline", "retries", "work-within-limits"),
            ("request-on-last-claim", "last", "work-within-limits"),
        ):
            with self.subTest(name), ablations.without(lab, BY_NAME[name]):
                tried = lab, schedules.BY_NAME[cast], lambda _: None, (harm,)
                found = [violation.property for violation in schedules.explore_cast(*tried)[1]]
                self.assertIn(harm, found)
                self.assertIn(cast, schedules.QUICK)

    def test_a_masked_one_goes_unseen_and_the_pair_is_seen(self) -> None:
        lab = lives.load(LAB)
        for name, noticed in (("service-without-key", False), ("guard-without-owner", False)):
            ablation = BY_NAME[name]
            self.assertIn("masked by", ablation.masked)
            with self.subTest(name), ablations.without(lab, ablation):
                casts = ablations.BASE_CASTS[:3]
                found = [schedules.explore_cast(lab, cast, lambda _: None)[1] for cast in casts]
            self.assertEqual(any(found), noticed)
        pair = BY_NAME["guard-without-owner-and-generation"]
        self.assertIn(pair.name, BY_NAME["guard-without-owner"].masked)

    def test_every_mechanism_is_put_back(self) -> None:
        lab = lives.load(LAB)
        for ablation in ABLATIONS:
            owners = [(owner, name) for owner, name, _ in ablation.patches(lab)]
            before = [vars(owner).get(name) for owner, name in owners]
            with ablations.without(lab, ablation):
                inside = [vars(owner).get(name) for owner, name in owners]
            after = [vars(owner).get(name) for owner, name in owners]
            with self.subTest(ablation.name):
                self.assertEqual(before, after)
                self.assertNotIn(True, [a is b for a, b in zip(before, inside, strict=True)])

    def test_one_that_nothing_notices_fails_and_so_does_a_false_excuse(self) -> None:
        seen = Caught(Violation("sweep/base/1", "integrity", ""), 0.1)
        names = ["no-guard", "guard-without-owner", "event-split"]
        caught = {("guard-without-owner", "sweep"): seen, ("event-split", "sweep"): seen}
        wrong = ablations.account(names, caught)
        self.assertEqual(
            [violation.name for violation in wrong],
            ["ablations/no-guard", "ablations/guard-without-owner"],
        )

    def test_one_that_breaks_by_its_own_mistake_is_not_noticed(self) -> None:
        seen = Caught(Violation("sweep/base/1", RESTS, "run raised TypeError: one too many"), 0.1)
        (wrong,) = ablations.account(["event-split"], {("event-split", "sweep"): seen})
        self.assertIn("its own code fails", wrong.detail)

    def test_what_is_noticed_is_what_the_mechanism_is_for(self) -> None:
        lab = lives.load(LAB)
        for name, harm in (
            ("settle-unguarded", "no-write-outside-lease"),
            ("no-dispatch-marker", "sent-is-approved"),
        ):
            with self.subTest(name), ablations.without(lab, BY_NAME[name]):
                found = ablations.by_schedules(lab, BY_NAME[name])
                self.assertEqual(found and found.property, harm)


class Shown(unittest.TestCase):
    def test_the_failing_run_comes_first_then_the_same_with_the_mechanism(self) -> None:
        code, text = said("ablate", "no-guard")
        self.assertEqual(code, 0)
        broken, held = text.split("The same with the mechanism in place:")
        self.assertIn("VIOLATED no-write-outside-lease", broken)
        self.assertIn("step_committed", broken)
        self.assertIn("run ends: LostLease", held)
        self.assertIn("Nothing was violated.", held)

    def test_two_workers_of_one_name_are_told_apart(self) -> None:
        code, text = said("ablate", "guard-without-generation")
        self.assertEqual(code, 0, text)
        self.assertIn("w1-2", text)

    def test_the_same_schedule_is_followed_by_what_was_done_not_by_a_count(self) -> None:
        code, text = said("ablate", "marker-after-send")
        self.assertEqual(code, 0)
        broken, held = text.split("The same with the mechanism in place:")
        self.assertNotIn("dispatch_started", broken)
        self.assertLess(held.index("dispatch_started"), held.index("receipt report-"))

    def test_a_masked_one_says_by_what(self) -> None:
        code, text = said("ablate", "service-without-key")
        self.assertEqual(code, 0)
        self.assertIn("masked by the look-up", text)

    def test_without_a_name_all_are_listed(self) -> None:
        code, text = said("ablate")
        self.assertEqual(code, 0)
        self.assertEqual(len(text.splitlines()), len(ABLATIONS) + len(ablations.WEAKENINGS))

    def test_replay_shows_the_failing_run(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            found = ablations.replay("ablations/absence-as-proof", Settings(True, 1, LAB))
        self.assertIn("no-false-certainty", [violation.property for violation in found])

    def test_replay_of_one_that_nothing_notices_says_so(self) -> None:
        settings = Settings(True, 1, LAB)
        nowhere = {name: lambda *_: None for name in ablations.HUNTS}
        with mock.patch.dict(ablations.HUNTS, nowhere):
            (found,) = ablations.replay("ablations/no-guard", settings)
            self.assertEqual(found.property, "every-ablation-is-accounted-for")
            self.assertEqual(ablations.replay("ablations/guard-without-owner", settings), [])
        with self.assertRaises(NoCase):
            ablations.replay("ablations/no-such", settings)

    @unittest.skipIf(trace.unavailable(), trace.unavailable() or "")
    def test_a_weaker_setting_is_shown_by_a_power_loss(self) -> None:
        code, text = said("ablate", "publisher-synchronous-full")
        self.assertEqual(code, 0)
        broken, held = text.split("with the lab's own settings:")
        self.assertIn("journal removed", broken)
        self.assertIn("VIOLATED acknowledged-commits-held", broken)
        self.assertEqual(held.strip(), "Nothing was violated.")

    @unittest.skipIf(trace.unavailable(), trace.unavailable() or "")
    def test_replay_of_a_weaker_setting(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            name = "ablations/publisher-synchronous-full"
            found = ablations.replay(name, Settings(True, 1, LAB))
        self.assertIn("acknowledged-commits-held", [violation.property for violation in found])


if __name__ == "__main__":
    unittest.main()
