"""`python3 -m workbench record`: run the experiments and keep what came of them in runs/.

Guarantee: only runs in which everything held are recorded, a folder is replaced as a whole or not
at all, and nothing of the recording machine (paths, host name) is in any file. Limit: the times are
those of the recording; `--check` compares everything else with a fresh run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli import Interrupted, signals

from .experiments.catalogue import EXPERIMENTS, add_names, chosen
from .experiments.command import conclude
from .experiments.crew import environment, python
from .experiments.keeping import keep
from .experiments.runner import Report
from .experiments.screen import Progress, Screen
from .experiments.script import Experiment
from .experiments.stage import LAB, Failed, Hooks, Plan, run_all, scratch
from .experiments.timeless import differences

RUNS = LAB / "runs"
PICTURE = "timeline.svg"
PICTURE_SECONDS = 60.0
README = """# Recorded runs

One folder for each experiment, made by `python3 -m workbench record`. The names are the same in
all of them:

| file | what it is |
|---|---|
| `commands.txt` | the commands as typed, each with its output, its words and its exit code |
| `inspect-before.json` | the job as `inspect` showed it before the recovery, decision or end |
| `inspect-after.json` | the job as `inspect` showed it in the end |
| `evaluation.json` | what `evaluate.py` says of both databases |
| `lab.sqlite`, `approval.sqlite` | the local database, of an experiment without or with approvals |
| `*.publisher.sqlite` | the report service's database |
| `timeline.svg` | the job's life, drawn from the two databases alone |

The databases are copies made by SQLite's own backup, each a single file with a rollback journal.
They can be looked at as they lie here:

```
python3 evaluate.py --db runs/{example}/lab.sqlite
python3 cli.py inspect --db runs/{example}/lab.sqlite
```

| experiment | what was broken | what held | verdict | it does not prove |
|---|---|---|---|---|
{rows}

`python3 -m workbench record --check` runs everything again and compares all that does not depend
on time: statuses, generations, steps, receipts, hashes, events and their order, exit codes, words.
"""


class NotRecorded(Exception):
    """The recording cannot be kept; the line says why, and nothing was replaced."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_names(parser, "only these (default: all)")
    parser.add_argument("--into", metavar="DIR", default=str(RUNS), help="default: the lab's runs")
    parser.add_argument(
        "--check", action="store_true", help="compare with what is recorded; write nothing"
    )


def execute(arguments: argparse.Namespace) -> int:
    experiments = chosen(arguments)
    screen = Screen(sys.stdout)
    try:
        with signals(), scratch() as folder:
            reports, held = perform(experiments, folder, screen)
            if held:
                return held
            recorded = folder / "recorded"
            for report in reports:
                record(report, recorded / report.experiment.name)
            if arguments.check:
                check_traces(recorded, folder)
                return compare(reports, recorded, Path(arguments.into), screen)
            for report in reports:
                draw(recorded / report.experiment.name, database(report.experiment))
            check_traces(recorded, folder)
            replace(reports, recorded, Path(arguments.into))
            screen.say(f"Recorded in {arguments.into}.")
            return 0
    except Interrupted as interrupted:
        print("interrupted; nothing was recorded", file=sys.stderr)
        return int(interrupted.args[0])
    except (Failed, NotRecorded, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def database(experiment: Experiment) -> str:
    """The database's name in a recording: the default of its command line."""
    return "approval.sqlite" if experiment.approvals else "lab.sqlite"


def perform(
    experiments: Sequence[Experiment], folder: Path, screen: Screen
) -> tuple[list[Report], int]:
    """Run them in folder/run and say what held; the reports and the exit code."""
    progress = Progress([each.name for each in experiments])
    (folder / "run").mkdir()
    (folder / "recorded").mkdir()
    begin = time.monotonic()
    try:
        hooks = Hooks(ended=lambda r: progress.ended(r.experiment.name), tick=progress.draw)
        reports = run_all(Plan(experiments, folder / "run", database, saving=True), hooks)
    finally:
        progress.clear()
    return reports, conclude(reports, time.monotonic() - begin, screen)


def record(report: Report, into: Path) -> None:
    """Put one run into a new folder."""
    into.mkdir()
    keep(report, into)
    name = database(report.experiment)
    for file in (name, f"{name}.publisher.sqlite"):
        copy(report.evidence.folder / file, into / file)


def copy(source: Path, target: Path) -> None:
    """A database as one file with a rollback journal, by SQLite's own backup."""
    with (
        contextlib.closing(sqlite3.connect(source)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
        new.execute("PRAGMA journal_mode=DELETE").fetchone()
    beside = [path.name for path in target.parent.glob(f"{target.name}-*")]
    if beside:
        raise NotRecorded(f"{beside[0]} was left beside {target.name}")


def draw(folder: Path, name: str) -> None:
    """The picture, by the workbench's own command, from the recorded databases."""
    command = ["-m", "workbench", "timeline", "--db", name, "--format", "svg", "-o", PICTURE]
    ended = subprocess.run(
        [*python(), *command],
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(LAB)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PICTURE_SECONDS,
    )
    if ended.returncode:
        words = ended.stderr.decode("utf-8", "replace").strip()
        raise NotRecorded(f"the timeline of {folder.name} could not be drawn: {words}")


def check_traces(recorded: Path, folder: Path) -> None:
    """NotRecorded if any file, a database included, tells where it was made."""
    tells = {str(folder), str(folder.resolve()), str(LAB), f"{socket.gethostname()}:"}
    home = os.path.expanduser("~")
    tells |= {home} if len(home) > 1 else set()
    for path in sorted(recorded.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        for words in tells:
            if words.encode() in data:
                raise NotRecorded(f"{path.relative_to(recorded)} holds {words!r}")


def compare(reports: Sequence[Report], recorded: Path, runs: Path, screen: Screen) -> int:
    """Say what differs between the recorded runs and these; exit code 1 if anything does."""
    found = []
    for report in reports:
        name = report.experiment.name
        if not (runs / name).is_dir():
            found.append(f"{name}: not recorded")
            continue
        different = differences(runs / name, recorded / name)
        found += [f"{name}: {line}" for line in different]
    for line in found:
        screen.say(line)
    screen.say("The recorded runs differ." if found else "The recorded runs say the same.")
    return 1 if found else 0


def replace(reports: Sequence[Report], recorded: Path, runs: Path) -> None:
    """Put the new folders in the old ones' place, each as a whole."""
    runs.mkdir(parents=True, exist_ok=True)
    with staging(runs) as stage:
        for report in reports:
            shutil.copytree(recorded / report.experiment.name, stage / "new")
            swap(stage / "new", runs / report.experiment.name, stage / "old")
        verdicts = {report.experiment.name: report.verdict for report in reports}
        if verdicts.keys() == EXPERIMENTS.keys():
            (stage / "README.md").write_text(readme(verdicts), "utf-8")
            os.replace(stage / "README.md", runs / "README.md")


@contextlib.contextmanager
def staging(runs: Path) -> Iterator[Path]:
    """A folder on the same file system, gone afterwards."""
    stage = Path(tempfile.mkdtemp(prefix=".recording-", dir=runs))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def swap(new: Path, target: Path, old: Path) -> None:
    """Rename the target away and the new folder in; the old one comes back if that fails."""
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    if old.exists():
        shutil.rmtree(old)


def readme(verdicts: dict[str, str]) -> str:
    rows = [
        f"| [`{each.name}`]({each.name}/commands.txt) | {each.broken} | {each.held} "
        f"| {verdicts[each.name]} | {each.unproven} |"
        for each in EXPERIMENTS.values()
    ]
    return README.format(example="effect-commit-gap", rows="\n".join(rows))
