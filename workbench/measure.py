"""`python3 -m workbench measure`: what durability costs here, as ratios within one run.

Guarantee: both sides of a ratio are measured in turns, in this run, on these files, and compared by
their medians. Limit: another machine, file system or load gives other ratios; no test asserts one.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime import LOCAL, PUBLISHER, Runtime, connect_file, encode, operation_key
from workbench import positive

LAB = Path(__file__).resolve().parent.parent
BARE_START = "import sqlite3, json, argparse, hashlib"


def in_turns(first: Callable[[int], object], second: Callable[[int], object], turns: int) -> float:
    """Median time of first over median time of second, taken alternately."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for action, spent in zip((first, second), times, strict=True):
            begin = time.perf_counter()
            action(turn)
            spent.append(time.perf_counter() - begin)
    return statistics.median(times[0]) / statistics.median(times[1])


def inspect_ratio(folder: Path, turns: int) -> float:
    """`cli.py inspect` of a finished job over a bare start of Python with the same basics."""
    database = str(folder / "inspect.sqlite")
    with Runtime(database) as runtime:
        runtime.submit("demo")
        runtime.run("demo", "worker")
    inspect = [sys.executable, str(LAB / "cli.py"), "inspect", "--db", database]
    bare = [sys.executable, "-c", BARE_START]

    def start(command: list[str]) -> Callable[[int], object]:
        return lambda _: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    return in_turns(start(inspect), start(bare), turns)


class BareLoop:
    """The rows of one job and nothing else: no check, no fence, no recovery."""

    def __init__(self, database: str, checkpoints: dict[str, Any]) -> None:
        self.publisher, self.checkpoints = f"{database}.publisher.sqlite", checkpoints
        self.local = connect_file(f"file:{database}", 5.0)
        for pragma in (f"synchronous={LOCAL.synchronous}", "wal_autocheckpoint=0"):
            self.local.execute(f"PRAGMA {pragma}")

    def run(self, job: str) -> None:
        self.write(
            job,
            ("UPDATE jobs SET status = 'running', owner = 'w', generation = 1, attempts = 1"),
            (("claimed", "w"), ("lease_renewed", encode(time.time()))),
        )
        for step, payload in self.checkpoints.items():
            last = step == "publish"
            if last:
                self.publish(job)
            change = "status = 'succeeded', owner = NULL" if last else "lease_until = 1"
            renewal = () if last else (("lease_renewed", encode(time.time())),)
            events = (("step_committed", step), *renewal)
            self.write(job, f"UPDATE jobs SET {change}", events, (step, encode(payload)))  # noqa: S608

    def write(
        self,
        job: str,
        update: str,
        events: tuple[tuple[str, str], ...],
        checkpoint: tuple[str, str] | None = None,
    ) -> None:
        now = time.time()
        self.local.execute("BEGIN IMMEDIATE")
        if checkpoint:
            self.local.execute("INSERT INTO checkpoints VALUES (?, ?, ?)", (job, *checkpoint))
        self.local.execute(f"{update} WHERE id = ?", (job,))
        for kind, detail in events:
            self.local.execute(
                "INSERT INTO events (job_id, at, generation, kind, detail) VALUES (?, ?, 1, ?, ?)",
                (job, now, kind, detail),
            )
        self.local.execute("COMMIT")

    def publish(self, job: str) -> None:
        op = operation_key(job)
        publisher = connect_file(f"file:{self.publisher}", 5.0)
        publisher.execute(f"PRAGMA synchronous={PUBLISHER.synchronous}")
        publisher.execute("BEGIN IMMEDIATE")
        publisher.execute("INSERT INTO receipts VALUES (?, ?, ?)", (op, op, f"report-{op[:12]}"))
        publisher.execute("COMMIT")
        publisher.close()


def job_ratio(folder: Path, turns: int) -> float:
    """A job run in process over a bare loop that writes the same rows in the same modes."""
    jobs = [f"job-{turn}" for turn in range(turns)]
    with Runtime(str(folder / "lab.sqlite")) as lab, Runtime(str(folder / "bare.sqlite")) as other:
        for job in jobs:
            lab.submit(job)
            other.submit(job)
        lab.submit("first")
        lab.run("first", "worker")
        bare = BareLoop(str(folder / "bare.sqlite"), lab.inspect("first")["checkpoints"])
        try:
            return in_turns(
                lambda turn: lab.run(jobs[turn], "worker"), lambda turn: bare.run(jobs[turn]), turns
            )
        finally:
            bare.local.close()


def claim_ratio(folder: Path, turns: int, many: int) -> float:
    """A claim by id among `many` jobs over one among ten."""
    runtimes = []
    for count in (many, 10):
        runtime = Runtime(str(folder / f"claim-{count}.sqlite"))
        runtimes.append(runtime)
        names = [f"claim-{turn}" for turn in range(turns)]
        for name in names:
            runtime.submit(name)
        fill(runtime.path, count - 10)
    large, small = runtimes
    try:
        return in_turns(
            lambda turn: large.claim(f"claim-{turn}", "worker"),
            lambda turn: small.claim(f"claim-{turn}", "worker"),
            turns,
        )
    finally:
        for runtime in runtimes:
            runtime.close()


def fill(database: str, count: int) -> None:
    """Queued jobs with their first event, written in one transaction."""
    if count <= 0:
        return
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO jobs (id, spec, input_hash, status, scope, memory_rev, memory_expires,"
            " deadline) SELECT 'filler-' || i, j.spec, j.input_hash, 'queued', j.scope, 0, 0,"
            " j.deadline FROM n, (SELECT * FROM jobs LIMIT 1) AS j",
            (count,),
        )
        connection.execute(
            "INSERT INTO events (job_id, at, generation, kind, detail)"
            " SELECT id, 0, 0, 'submitted', '{}' FROM jobs WHERE id LIKE 'filler-%'"
        )
        connection.execute("COMMIT")
    finally:
        connection.close()


def count_syncs(folder: Path) -> int | None:
    """fsync and fdatasync calls of one `cli.py run`, or None where they cannot be followed."""
    from workbench.prove import trace

    if trace.unavailable():
        return None
    database = str(folder / "syncs.sqlite")
    with Runtime(database) as runtime:
        runtime.submit("demo")

    class Syncs(trace.Watcher):
        count = 0

        def entry(self, call: trace.Call) -> int:
            self.count += call.name in ("fsync", "fdatasync")
            return trace.PASS

    def whole_job() -> int:
        with Runtime(database) as runtime:
            runtime.run("demo", "worker")
        return 0

    watcher = Syncs()
    trace.trace([whole_job], watcher, [str(folder)])
    return watcher.count


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--turns", type=positive, default=60, help="of each side (default: %(default)s)"
    )
    parser.add_argument(
        "--many",
        type=positive,
        default=1_000_000,
        help="jobs in the large database (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(arguments: argparse.Namespace) -> int:
    turns = max(3, arguments.turns)
    with tempfile.TemporaryDirectory(prefix="lab-measure-") as name:
        folder = Path(os.path.realpath(name))
        measured = {
            "inspect_over_bare_start": round(inspect_ratio(folder, max(3, turns // 3)), 2),
            "job_over_bare_writes": round(job_ratio(folder, turns), 2),
            "syncs_of_a_job": count_syncs(folder),
            f"claim_among_{arguments.many}_over_10": round(
                claim_ratio(folder, turns, arguments.many), 2
            ),
        }
    if arguments.json:
        print(json.dumps(measured))
        return 0
    for what, value in measured.items():
        print(f"{what:34} {'not measurable here' if value is None else value}")
    return 0
