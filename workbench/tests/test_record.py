"""The recorded runs: still true, usable as they lie there, and of no machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from workbench import record
from workbench.experiments.catalogue import EXPERIMENTS
from workbench.experiments.crew import environment, python
from workbench.experiments.timeless import differences

from .sabotage import LAB, copy_lab, empty_body

PATIENCE = 180.0
RUNS = LAB / "runs"
CONTRACT = {
    *("normal", "crash-after-collect", "effect-commit-gap"),
    *("approval", "approved-effect", "approved-before-effect"),
}
PLACES = (b"/tmp/", b"/home/", b"/root/", b"/Users/", b"/var/folders/")


def child(*words: str, lab: Path = LAB, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*python(), *words],
        cwd=lab,
        env={**environment(), **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )


class Replay(unittest.TestCase):
    """A fresh run of everything, in the strictest modes, against what is recorded."""

    def test_all_but_the_times_is_the_same(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ended = child(
                "-X", "dev", "-W", "error", "-m", "workbench", "record", "--check", TMPDIR=folder
            )
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), ended.stdout)
        lines = ended.stdout.splitlines()
        self.assertEqual(lines[-2:], ["Everything held.", "The recorded runs say the same."])
        self.assertLessEqual(max(map(len, lines)), 100)
        for each in EXPERIMENTS.values():
            self.assertTrue(any(f" {each.name} " in line for line in lines), each.name)


class Recorded(unittest.TestCase):
    """The folders as they lie in the repository."""

    def test_every_experiment_has_its_files(self) -> None:
        folders = {path.name for path in RUNS.iterdir() if path.is_dir()}
        self.assertEqual(folders, set(EXPERIMENTS))
        self.assertLessEqual(CONTRACT, folders)
        for name, experiment in EXPERIMENTS.items():
            database = record.database(experiment)
            expected = {"commands.txt", "inspect-before.json", "inspect-after.json"}
            expected |= {"evaluation.json", "timeline.svg"}
            expected |= {database, f"{database}.publisher.sqlite"}
            self.assertEqual({path.name for path in (RUNS / name).iterdir()}, expected)

    def test_a_database_is_one_file_that_a_look_leaves_alone(self) -> None:
        for name, experiment in EXPERIMENTS.items():
            database = RUNS / name / record.database(experiment)
            files = (database, Path(f"{database}.publisher.sqlite"))
            before = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
            for path in files:
                self.assertEqual(path.read_bytes()[18:20], b"\x01\x01", f"{path}: not one file")
            judged = child("evaluate.py", "--db", str(database))
            recorded = json.loads((RUNS / name / "evaluation.json").read_text("utf-8"))
            self.assertEqual(json.loads(judged.stdout), recorded, name)
            program = "approval_cli.py" if experiment.approvals else "cli.py"
            shown = json.loads(child(program, "inspect", "--db", str(database)).stdout)
            kept = json.loads((RUNS / name / "inspect-after.json").read_text("utf-8"))
            shown.pop("now"), kept.pop("now")
            for view in (shown, kept):  # `expired` is read from the clock, and that has gone on
                (view.get("approval") or {}).pop("state", None)
            self.assertEqual(shown, kept, name)
            after = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
            self.assertEqual(before, after)
            self.assertEqual(len(list(database.parent.iterdir())), 7)

    def test_no_machine_is_in_any_file(self) -> None:
        record.check_traces(RUNS, LAB)
        for path in RUNS.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                self.assertFalse([place for place in PLACES if place in data], path)

    def test_the_readme_is_the_one_that_record_writes(self) -> None:
        verdicts = {
            name: json.loads((RUNS / name / "evaluation.json").read_text("utf-8"))["verdict"]
            for name in EXPERIMENTS
        }
        self.assertEqual((RUNS / "README.md").read_text("utf-8"), record.readme(verdicts))


class Careful(unittest.TestCase):
    """Nothing is replaced unless everything held, and then as a whole."""

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name).resolve()

    def test_a_lab_that_does_not_hold_is_not_recorded(self) -> None:
        lab = copy_lab(self.folder / "lab")
        empty_body(lab / "approval_runtime.py", "ApprovalRuntime.validate_binding")
        ended = child("-m", "workbench", "record", "approval-drift", lab=lab)
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(ended.stdout.splitlines()[-1], "Did not hold: approval-drift.")
        self.assertFalse((lab / "runs").exists())

    def test_a_recording_replaces_a_folder_as_a_whole(self) -> None:
        into = self.folder / "runs"
        (into / "normal").mkdir(parents=True)
        (into / "normal" / "stale.txt").write_text("from before")
        ended = child("-m", "workbench", "record", "normal", "--into", str(into))
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), ended.stdout)
        self.assertEqual([path.name for path in into.iterdir()], ["normal"])
        self.assertEqual(len(list((into / "normal").iterdir())), 7)
        self.assertEqual(differences(RUNS / "normal", into / "normal"), [])

    def test_a_swap_that_fails_brings_the_old_folder_back(self) -> None:
        target = self.folder / "target"
        target.mkdir()
        (target / "old.txt").write_text("old")
        with self.assertRaises(OSError):
            record.swap(self.folder / "absent", target, self.folder / "aside")
        self.assertEqual([path.name for path in target.iterdir()], ["old.txt"])

    def test_a_trace_is_found_in_a_database(self) -> None:
        (self.folder / "one").mkdir()
        (self.folder / "one" / "x.sqlite").write_bytes(
            b"\x00" + str(self.folder).encode() + b"\x00"
        )
        with self.assertRaisesRegex(record.NotRecorded, r"x\.sqlite holds"):
            record.check_traces(self.folder / "one", self.folder)

    def test_another_fact_is_a_difference_and_another_time_is_none(self) -> None:
        source, one = RUNS / "approval", self.folder / "one"
        one.mkdir()
        for path in source.iterdir():
            (one / path.name).write_bytes(path.read_bytes())
        kept = (one / "inspect-after.json").read_text("utf-8")
        (one / "inspect-after.json").write_text(kept.replace('"now": 1', '"now": 2'), "utf-8")
        self.assertEqual(differences(source, one), [])
        (one / "inspect-after.json").write_text(kept.replace("executed", "pending"), "utf-8")
        self.assertRegex("\n".join(differences(source, one)), "executed.*became.*pending")


if __name__ == "__main__":
    unittest.main()
