"""Deaths at boundaries: they are real, copies stand for them, and a lab that tears is seen."""

from __future__ import annotations

import contextlib
import io
import os
import unittest
from typing import Any
from unittest import mock

from workbench.prove import ablations, boundaries, invariants, lives, sweep
from workbench.prove.boundaries import APPROVAL, BASE, image_key
from workbench.prove.lives import START
from workbench.prove.report import Settings

LAB = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class InAYard(unittest.TestCase):
    def setUp(self) -> None:
        self.lab = lives.load(LAB)
        self.yard = sweep.Yard(self.lab)
        self.addCleanup(self.yard.close)


class Boundaries(InAYard):
    def test_every_statement_and_call_is_a_boundary(self) -> None:
        labels = [shot.label for shot in self.yard.film_life(BASE)]
        self.assertEqual(
            labels.count("after COMMIT publisher"), labels.count("before COMMIT publisher")
        )
        for label in (
            "before open local",
            "after BEGIN local",
            "before INSERT local",
            "before call draft",
            "after call save_receipt",
            "after COMMIT publisher",
            "after close local",
            "after the answer of submit",
        ):
            self.assertIn(label, labels)
        self.assertGreater(len(labels), 150)

    def test_two_plays_leave_the_same_images_whatever_salts_sqlite_draws(self) -> None:
        first, second = (self.yard.film_life(BASE) for _ in range(2))
        self.assertEqual([image_key(s.files) for s in first], [image_key(s.files) for s in second])
        logs = [[s.files.get("job/lab.sqlite-wal") for s in film] for film in (first, second)]
        self.assertNotEqual(*logs)

    def test_a_death_by_exit_or_by_signal_leaves_what_stood_there(self) -> None:
        shots = self.yard.film_life(BASE)
        middles = [number for number, s in enumerate(shots, 1) if s.label == "before COMMIT local"]
        for number in (middles[2], middles[2] + 1, middles[-1]):
            self.yard.set({}, START)
            dead = self.yard.die(BASE, number)
            self.assertEqual(image_key(dead.files), image_key(shots[number - 1].files))
        self.assertIn("job/lab.sqlite-wal", dead.files)

    def test_a_recovery_that_dies_leaves_what_stood_there(self) -> None:
        shots = self.yard.film_life(APPROVAL)
        at = next(n for n, s in enumerate(shots) if s.label == "before call save_receipt")
        film = self.yard.film(APPROVAL, "reconcile", shots[at].files, START)
        self.assertEqual(film.findings, [])
        self.assertEqual(film.commands[:2], ["submit", "reconcile"])
        number = len(film.shots) // 2
        self.yard.set(shots[at].files, START)
        dead = self.yard.die(APPROVAL, number, "reconcile")
        self.assertEqual(image_key(dead.files), image_key(film.shots[number - 1].files))


class Caught(InAYard):
    def hunt(self, name: str) -> str:
        ablation = ablations.BY_NAME[name]
        with ablations.without(self.lab, ablation):
            found = ablations.by_sweep(self.lab, ablation)
        assert found is not None, name
        with ablations.without(self.lab, ablation), contextlib.redirect_stdout(io.StringIO()):
            again = sweep.replay(found.name, Settings(True, 1, LAB))
        self.assertIn(found.property, [violation.property for violation in again])
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(sweep.replay(found.name, Settings(True, 1, LAB)), [])
        return found.property

    def test_an_event_that_commits_after_its_checkpoint(self) -> None:
        self.assertEqual(self.hunt("event-split"), "terminal-agrees")

    def test_an_end_that_does_not_ask_the_service(self) -> None:
        self.assertEqual(self.hunt("effect-unsaid"), "no-false-certainty")

    def test_a_copy_that_is_not_what_the_death_left(self) -> None:
        shots = self.yard.film_life(BASE)
        share = sweep.Share(self.yard, sweep.Store(self.yard.folder))
        wrong = [shot._replace(files=shots[0].files) for shot in shots]
        share.single(BASE, wrong, 200, True)
        self.assertEqual([v.property for v in share.violations], ["copy-is-death"])

    def test_and_a_replay_of_it_says_so_too(self) -> None:
        real = sweep.Yard.die

        def die(yard: sweep.Yard, *arguments: Any) -> sweep.Shot:
            return real(yard, *arguments)._replace(files={})

        for name, deaths in (("sweep/base/200", 1), ("sweep/base/200/run/40/cancel", 2)):
            with (
                self.subTest(name),
                mock.patch.object(sweep.Yard, "die", die),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                again = sweep.replay(name, Settings(True, 1, LAB))
                self.assertEqual([v.property for v in again], ["copy-is-death"] * deaths)

    def test_a_cancel_that_does_not_see_the_receipt_there(self) -> None:
        shots = self.yard.film_life(BASE)
        at = next(n for n, s in enumerate(shots) if s.label == "after call save_receipt")
        runtime = self.lab.runtime
        unseen = runtime.Effect(None, "not looked for", None)
        with mock.patch.object(runtime.Runtime, "_hidden_effect", lambda *_: unseen):
            film = self.yard.end(BASE, "cancel", shots[at].files, START)
        self.assertEqual([f.invariant for f in film.findings], ["no-false-certainty"])
        self.assertEqual(self.yard.end(BASE, "cancel", shots[at].files, START).findings, [])


class Ways(unittest.TestCase):
    def test_what_a_person_does_next_follows_from_the_status(self) -> None:
        following = boundaries.next_command
        self.assertEqual([following(status, "") for status in invariants.OPEN], ["run"] * 3)
        self.assertEqual(following("waiting_approval", "run"), "approve")
        self.assertEqual(following("waiting_approval", "approve"), "run")
        self.assertEqual(following("reconciling", "run"), "reconcile")
        self.assertIsNone(following("reconciling", "reconcile"))
        self.assertIsNone(following("succeeded", "run"))


if __name__ == "__main__":
    unittest.main()
