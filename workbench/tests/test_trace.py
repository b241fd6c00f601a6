"""The tracer sees, stops, kills and fails what it says, and the deaths it deals are real ones."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import signal
import sqlite3
import sys
import tempfile
import unittest
from collections.abc import Callable
from contextlib import closing
from unittest import mock

from workbench.prove import bench, judge, lives, pool, syscalls, trace
from workbench.prove.report import NoCase, Settings, Violation

LAB = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}


def quietly(act: Callable[[], list[Violation]]) -> list[Violation]:
    """Without what a replay says to a person."""
    with contextlib.redirect_stdout(io.StringIO()):
        return act()


needs_trace = unittest.skipIf(trace.unavailable(), trace.unavailable() or "")


class Listing(trace.Watcher):
    """Writes down what it sees; may answer one call, by its number, with a verdict."""

    def __init__(self, at: int = 0, entry: int = 0, exit: int = 0) -> None:
        self.at, self.at_entry, self.at_exit = at, entry, exit
        self.seen: list[tuple[str, str, int | None]] = []
        self.data: list[tuple[bytes, int]] = []
        self.said: list[str] = []
        self.count = 0

    def entry(self, call: trace.Call) -> int:
        self.count += 1
        if call.name in ("write", "pwrite64", "writev"):
            self.data.append((call.data(), call.offset()))
        return self.at_entry if self.count == self.at else 0

    def exit(self, call: trace.Call) -> int:
        self.seen.append((call.name, os.path.basename(call.paths[0]), call.result))
        return self.at_exit if self.count == self.at else 0

    def mark(self, pid: int, text: str) -> None:
        self.said.append(text)


@needs_trace
class Following(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self) -> int:
        """Creates, writes, syncs, renames, removes: ten calls that count."""
        descriptor = os.open(self.path("a"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, b"one")
        os.pwrite(descriptor, b"two", 10)
        os.writev(descriptor, [b"th", b"ree"])
        os.ftruncate(descriptor, 20)
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename(self.path("a"), self.path("b"))
        os.link(self.path("b"), self.path("c"))
        os.unlink(self.path("b"))
        os.mkdir(self.path("d"))
        return 7

    def follow(self, body: Callable[[], int], watcher: trace.Watcher) -> int:
        return trace.trace([body], watcher, [self.folder])[0]

    def test_sees_calls_in_order_with_their_data(self) -> None:
        listing = Listing()
        self.assertEqual(self.follow(self.write, listing), 7)
        kinds = [re.sub("at2?$|64$", "", name) for name, _, _ in listing.seen]
        expected = "open write pwrite writev ftruncate fsync rename link unlink mkdir"
        self.assertEqual(kinds, expected.split())
        self.assertEqual(listing.data, [(b"one", 0), (b"two", 10), (b"three", 3)])
        self.assertEqual([result for _, _, result in listing.seen[1:4]], [3, 3, 5])

    def test_kills_before_and_after_the_call(self) -> None:
        for verdicts, size in (({"entry": trace.KILL}, 0), ({"exit": trace.KILL}, 3)):
            with self.subTest(verdicts):
                listing = Listing(2, **verdicts)
                self.assertEqual(self.follow(self.write, listing), -signal.SIGKILL)
                self.assertEqual(os.path.getsize(self.path("a")), size)
                self.assertEqual(listing.count, 2)

    def test_fails_a_call_instead_of_doing_it(self) -> None:
        def body() -> int:
            try:
                return self.write()
            except OSError as error:
                return error.errno or 0

        for number in (1, 2, 6, 7, 10):
            with self.subTest(number):
                for name in os.listdir(self.folder):
                    (os.rmdir if name == "d" else os.unlink)(self.path(name))
                listing = Listing(number, entry=errno.ENOSPC)
                self.assertEqual(self.follow(body, listing), errno.ENOSPC)
                self.assertEqual(listing.seen[-1][2], -errno.ENOSPC)
                self.assertEqual(listing.count, number)
        self.assertFalse(os.path.exists(self.path("d")))

    def test_passes_without_an_exit(self) -> None:
        listing = Listing(2, entry=trace.PASS)
        self.assertEqual(self.follow(self.write, listing), 7)
        self.assertEqual(len(listing.seen), listing.count - 1)

    def test_other_folders_do_not_count(self) -> None:
        with tempfile.TemporaryDirectory() as elsewhere:
            listing = Listing()
            codes = trace.trace([self.write], listing, [elsewhere])
        self.assertEqual((codes, listing.seen), ([7], []))

    def test_marks_arrive_and_are_nothing_outside(self) -> None:
        def body() -> int:
            trace.mark("first")
            trace.mark("second")
            return 0

        listing = Listing()
        self.follow(body, listing)
        trace.mark("nobody listens")
        self.assertEqual(listing.said, ["first", "second"])

    def test_follows_a_new_program(self) -> None:
        script = f"open({self.path('made')!r}, 'w').write('x')"

        def body() -> int:
            os.execv(sys.executable, [sys.executable, "-B", "-S", "-c", script])

        listing = Listing()
        self.assertEqual(self.follow(body, listing), 0)
        self.assertEqual([name for _, name, _ in listing.seen], ["made", "made"])

    def test_several_children_at_once(self) -> None:
        def body(name: str) -> Callable[[], int]:
            def run() -> int:
                with open(self.path(name), "w") as file:
                    file.write(name)
                return len(name)

            return run

        listing = Listing()
        bodies = [body("x"), body("yy"), body("zzz")]
        self.assertEqual(trace.trace(bodies, listing, [self.folder]), [1, 2, 3])
        self.assertEqual({name for _, name, _ in listing.seen}, {"x", "yy", "zzz"})

    def test_a_raising_child_is_an_exit_code(self) -> None:
        with mock.patch("sys.excepthook"):
            self.assertEqual(self.follow(lambda: 1 // 0, Listing()), 125)

    def test_a_seed_makes_two_runs_write_the_same_bytes(self) -> None:
        seed = self.path("seed")
        with open(seed, "wb") as file:
            file.write(bytes(range(256)))

        def body(name: str) -> Callable[[], int]:
            def run() -> int:
                with closing(sqlite3.connect(self.path(name))) as connection:
                    connection.execute("PRAGMA journal_mode=wal")
                    connection.execute("CREATE TABLE t (x)")
                    os.link(self.path(name + "-wal"), self.path(name + "-kept"))
                return 0

            return run

        kept = []
        for name, chosen in (("one", seed), ("two", seed), ("three", None)):
            trace.trace([body(name)], trace.Watcher(), [self.folder], chosen)
            with open(self.path(name + "-kept"), "rb") as log:
                kept.append(log.read())
        self.assertEqual(kept[0], kept[1])
        self.assertNotEqual(kept[0], kept[2])


class Tables(unittest.TestCase):
    def test_every_call_says_which_file_it_changes(self) -> None:
        for name, machine in trace.MACHINES.items():
            with self.subTest(name):
                self.assertLessEqual(machine.calls.keys(), trace.NAMES.keys())

    def test_numbers_are_those_of_the_system_headers(self) -> None:
        for name, header in HEADERS.items():
            with self.subTest(name):
                if not os.path.exists(header):
                    self.skipTest(f"no {header}")
                with open(header) as file:
                    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read())
                numbers = {call: int(number) for call, number in found}
                calls = trace.MACHINES[name].calls
                self.assertEqual({call: numbers[call] for call in calls}, calls)

    def test_elsewhere_it_says_why_not(self) -> None:
        ask = trace.unavailable.__wrapped__
        with mock.patch("sys.platform", "darwin"):
            self.assertIn("Linux", str(ask()))
        with mock.patch("platform.machine", lambda: "riscv64"):
            self.assertIn("riscv64", str(ask()))


@needs_trace
class Deaths(unittest.TestCase):
    """A few cases of the instrument on the lab itself; `prove syscalls` does them all."""

    def work(self, do: Callable[[bench.Bench, syscalls.Worker], object], lab: str = LAB) -> object:
        """In a process of its own, since the lab is imported anew."""
        settings = Settings(True, 1, lab)

        def work(index: int, jobs: int, tell: pool.Tell) -> object:
            with tempfile.TemporaryDirectory() as folder:
                place = bench.Bench(lives.load(lab), folder)
                return do(place, syscalls.Worker(settings, place, index, jobs, tell))

        return pool.spread(1, work)[0]

    def test_copies_are_what_sigkill_leaves_and_all_recovers(self) -> None:
        def do(place: bench.Bench, worker: syscalls.Worker) -> object:
            film = place.film(lives.BASE)
            chosen = film.frames[:: len(film.frames) // 8]
            worker.quick = False
            worker.single(lives.BASE, film, chosen)
            return worker.violations, worker.counts["deaths"] - len(chosen)

        self.assertEqual(self.work(do), ([], 0))

    def test_a_failing_disk_loses_nothing(self) -> None:
        def do(place: bench.Bench, worker: syscalls.Worker) -> list[Violation]:
            for number in (3, 60, 150):
                for error in bench.ERRORS:
                    worker.error(lives.BASE, number, error, "on")
            return worker.violations

        self.assertEqual(self.work(do), [])

    def test_names_can_be_replayed(self) -> None:
        for name in ("base/90-after", "base/run/90-after/40-before", "base/EIO-once/90"):
            with self.subTest(name), tempfile.TemporaryDirectory() as keep:
                settings = Settings(True, 1, LAB, keep)
                again = functools.partial(syscalls.replay, f"syscalls/{name}", settings)
                found = pool.spread(1, lambda *_, go=again: quietly(go))
                self.assertEqual(found, [[]])
                self.assertTrue(os.path.exists(os.path.join(keep, "left", "lab.sqlite")))

    def test_names_that_no_violation_has(self) -> None:
        for name in ("", "base/x", "base/EIO-once/9999", "base/EIO-once", "base/9-beside"):

            def refused(name: str = name) -> bool:
                with self.assertRaises(NoCase):
                    syscalls.replay(f"syscalls/{name}", Settings(True, 1, LAB))
                return True

            with self.subTest(name):
                self.assertTrue(pool.spread(1, lambda *_, go=refused: go())[0])

    def test_a_difference_between_copy_and_death_is_reported(self) -> None:
        def do(place: bench.Bench, worker: syscalls.Worker) -> list[Violation]:
            worker.same("x", {"a": b"1", "b": b"2"}, {"a": b"1", "b": b"3"})
            return worker.violations

        found = self.work(do)
        self.assertEqual(found, [Violation("syscalls/x", judge.SAME, "these differ: b")])


if __name__ == "__main__":
    unittest.main()
