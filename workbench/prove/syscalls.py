"""Death at every file-changing system call of a job's life, and at every one of its recovery.

Guarantee, within the bounds that `run` states: SIGKILL at the entry and at the exit of each call,
then at each call of the recovery; and each call failed with EIO and ENOSPC, once and for good. The
single deaths are real; the second ones are files copied while the process stands at the call, which
the single deaths prove to be byte for byte what SIGKILL leaves. Limit: stores into the `-shm` map
are not calls; its first opener rebuilds that file, so images that differ only there count once.
"""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections import Counter
from collections.abc import Sequence

from workbench.prove import folding, invariants, judge, lives, pool
from workbench.prove.bench import (
    ERRORS,
    FIRST,
    LATER,
    SECOND,
    Bench,
    Film,
    Frame,
    LifeFailed,
    chosen,
    divided,
    image_key,
    scratch,
)
from workbench.prove.lives import Facts, Files, Life
from workbench.prove.report import NoCase, Result, Settings, Violation

NAME = "syscalls"
WAYS = ("run", "cancel")
SPANS = ("once", "on")  # one call fails, or all from that one on
STOP = r"\d+-(before|after)"
SHAPE = re.compile(
    rf"{NAME}/({'|'.join(lives.LIVES)})"
    rf"(/{STOP}|/({'|'.join(WAYS)})/{STOP}(/{STOP})?"
    rf"|/({'|'.join(ERRORS)})-({'|'.join(SPANS)})/\d+|/command/\d+-before)?"
)
# The counts of a run, in this order.
COUNTS = (
    *(f"calls of {life}" for life in lives.LIVES),
    "deaths",
    "pairs of deaths",
    "images after two deaths",
    "second deaths by SIGKILL",
    "failed calls",
    "deaths of command lines",
    "writes to the database file",
)


class Worker:
    """One process's share of the cases, and what it found."""

    def __init__(
        self, settings: Settings, bench: Bench, index: int, jobs: int, tell: pool.Tell
    ) -> None:
        self.quick, self.bench, self.index, self.jobs = settings.quick, bench, index, jobs
        self.tell = tell
        self.counts: Counter[str] = Counter()
        self.violations: list[Violation] = []

    def report(self, name: str, findings: Sequence[judge.Finding]) -> None:
        self.violations += [Violation(f"{NAME}/{name}", *finding) for finding in findings]

    def step(self, quick: int) -> int:
        """Every case, or in the quick form one in so many."""
        return quick if self.quick else 1

    def share(self, things: list[Frame]) -> list[Frame]:
        """This worker's contiguous part: neighbours leave the same images after a while."""
        size = -(-len(things) // self.jobs)
        return things[self.index * size : (self.index + 1) * size]

    def life(self, life: Life) -> None:
        """All cases of one life."""
        try:
            film = self.bench.film(life)
        except LifeFailed as error:
            self.report(life.name, [(invariants.RESTS, f"undisturbed it fails: {error}")])
            return
        if self.index == 0:
            self.counts[f"calls of {life.name}"] = film.calls
        self.report(life.name, film.guard.findings)
        mine = self.share(film.frames)
        self.single(life, film, mine)
        self.double(life, mine)
        self.errors(life, film)
        self.commands(life)

    def same(self, name: str, killed: Files, copied: Files) -> None:
        """What lets copies stand for deaths: SIGKILL leaves the same bytes."""
        if killed != copied:
            names = sorted(killed.keys() | copied.keys())
            differ = [n for n in names if killed.get(n) != copied.get(n)]
            self.report(name, [(judge.SAME, f"these differ: {', '.join(differ)}")])

    def single(self, life: Life, film: Film, mine: list[Frame]) -> None:
        """A real death at each stop; equal images are recovered once."""
        known: set[bytes] = set()
        for frame in mine[:: self.step(4)]:
            files = self.bench.kill(life, frame.label)
            name = f"{life.name}/{frame.label}"
            self.same(name, files, frame.files)
            facts = self.bench.seen(files)
            self.report(name, judge.look(facts, film.history, frame.acknowledged).findings)
            key = image_key(files)
            for way in () if key in known else WAYS:
                findings = self.bench.end(life, way, files, FIRST, facts)
                self.report(f"{life.name}/{way}/{frame.label}", findings)
            known.add(key)
            self.counts["deaths"] += 1
            self.tell(1)

    def double(self, life: Life, mine: list[Frame]) -> None:
        """A second death at each stop of each recovery; equal images are recovered once."""
        for way in WAYS:
            firsts: set[bytes] = set()
            seconds: dict[bytes, Facts] = {}
            for first in mine[:: self.step(32)]:
                key = first.key
                if key not in firsts:
                    firsts.add(key)
                    self.recovery(life, way, first, seconds)
                    self.tell(1)
            self.counts["images after two deaths"] += len(seconds)

    def recovery(self, life: Life, way: str, first: Frame, seconds: dict[bytes, Facts]) -> None:
        """One recovery, and what follows a second death at each of its stops."""
        name = f"{life.name}/{way}/{first.label}"
        before = self.bench.seen(first.files)
        film, wrong = self.bench.film_recovery(life, way, first.files, before.status)
        if wrong:
            self.report(name, [(invariants.RESTS, wrong)])
        self.report(name, film.guard.findings)
        self.counts["writes to the database file"] += film.guard.counts[folding.WRITES]
        for second in film.frames[:: self.step(16)]:
            self.counts["pairs of deaths"] += 1
            key = second.key
            facts = seconds.get(key)
            if facts is None:
                facts = seconds[key] = self.bench.seen(second.files)
                findings = self.bench.end(life, way, second.files, SECOND, facts)
                self.report(f"{name}/{second.label}", findings)
            changes = invariants.judge_change(before.image, facts.image)
            self.report(f"{name}/{second.label}", changes)
        if not film.frames:
            return  # the job had ended
        middle = film.frames[len(film.frames) // 2]
        killed = self.bench.kill_recovery(life, way, first.files, middle.label, before.status)
        self.same(f"{name}/{middle.label}", killed, middle.files)
        self.counts["second deaths by SIGKILL"] += 1

    def errors(self, life: Life, film: Film) -> None:
        """Each call fails, once or from there on; then the disk is well again."""
        for number in range(1 + self.index, film.calls + 1, self.jobs):
            if number % self.step(16) != number // self.step(16) % self.step(16):
                continue
            for error in ERRORS:
                for span in SPANS:
                    self.error(life, number, error, span)
            self.tell(1)

    def error(self, life: Life, number: int, error: str, span: str) -> Files:
        """One failed call, then recovery on a well disk; the files that the failure left."""
        name = f"{life.name}/{error}-{span}/{number}"
        failer, said = self.bench.fail(life, number, error, span)
        files = self.bench.stage.copy()
        self.counts["failed calls"] += 1
        if said.startswith("not the lab") or "rollback" in said.lower():
            self.report(name, [(judge.CLEAR, said)])
        facts = self.bench.seen(files)
        answered = self.bench.seen(failer.acknowledged)
        lost = invariants.judge_change(answered.image, facts.image)
        self.report(name, [*invariants.judge(facts.image), *((judge.HELD, why) for _, why in lost)])
        self.report(name, self.bench.end(life, "run", files, FIRST, facts))
        return files

    def commands(self, life: Life) -> None:
        """The last command as its command line in a new Python, killed at each call."""
        step = self.step(16)
        for number in itertools.count((1 + self.index) * step, self.jobs * step):
            files = self.bench.kill_command(life, f"{number}-before")
            if files is None:
                return
            name = f"{life.name}/command/{number}-before"
            self.report(name, self.bench.end(life, "run", files, time.time() + LATER))
            self.counts["deaths of command lines"] += 1
            self.tell(1)

    def again(self, life: Life, what: str, labels: list[str]) -> Files:
        """One case by the parts of its name; the files that the death or the error left."""
        name = "/".join(part for part in (life.name, what, *labels) if part)
        if what == "command":
            files = self.bench.kill_command(life, labels[0])
            if files is None:
                raise NoCase("the command ended before that call")
            self.report(name, self.bench.end(life, "run", files, time.time() + LATER))
        elif not what:
            self.report(name, self.bench.film(life).guard.findings)
            files = self.bench.stage.copy()
        elif what in WAYS:
            files = self.bench.kill(life, labels[0])
            clock, before = FIRST, self.bench.seen(files)
            film, wrong = self.bench.film_recovery(life, what, files, before.status)
            self.report(
                name, [*film.guard.findings, *([(invariants.RESTS, wrong)] if wrong else [])]
            )
            if len(labels) == 2:
                clock = SECOND
                frame = film.frame(labels[1])
                files = self.bench.kill_recovery(life, what, files, labels[1], before.status)
                self.same(name, files, frame.files)
                changes = invariants.judge_change(before.image, self.bench.seen(files).image)
                self.report(name, changes)
            self.report(name, self.bench.end(life, what, files, clock))
        elif labels:
            error, span = what.split("-")
            calls = self.bench.film(life).calls
            if not 1 <= int(labels[0]) <= calls:
                raise NoCase(f"{life.name} has {calls} calls")
            files = self.error(life, int(labels[0]), error, span)
        else:
            film = self.bench.film(life)
            frame = film.frame(what)
            files = self.bench.kill(life, what)
            self.same(name, files, frame.files)
            seen = judge.look(self.bench.seen(files), film.history, frame.acknowledged)
            self.report(name, seen.findings)
        return files


def run(settings: Settings) -> Result:
    """Every case within the bounds; see the module's docstring."""
    bounds = (
        "one worker at a time; commands memory-put, submit, run (and approve, run); two deaths; "
        "recovery by run or by cancel; EIO and ENOSPC at each call, once and for good (ENOSPC then"
        " for what needs space)"
    ) + (
        "; quick: every 4th death, one pair in 512, every 16th failed call"
        if settings.quick
        else ""
    )
    return divided(settings, NAME, bounds, COUNTS, share)


def share(
    settings: Settings, folder: str, index: int, jobs: int, tell: pool.Tell
) -> tuple[Counter[str], list[Violation]]:
    """What one of the processes does."""
    bench = Bench(lives.load(settings.lab), folder)
    worker = Worker(settings, bench, index, jobs, tell)
    for life in chosen(settings.lab):
        worker.life(life)
    return worker.counts, worker.violations


def replay(name: str, settings: Settings) -> list[Violation]:
    """Run one named case again, and leave its databases in `keep`, those of the death in `left`."""
    if SHAPE.fullmatch(name) is None:
        raise NoCase("its parts are LIFE, then CALL, WAY/CALL, WAY/CALL/CALL or ERROR-SPAN/NUMBER")
    _, life, *rest = name.split("/")
    folder = scratch()
    try:
        bench = Bench(lives.load(settings.lab), folder)
        worker = Worker(settings, bench, 0, 1, lambda done: None)
        left = worker.again(lives.LIVES[life], rest[0] if rest else "", rest[1:])
        print(f"     the files then: {', '.join(f'{n} {len(left[n])}' for n in sorted(left))}")
        if settings.keep is not None:
            bench.leave(settings.keep, left)
        return worker.violations
    finally:
        shutil.rmtree(folder)
