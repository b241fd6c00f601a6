"""The model of a disk loses what it should; weak settings are seen to lose what was answered."""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import tempfile
import unittest
from collections.abc import Callable
from contextlib import closing

from workbench.prove import bench, disk, folding, judge, lives, pool, powerloss, trace
from workbench.prove.disk import Cut, Disk, Names, Operation, Sync, SyncFolder, Write
from workbench.prove.report import NoCase, Settings, Violation

LAB = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def quietly(act: Callable[[], list[Violation]]) -> list[Violation]:
    """Without what a replay says to a person."""
    with contextlib.redirect_stdout(io.StringIO()):
        return act()


needs_trace = unittest.skipIf(trace.unavailable(), trace.unavailable() or "")


def make(name: str, number: int) -> Names:
    return Names(os.path.dirname(name), ((name, number),))


def found(*operations: Operation) -> set[tuple[tuple[str, bytes], ...]]:
    """Everything the disk may hold after these operations."""
    machine = Disk({})
    for operation in operations:
        machine.step(operation)
    return {image.files for image in machine.images()}


class Model(unittest.TestCase):
    safe = (make("d/a", 1), SyncFolder("d"))

    def test_a_write_is_lost_or_kept_until_its_file_is_synced(self) -> None:
        write = Write(1, 0, b"new")
        self.assertEqual(found(*self.safe, write), {(("d/a", b""),), (("d/a", b"new"),)})
        self.assertEqual(found(*self.safe, write, Sync(1)), {(("d/a", b"new"),)})
        self.assertEqual(len(found(*self.safe, write, Sync(2))), 2)

    def test_a_sync_of_a_new_file_does_not_save_its_name(self) -> None:
        images = found(make("d/a", 1), Write(1, 0, b"x"), Sync(1))
        self.assertEqual(images, {(), (("d/a", b"x"),)})

    def test_a_name_may_be_saved_before_its_content(self) -> None:
        images = found(make("d/a", 1), Write(1, 0, b"x"), SyncFolder("d"))
        self.assertEqual(images, {(("d/a", b""),), (("d/a", b"x"),)})

    def test_a_sync_of_another_folder_saves_nothing(self) -> None:
        self.assertEqual(len(found(make("d/a", 1), SyncFolder("e"))), 2)

    def test_a_removed_name_may_come_back(self) -> None:
        gone = Names("d", (("d/a", None),))
        self.assertEqual(found(*self.safe, gone), {(), (("d/a", b""),)})
        self.assertEqual(found(*self.safe, gone, SyncFolder("d")), {()})

    def test_a_new_file_under_an_old_name_is_another_file(self) -> None:
        steps = (Write(1, 0, b"old"), Sync(1), Names("d", (("d/a", None),)), make("d/a", 2))
        images = found(*self.safe, *steps, Write(2, 0, b"new"), Sync(2))
        self.assertEqual(images, {(), (("d/a", b"old"),), (("d/a", b"new"),)})

    def test_a_rename_is_one_operation(self) -> None:
        move = Names("d", (("d/a", None), ("d/b", 1)))
        self.assertEqual(found(*self.safe, move), {(("d/a", b""),), (("d/b", b""),)})

    def test_any_subset_of_writes(self) -> None:
        writes = [Write(1, place, bytes([65 + place])) for place in range(4)]
        contents = {files[0][1] for files in found(*self.safe, *writes)}
        self.assertEqual(len(contents), 16)
        self.assertIn(b"\0\0C", contents)

    def test_a_write_is_torn_at_the_sectors_of_the_file(self) -> None:
        page = Write(1, 500, b"x" * 600)
        self.assertEqual(page.cuts(), [12, 524])
        contents = {files[0][1] for files in found(*self.safe, page)}
        zeros = b"\0" * 500
        whole = zeros + b"x" * 600
        torn = {whole[:512], whole[:1024], b"\0" * 512 + b"x" * 588, b"\0" * 1024 + b"x" * 76}
        self.assertEqual(contents, {b"", whole, *torn})

    def test_a_cut_is_lost_or_kept(self) -> None:
        images = found(*self.safe, Write(1, 0, b"abc"), Sync(1), Cut(1, 1))
        self.assertEqual(images, {(("d/a", b"abc"),), (("d/a", b"a"),)})

    def test_beyond_the_bound_a_stated_sample(self) -> None:
        many = disk.EXHAUSTIVE + 4
        choices = list(disk.choices([Cut(1, 0)] * many, 7))
        self.assertEqual(len(choices), many + 1 + 2 * many + disk.DRAWN)
        self.assertEqual(choices, list(disk.choices([Cut(1, 0)] * many, 7)))

    def test_an_image_is_found_again_by_its_label(self) -> None:
        machine = Disk({})
        for operation in (*self.safe, Write(1, 0, b"x" * 2000), Write(1, 3, b"y")):
            machine.step(operation)
        for image in machine.images():
            choice = image.label.split("/")[1].split(".")
            self.assertEqual(machine.image(choice).key, image.key)


@needs_trace
class Miniature(unittest.TestCase):
    """One table of SQLite's, without the lab: which settings keep an answered commit."""

    def loses(self, journal: str, synchronous: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            stage = lives.Stage(os.path.join(folder, "stage"))
            aside = lives.Stage(os.path.join(folder, "aside"))

            def body() -> int:
                with closing(lives.connecting()(f"file:{stage.path}", 5.0)) as connection:
                    connection.execute(f"PRAGMA journal_mode={journal}")
                    connection.execute(f"PRAGMA synchronous={synchronous}")
                    connection.execute("PRAGMA wal_autocheckpoint=0")
                    for statement in ("CREATE TABLE t (x, y)", "INSERT INTO t VALUES (1, 2)"):
                        connection.execute("BEGIN IMMEDIATE")
                        connection.execute(statement)
                        connection.execute("COMMIT")
                return 0

            recorder = disk.Recorder(stage, aside)
            self.assertEqual(trace.trace([body], recorder, [stage.folder]), [0])
            return self.lost(recorder, aside)

    @staticmethod
    def lost(recorder: disk.Recorder, aside: lives.Stage) -> bool:
        machine = Disk(recorder.maps)
        least = (0, 0)
        for operation in recorder.operations:
            machine.step(operation)
            if isinstance(operation, disk.Acknowledged):
                least = operation.reached
            for image in machine.images():
                aside.put(disk.files_of(image))
                if judge.look(aside.facts(), recorder.history, least).findings:
                    return True
        return False

    def test_only_the_durable_settings_hold_what_was_answered(self) -> None:
        for journal, synchronous, loses in (
            ("wal", "FULL", False),
            ("wal", "NORMAL", True),
            ("wal", "OFF", True),
            ("delete", "EXTRA", False),
            ("delete", "FULL", True),  # the folder of the unlinked journal is not synced
            ("delete", "NORMAL", True),
            ("delete", "OFF", True),
        ):
            with self.subTest(journal=journal, synchronous=synchronous):
                self.assertEqual(self.loses(journal, synchronous), loses)


@needs_trace
class OnTheLab(unittest.TestCase):
    """A thin sample of the instrument on the lab itself; `prove powerloss` does it all."""

    def work(self, do: Callable[[bench.Bench], object], apart: bool = False) -> object:
        """In a process of its own, since the lab is imported anew."""

        def work(index: int, jobs: int, tell: pool.Tell) -> object:
            with tempfile.TemporaryDirectory() as folder:
                return do(bench.Bench(lives.load(LAB), folder, apart))

        return pool.spread(1, work)[0]

    def test_a_sample_of_images_holds_and_recovers(self) -> None:
        def do(place: bench.Bench) -> list[Violation]:
            scene = powerloss.Scene(place, lives.BASE, "apart")
            worker = powerloss.Worker(True, 0, 32, lambda done: None)
            worker.scene(scene)
            return worker.violations

        self.assertEqual(self.work(do, apart=True), [])

    def test_a_weakened_lab_is_caught_and_its_case_can_be_replayed(self) -> None:
        def do(place: bench.Bench) -> str:
            weakened = powerloss.Scene(place, lives.BASE, "near", ("publisher", "FULL"))
            caught = powerloss.control(weakened)
            return caught[0] if caught else ""

        name = str(self.work(do))
        with tempfile.TemporaryDirectory() as keep:
            settings = Settings(True, 1, LAB, keep)
            again = pool.spread(1, lambda *_: quietly(lambda: powerloss.replay(name, settings)))[0]
            self.assertEqual([violation.property for violation in again], [judge.HELD])
            left = os.path.join(keep, "left", "lab.sqlite.publisher.sqlite-journal")
            self.assertTrue(os.path.exists(left), "the journal that came back")

    def test_the_log_is_folded_in_by_one_that_is_alone(self) -> None:
        def do(place: bench.Bench) -> tuple[int, int, bool]:
            counts, findings = folding.folds(place.lab, place.stage, 2)
            _, caught = folding.folds(place.lab, place.stage, 2, folding.checkpointing)
            return len(findings), min(2, counts[folding.FOLDS]), bool(caught)

        self.assertEqual(self.work(do), (0, 2, True))

    def test_names_that_no_violation_has(self) -> None:
        for name in (
            "base",
            "base/near/14",
            "base/near/14/0.0",
            "base/near/9999/-",
            "base/far/1/-",
        ):

            def refused(name: str = name) -> bool:
                with self.assertRaises(NoCase):
                    powerloss.replay(f"powerloss/{name}", Settings(True, 1, LAB))
                return True

            with self.subTest(name):
                self.assertTrue(pool.spread(1, lambda *_, go=refused: go())[0])


class Pool(unittest.TestCase):
    def test_a_failing_worker_is_raised_here(self) -> None:
        def work(index: int, jobs: int, tell: pool.Tell) -> int:
            tell(2)
            if index:
                raise sqlite3.OperationalError("no such thing")
            return index

        heard: list[int] = []
        self.assertEqual(pool.spread(1, work, heard.append), [0])
        self.assertEqual(heard, [2])
        with self.assertRaisesRegex(pool.WorkerFailed, "no such thing"):
            pool.spread(2, work)


if __name__ == "__main__":
    unittest.main()
