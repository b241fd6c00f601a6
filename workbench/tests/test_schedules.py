"""Schedules: the lab's own code in steps, a reduction that loses nothing, a broken guard seen."""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import tempfile
import unittest
from contextlib import closing
from typing import Any
from unittest import mock

from workbench.prove import ablations, lives, schedules, stepping
from workbench.prove.explore import Cast, Explorer, Search
from workbench.prove.history import JobRow
from workbench.prove.invariants import judge
from workbench.prove.judge import REDUCTION
from workbench.prove.lives import START
from workbench.prove.report import NoCase, Settings, Violation
from workbench.prove.stepping import Stage, Stuck
from workbench.prove.walk import Walk

LAB = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAIR = ablations.BASE_CASTS[1]


class Stepping(unittest.TestCase):
    def setUp(self) -> None:
        self.lab = lives.load(LAB)
        self.stage = Stage(self.lab, approval=False, options={})
        self.addCleanup(self.stage.close)

    def whole(self) -> tuple[list[stepping.Outcome], list[str]]:
        """A run, one segment at a time."""
        log: stepping.Log = ()
        state, outcomes, words = self.stage.start, list[stepping.Outcome](), list[str]()
        while not outcomes or outcomes[-1].position is not None:
            outcome, log = self.stage.play("run", "w1", log, state, START + 1)
            outcomes.append(outcome)
            words.append(self.stage.did)
            state = outcome.local, outcome.publisher
        return outcomes, words

    def test_a_run_in_steps_writes_what_a_run_at_once_writes(self) -> None:
        outcomes, words = self.whole()
        at_once, _ = self.stage.play("run", "w1", (), self.stage.start, START + 1, pace=0.0)
        self.assertEqual(at_once[2:], outcomes[-1][2:])
        self.assertEqual(self.stage.image(*at_once[2:]).status, "succeeded")
        self.assertEqual(words.count("writes local"), 5)  # a claim and four commits
        self.assertEqual(words.count("writes publisher"), 1)

    def test_equal_positions_are_one_and_others_are_not(self) -> None:
        first, _ = self.whole()
        again, _ = self.whole()
        self.assertEqual(first, again)
        positions = [outcome.position for outcome in first]
        self.assertEqual(len(set(positions)), len(positions))

    def test_a_paused_call_goes_on_from_its_log_in_another_state(self) -> None:
        outcome, log = self.stage.play("run", "w1", (), self.stage.start, START + 1)
        done, _ = self.stage.play("cancel", "c", (), self.stage.start, START + 1, pace=0.0)
        while outcome.position is not None:
            outcome, log = self.stage.play("run", "w1", log, done[2:], START + 1)
        self.assertEqual(self.stage.image(*outcome[2:]).status, "cancelled")

    def test_a_variable_that_cannot_be_compared_is_an_error(self) -> None:
        with self.assertRaises(Stuck):
            stepping._plain({"left": iter([1])})

    def test_a_refused_publisher_is_a_retry(self) -> None:
        outcome, log = self.stage.play("run", "w1", (), self.stage.start, START + 1)
        while outcome.position is not None:
            refuse = outcome.position.touches == stepping.PUBLISHER
            state = outcome[2:]
            outcome, log = self.stage.play("run", "w1", log, state, START + 1, refuse=refuse)
        image = self.stage.image(*outcome[2:])
        self.assertEqual((image.status, judge(image)), ("retry_wait", []))
        row = JobRow(*image.jobs[0])
        sooner = image._replace(jobs=(tuple(row._replace(available_at=START)),))
        self.assertEqual([finding.invariant for finding in judge(sooner)], ["terminal-agrees"])


class Reduction(unittest.TestCase):
    def test_it_loses_no_schedule_and_no_state(self) -> None:
        small = schedules.SMALL._replace(ticks=())
        walked, wrong = schedules.cross_check(lives.load(LAB), small)
        self.assertEqual(wrong, [])
        self.assertGreater(walked, 5_000)

    def test_a_position_too_coarse_would_be_seen(self) -> None:
        coarse = Stage.identify
        self.addCleanup(setattr, Stage, "identify", coarse)

        def identify(self: Stage, frame: object) -> int:
            return coarse(self, frame) % 3  # type: ignore[arg-type]

        setattr(Stage, "identify", identify)  # noqa: B010
        small = schedules.SMALL._replace(ticks=())
        try:
            wrong = schedules.cross_check(lives.load(LAB), small)[1]
        except (Stuck, StopIteration, RuntimeError):
            return
        self.assertNotEqual(wrong, [])


class Searching(unittest.TestCase):
    def setUp(self) -> None:
        self.lab = lives.load(LAB)

    def explore(self, cast: Cast) -> Search:
        explorer = Explorer(self.lab, cast)
        self.addCleanup(explorer.close)
        return Search(explorer, lambda _: None)

    def test_two_workers_break_nothing(self) -> None:
        cases = self.explore(PAIR).run()
        self.assertEqual(cases.broken, [])
        self.assertGreater(cases.states, 1_000)
        self.assertGreater(cases.schedules, 10**7)

    def test_without_the_guard_the_smallest_schedule_is_told_and_replayed(self) -> None:
        ablation = ablations.BY_NAME["no-guard"]
        with ablations.without(self.lab, ablation):
            found = ablations.by_schedules(self.lab, ablation)
            assert found is not None
            self.assertEqual(found.property, "no-write-outside-lease")
            self.assertEqual(self.replay(found.name), [found.property])
        with self.assertRaises(NoCase):  # the last step is no longer a write that can be made
            self.replay(found.name + ",w1*9")
        self.assertEqual(self.replay(found.name), [])

    def replay(self, name: str) -> list[str]:
        with (
            tempfile.TemporaryDirectory() as keep,
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            found = schedules.replay(name, Settings(True, 1, LAB, keep))
            with closing(sqlite3.connect(os.path.join(keep, "lab.sqlite"))) as left:
                status = left.execute("SELECT status FROM jobs").fetchone()[0]
        self.assertEqual(status, "running")
        self.assertIn("claimed w1", out.getvalue())
        return list(dict.fromkeys(violation.property for violation in found))

    def test_a_state_from_which_no_worker_ends_is_seen(self) -> None:
        ablation = ablations.BY_NAME["no-renewal"]
        with ablations.without(self.lab, ablation):
            found = ablations.by_schedules(self.lab, ablation)
        assert found is not None
        self.assertEqual(found.property, "can-finish-or-park")
        self.assertTrue(found.name.endswith("fresh"))

    def test_names_say_the_schedule(self) -> None:
        cast, actions = schedules.parse("schedules/claims/w1*2,tick,crash-w1,w2,fresh")
        self.assertEqual(cast.name, "claims")
        self.assertEqual(actions, ["w1", "w1", "tick", "crash-w1", "w2", "fresh"])
        for wrong in ("schedules/nobody/w1", "sweep/base/1", "schedules/claims/w1*x"):
            with self.assertRaises(NoCase):
                schedules.parse(wrong)

    def test_every_actor_of_a_cast_has_a_name_of_its_own(self) -> None:
        self.assertEqual(schedules.BY_NAME["twins"].labels, ["w1", "w1-2"])
        for cast in schedules.BY_NAME.values():
            self.assertEqual(len(set(cast.labels)), len(cast.actors), cast.name)

    def test_the_check_of_the_reduction_is_replayed(self) -> None:
        wrong = [Violation("schedules/unreduced/", REDUCTION, "one schedule less")]
        with mock.patch.object(schedules, "cross_check", return_value=(0, wrong)):
            self.assertEqual(schedules.replay(wrong[0].name, Settings(True, 1, LAB)), wrong)

    def test_a_limit_that_ends_a_moment_late_is_seen(self) -> None:
        base, approval = self.lab.runtime.Runtime, self.lab.approval
        assert approval is not None
        late = (
            (base, "_own", "lease_until", "ends", "no-write-outside-lease"),
            (base, "_own", "memory_expires", "ends", "work-within-limits"),
            (base, "_own", "deadline", "ends", "work-within-limits"),
            (approval.ApprovalRuntime, "_approval", "expires_at", "yes", "sent-is-approved"),
        )
        for kind, method, field, cast, broken in late:
            real = getattr(kind, method)

            def later(runtime: Any, job: str, read: Any = real, field: str = field) -> Any:
                row = read(runtime, job)
                return row and row._replace(**{field: getattr(row, field) + 0.001})

            with self.subTest(field), mock.patch.object(kind, method, later):
                search = self.explore(schedules.BY_NAME[cast])
                found = search.run(until=(broken,)).broken
                self.assertIn(broken, [each.finding.invariant for each in found])

    def test_what_a_hand_did_is_not_held_against_the_lab(self) -> None:
        for cast, wrong in (("swapped", 1), ("conflict", 2), ("role", 0)):
            explorer = Explorer(self.lab, schedules.BY_NAME[cast])
            self.addCleanup(explorer.close)
            self.assertEqual((len(explorer.given), explorer.judge(explorer.first)), (wrong, []))

    def test_a_role_ends_at_its_very_end(self) -> None:
        for ticks, status in ((19.999, "succeeded"), (20.0, "failed")):
            explorer = Explorer(self.lab, schedules.BY_NAME["role"]._replace(ticks=(ticks,)))
            self.addCleanup(explorer.close)
            walk = Walk(explorer)
            walk.take("tick")
            while walk.take("w1"):
                pass
            self.assertEqual(walk.image(walk.state).status, status)

    def test_a_paused_worker_sends_after_a_reconcile_and_the_next_one_confirms(self) -> None:
        explorer = Explorer(self.lab, schedules.BY_NAME["dispatch"])
        self.addCleanup(explorer.close)
        walk = Walk(explorer)
        while walk.take("approver"):
            pass
        while not any("dispatch_started" in taken.news for taken in walk.taken):
            self.assertTrue(walk.take("w1"))
        walk.take("tick")
        while walk.take("reconciler"):
            pass
        self.assertIn("reconcile_inconclusive", walk.taken[-1].news)
        while walk.take("w1"):
            pass
        self.assertEqual(walk.image(walk.state).status, "reconciling")
        self.assertTrue(any("receipt report-" in taken.news for taken in walk.taken))
        walk.take("fresh")
        self.assertEqual(walk.image(walk.state).status, "effect_confirmed")
        walk.end()
        self.assertEqual(walk.findings, [])


if __name__ == "__main__":
    unittest.main()
