"""The experiments as a reader meets them: typed, predicted, kept, interrupted, sabotaged."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

from workbench import __main__ as door
from workbench.experiments import screen, script
from workbench.experiments.catalogue import EXPERIMENTS
from workbench.experiments.crew import environment, python
from workbench.experiments.evidence import Evidence, Finished
from workbench.experiments.parts import broken_checks
from workbench.experiments.prediction import questions
from workbench.experiments.runner import Checked, Report, check, facts_of
from workbench.experiments.script import Command, Experiment, Fact

from .sabotage import LAB, copy_lab, empty_body, key_by_generation

PATIENCE = 120.0
# What section 12 and the issue ask for by name.
NAMED = {
    *("normal", "crash-after-collect", "effect-commit-gap", "stale-worker", "claims-race"),
    *("retry-then-success", "memory-revoked", "cancel-mid-run", "approval", "approved-effect"),
    *("approved-before-effect", "approval-expired", "approval-drift"),
}


def workbench(
    *words: str, lab: Path = LAB, told: str = "", **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run `python3 -m workbench` in the lab's folder."""
    return subprocess.run(
        [*python(), "-m", "workbench", *words],
        cwd=lab,
        env={**environment(), **settings},
        input=told,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )


def nothing_to_see(folder: Path) -> Evidence:
    return Evidence(folder, "none.sqlite", lambda: Finished(1, "", "error: no such database"))


class InFolder(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name).resolve()


class Catalogue(unittest.TestCase):
    """What every definition must have."""

    def test_those_that_were_asked_for_are_there(self) -> None:
        self.assertLessEqual(NAMED, EXPERIMENTS.keys())
        databases = [each.db for each in EXPERIMENTS.values()]
        self.assertEqual(len(databases), len(set(databases)))

    def test_the_table_holds_them(self) -> None:
        for each in EXPERIMENTS.values():
            with self.subTest(each.name):
                self.assertLessEqual(len(each.name), screen.COLUMNS[0] - 2)
                self.assertLessEqual(len(each.broken), screen.COLUMNS[1])
                self.assertLessEqual(len(each.held), screen.COLUMNS[2])
                self.assertLessEqual(len(f"  does not prove: {each.unproven}"), 100)
                self.assertTrue((each.broken + each.held + each.unproven + each.story).isascii())

    def test_each_looks_before_and_after_and_is_judged(self) -> None:
        for each in EXPERIMENTS.values():
            kept = [s.into for s in each.steps if isinstance(s, Command) and s.into]
            self.assertEqual(
                kept, ["inspect-before.json", "inspect-after.json", "evaluation.json"], each.name
            )
            names = [fact.name for fact in facts_of(each)]
            self.assertEqual(len(names), len(set(names)), f"{each.name}: a fact's name twice")

    def test_the_lines_to_type_are_short(self) -> None:
        for each in EXPERIMENTS.values():
            for line in script.script(each):
                self.assertLessEqual(len(line), script.WIDTH, line)

    def test_each_asks_four_questions(self) -> None:
        for each in EXPERIMENTS.values():
            self.assertEqual(len(questions(each)), 4, each.name)


class Facts(InFolder):
    """A fact is read, or fails by name; it never stops the run."""

    # These say that something is absent; others say that the commands were run at all.
    ABSENCES = {
        "commands that end in a traceback",
        "exit codes other than 0 and 3",
        "files that hold the key",
    }

    def test_where_nothing_was_done_every_fact_fails(self) -> None:
        for each in EXPERIMENTS.values():
            for fact in facts_of(each):
                seen = check(fact, nothing_to_see(self.folder))
                if fact.name not in self.ABSENCES:
                    self.assertFalse(seen.held, f"{each.name}: {fact.name} holds of nothing at all")

    def test_values_are_said_plainly(self) -> None:
        empty = nothing_to_see(self.folder)
        for value, said in (([], "none"), (["a", "b"], "a, b"), (True, "yes"), (None, "none")):
            fact = Fact("f", partial(lambda value, evidence: value, value), 1)
            self.assertEqual(check(fact, empty).seen, said)

    def test_what_a_judge_could_not_judge_is_not_what_it_found(self) -> None:
        checks = [
            {"name": "one", "passed": True, "detail": ""},
            {"name": "two", "passed": False, "detail": "not judged: no"},
            {"name": "three", "passed": False, "detail": "twice"},
        ]
        self.assertEqual(broken_checks({"checks": checks, "jobs": []}), ["three"])


def report(experiment: Experiment, folder: Path, held: bool) -> Report:
    checked = [Checked("receipts", held, "1" if held else "2", "1")]
    return Report(experiment, checked, "accepted", [], nothing_to_see(folder))


class Table(InFolder):
    """The last screen, in the widths and encodings that readers have."""

    def shown(self, encoding: str, columns: int, held: bool = True) -> str:
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding)
        view = screen.Screen(stream)
        view.width = columns
        reports = [report(each, self.folder, held) for each in EXPERIMENTS.values()]
        view.table(reports)
        view.failures(reports)
        stream.flush()
        return raw.getvalue().decode(encoding)

    def test_a_hundred_columns_are_enough(self) -> None:
        for columns in (100, 80, 60):
            lines = self.shown("utf-8", columns).splitlines()
            self.assertLessEqual(max(map(len, lines)), columns)
            for each in EXPERIMENTS.values():
                text = " ".join(" ".join(lines).split())
                for words in (each.name, each.broken, each.held, each.unproven):
                    self.assertIn(words, text)

    def test_a_console_that_knows_only_ascii(self) -> None:
        self.assertTrue(self.shown("ascii", 100).isascii())

    def test_what_did_not_hold_is_named(self) -> None:
        text = self.shown("utf-8", 100, held=False)
        self.assertIn("stale-worker did not hold:\n  ✗ receipts: 2, not 1\n", text)
        self.assertIn("python3 -m workbench run stale-worker", text)


class Door(unittest.TestCase):
    """`python3 -m workbench` without a command runs the experiments."""

    def test_default(self) -> None:
        for words in ([], ["--keep", "d"], ["run"]):
            with mock.patch("workbench.experiments.command.execute", return_value=7) as execute:
                self.assertEqual(door.main(words), 7)
            self.assertFalse(execute.call_args[0][0].names)

    def test_usage(self) -> None:
        for words in (("run", "nope"), ("run", "--predict"), ("list", "nope"), ("nope",)):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
                door.main(words)
            self.assertEqual(ended.exception.code, 2)

    def test_a_reader_that_has_gone_away(self) -> None:
        pipe = f"{' '.join(python())} -m workbench list | true"
        ended = subprocess.run(["sh", "-c", pipe], cwd=LAB, capture_output=True, text=True)
        self.assertEqual(ended.stderr, "")


class Running(InFolder):
    """One experiment from the command line."""

    def test_in_full_kept_and_never_over_something(self) -> None:
        kept = self.folder / "kept"
        ended = workbench("run", "normal", "--keep", str(kept), TMPDIR=str(self.folder))
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertIn("$ python3 cli.py run --db normal.sqlite --owner first\n", ended.stdout)
        self.assertEqual(ended.stdout.splitlines()[-1], "Everything held.")
        self.assertNotIn("\x1b", ended.stdout)
        names = {path.name for path in (kept / "normal").iterdir()}
        answers = {"inspect-before.json", "inspect-after.json", "evaluation.json"}
        databases = {"normal.sqlite", "normal.sqlite.publisher.sqlite"}
        self.assertEqual(names, {"commands.txt", *answers, *databases})
        self.assertEqual(os.listdir(self.folder), ["kept"])  # nothing else was left
        again = workbench("run", "normal", "--keep", str(kept))
        self.assertEqual(again.returncode, 2)
        self.assertIn("exists", again.stderr)

    def test_a_prediction_in_a_pipe_that_ends_early(self) -> None:
        ended = workbench("run", "normal", "--predict", told="Succeeded\n-4\n\n")
        self.assertEqual(ended.returncode, 0)
        self.assertIn("Your prediction: 1 of 4\n", ended.stdout)
        for line in ("status: succeeded", "4 (you said -4)", "1 (no answer)", "0 (no answer)"):
            self.assertIn(line, ended.stdout)
        asked = ended.stdout.index("status of the job in the end: succeeded\n")
        self.assertLess(asked, ended.stdout.index("$ python3 cli.py submit"))

    def test_a_prediction_is_asked_before_anything_is_given_away(self) -> None:
        for each in EXPERIMENTS.values():
            shown = io.StringIO()
            screen.Screen(shown).listing(each, outcome=False)
            self.assertNotIn("# exit", shown.getvalue())
            self.assertNotIn(each.story[:20], shown.getvalue())

    def test_progress_moves_on_a_terminal_and_is_gone_afterwards(self) -> None:
        ours, theirs = pty.openpty()
        words = [*python(), "-m", "workbench", "run", "normal", "approval"]
        around = {**environment(), "TERM": "xterm", "COLUMNS": "100"}
        with subprocess.Popen(
            words, cwd=LAB, env=around, stdout=subprocess.PIPE, stderr=theirs
        ) as process:
            os.close(theirs)
            seen = b""
            while select.select([ours], [], [], PATIENCE)[0]:
                try:
                    piece = os.read(ours, 4096)
                except OSError:
                    break  # the other side is closed
                seen += piece
                if not piece:
                    break
            out = process.communicate(timeout=PATIENCE)[0]
        os.close(ours)
        self.assertRegex(seen, rb"\[[#.]{20}\] 0 of 2, 0 s: normal, approval")
        self.assertTrue(seen.endswith(b"\r\x1b[K"))
        self.assertNotIn(b"\x1b", out)
        self.assertEqual(process.returncode, 0)


class Interrupted(InFolder):
    """A signal ends the run, its children and its files."""

    def left(self) -> list[str]:
        """Processes that still work below our folder."""
        found = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(str(self.folder)):
                    found.append(link.parent.name)
        return found

    @unittest.skipUnless(os.path.isdir("/proc/self"), "needs /proc to look for what is left")
    def test_with_a_worker_stopped(self) -> None:
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            words = [*python(), "-m", "workbench", "run", "stale-worker"]
            with subprocess.Popen(
                words,
                cwd=LAB,
                env={**environment(), "TMPDIR": str(self.folder)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            ) as process:
                for line in process.stdout or ():
                    if "kill -TERM" in line:
                        break
                self.assertTrue(self.left())
                process.send_signal(number)
                _, err = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, code)
            self.assertEqual(err, "interrupted; every process was ended\n")
            self.assertEqual(self.left(), [])
            self.assertEqual(os.listdir(self.folder), [])


@unittest.skipUnless(shutil.which("bash"), "the lists are shell scripts")
class Typed(InFolder):
    """What `list` prints does, in a shell, what `run` does."""

    # Two at a time; the race is last, when the stale worker's script only waits for a lease.
    CHOSEN = ("stale-worker", "cancel-mid-run", "approval-drift", "claims-race")

    def setUp(self) -> None:
        super().setUp()
        self.lab = copy_lab(self.folder / "lab")
        shim = self.folder / "bin" / "python3"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        shim.chmod(0o755)

    def type(self, name: str) -> str:
        lines = workbench("list", name, lab=self.lab).stdout
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash"],
            cwd=self.lab,
            env={**environment(), "PATH": path},
            input=lines,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return ended.stdout + ended.stderr

    def test_in_bash(self) -> None:
        with ThreadPoolExecutor(2) as pool:
            said = dict(zip(self.CHOSEN, pool.map(self.type, self.CHOSEN), strict=True))
        for name in self.CHOSEN:
            told = EXPERIMENTS[name].outcome
            evidence = Evidence(self.lab, EXPERIMENTS[name].db, lambda: Finished(1, "", ""))
            with self.subTest(name):
                row = "SELECT status, generation, attempts FROM jobs"
                expected = (told.status, told.generation, told.attempts)
                self.assertEqual(evidence.local(row), [expected], said[name])
                self.assertEqual(len(evidence.publisher("SELECT op FROM receipts")), told.receipts)
                checkpoints = evidence.local("SELECT step FROM checkpoints")
                self.assertEqual(len(checkpoints), told.checkpoints)
                self.assertIn(f'"verdict": "{told.verdict}"', said[name])
                self.assertNotIn("Traceback", said[name])


class Sabotaged(InFolder):
    """A lab with one mechanism taken out fails, and the experiment and the fact are named."""

    def sabotaged(self, name: str, *experiments: str) -> str:
        lab = copy_lab(self.folder / name)
        if name == "guard":
            empty_body(lab / "runtime.py", "Runtime.guard", "return self._own(job)")
        elif name == "key":
            key_by_generation(lab / "runtime.py")
        else:
            empty_body(lab / "approval_runtime.py", "ApprovalRuntime.validate_binding")
        ended = workbench("run", *experiments, lab=lab)
        self.assertEqual(ended.returncode, 1, ended.stdout + ended.stderr)
        return ended.stdout

    def test_each(self) -> None:
        with ThreadPoolExecutor(3) as pool:
            guard = pool.submit(self.sabotaged, "guard", "stale-worker", "cancel-mid-run")
            key = pool.submit(self.sabotaged, "key", "effect-commit-gap", "stale-worker")
            binding = pool.submit(self.sabotaged, "binding", "approval-drift")
        for text, named, facts in (
            (
                guard.result(),
                "stale-worker, cancel-mid-run",
                ("the guard refuses first: .*, not lease lost", "receipts: 1, not 0"),
            ),
            (key.result(), "effect-commit-gap, stale-worker", ("receipts: 2, not 1",)),
            (
                binding.result(),
                "approval-drift",
                ("status: succeeded, not failed", "receipts: 1, not 0", "dispatches: 1, not 0"),
            ),
        ):
            self.assertEqual(text.splitlines()[-1], f"Did not hold: {named}.", text)
            for fact in facts:
                self.assertRegex(" ".join(text.split()), f"✗ {fact}")


if __name__ == "__main__":
    unittest.main()
