"""No checkpoint meets a writer: the log is folded in only by one that holds the file alone.

Guarantee: while workers, a canceller and a reader of one local database run at once, every write to
the database file itself is seen, and the kernel's own table of locks says that the writing process
has the whole range of SQLite's shared locks for itself. (SQLite before 3.51.3 can corrupt a
database when a checkpoint meets a writer.) Limit: the schedules that the processes happened to
take.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence

from workbench.prove import trace
from workbench.prove.invariants import INTEGRITY
from workbench.prove.judge import ALONE
from workbench.prove.lives import Edit, Lab, Stage, connecting

SHARED_FIRST, SHARED_LAST = 0x40000002, 0x400001FF  # SQLite's range of shared locks
MOST, JOBS = 4, ("a", "b", "c", "d", "e", "f")  # workers at once, and what they work on
READINGS = 20
WRITES = "writes to the database file"
FOLDS = "folds of the log"
CHANGES = ("write", "pwrite64", "writev", "ftruncate")


class Guard(trace.Watcher):
    """Looks into the table of locks at every write to the database file."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        self.counts: Counter[str] = Counter()
        self.findings: list[tuple[str, str]] = []
        self._last: int | None = None

    def entry(self, call: trace.Call) -> int:
        if call.name in CHANGES and call.paths[0] == self.path:
            self.counts[WRITES] += 1
            if self._last != call.pid:
                self.counts[FOLDS] += 1
            self._last = call.pid
            wrong = self._shared_with(call.pid)
            if wrong:
                self.findings.append((ALONE, f"{call.name} by a process while {wrong}"))
        elif call.paths[0] == self.path + "-wal":
            self._last = None
        return trace.PASS

    def _shared_with(self, pid: int) -> str:
        """What contradicts that this process has the file alone; its locks stand still meanwhile.

        The table is not read in one piece: what others release makes a reading miss lines.
        """
        wrong = ""
        for _ in range(READINGS):
            wrong = self._read(pid)
            if not wrong:
                break
        return wrong

    def _read(self, pid: int) -> str:
        """What one reading of the kernel's table of locks says against it."""
        inode = str(os.stat(self.path).st_ino)
        held: dict[str, list[tuple[int, str, int, int]]] = {}  # by device: who, what, from, to
        with open("/proc/locks") as table:
            for line in table:
                # 1: POSIX  ADVISORY  WRITE 123 00:1a:77 1073741826 1073742335
                fields = line.split()
                if "->" in fields or fields[5].rsplit(":", 1)[1] != inode:
                    continue
                last = SHARED_LAST if fields[7] == "EOF" else int(fields[7])
                found = int(fields[4]), fields[3], int(fields[6]), last
                held.setdefault(fields[5], []).append(found)
        for locks in held.values():
            mine = [lock for lock in locks if lock[0] == pid]
            if any(w == "WRITE" and a <= SHARED_FIRST and b >= SHARED_LAST for _, w, a, b in mine):
                others = [lock for lock in locks if lock[0] != pid]
                return "; ".join(f"{who} has {w} {a:#x}-{b:#x}" for who, w, a, b in others)
        return "it has no lock on the whole range"


def _crowd(lab: Lab, path: str, size: int, edit: Edit | None) -> list[Callable[[], int]]:
    """The bodies: workers that begin at different jobs, a canceller, a reader."""
    connect = connecting(edit)

    def each(jobs: Sequence[str], command: str, *more: str) -> int:
        for job in jobs:
            opened = lab.runtime.Runtime(path, connect=connect)
            with contextlib.suppress(lab.runtime.LabError), opened as runtime:
                getattr(runtime, command)(job, *more)  # to lose a race is no finding here
        return 0

    def worker(number: int) -> int:
        return each(JOBS[number:] + JOBS[:number], "run", f"worker-{number}")

    workers = [functools.partial(worker, number) for number in range(size)]
    others = [
        functools.partial(each, JOBS[::-2], "cancel"),
        functools.partial(each, JOBS, "inspect"),
    ]
    return [*workers, *others]


def checkpointing(which: str, sql: str) -> str:
    """An edit under which every commit folds the log in: what the guard must catch."""
    return sql.replace("wal_autocheckpoint=0", "wal_autocheckpoint=1")


def folds(
    lab: Lab, stage: Stage, rounds: int, edit: Edit | None = None
) -> tuple[Counter[str], list[tuple[str, str]]]:
    """Rounds of a crowd on one new database each: the counts, and every write not made alone."""
    counts: Counter[str] = Counter()
    findings: list[tuple[str, str]] = []
    for number in range(rounds):
        stage.put({})
        with lab.runtime.Runtime(stage.path) as opened:
            for job in JOBS:
                opened.submit(job)
        guard = Guard(stage.path)
        codes = trace.trace(_crowd(lab, stage.path, 1 + number % MOST, edit), guard, [stage.folder])
        if any(codes):
            findings.append((ALONE, f"children ended with {codes}"))
        facts = stage.facts()
        if facts.trouble:
            findings.append((INTEGRITY, "; ".join(facts.trouble)))
        counts += guard.counts
        findings += guard.findings
    return counts, findings
