"""Power loss at every point of a job's life: each image opens, holds what was answered, recovers.

Guarantee, within the bounds of `disk`: whatever subset of the unsynced operations reached the disk,
both files open and pass integrity_check, each database is in a state at least as late as the last
acknowledged commit and no later than the commit under way, and the commands a person has bring the
job to a sound end with at most one receipt. With the publisher in the local database's folder and
in another. Weaker settings of `synchronous` must be caught: an instrument that cannot fail proves
nothing. Limit: the model of `disk`; one life at a time; the SQLite that this Python has.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from workbench.prove import disk, folding, invariants, judge, lives, pool
from workbench.prove.bench import FIRST, Bench, LifeFailed, chosen, divided, scratch
from workbench.prove.lives import Lab, Life, Stage
from workbench.prove.report import NoCase, Result, Settings, Violation

NAME = "powerloss"
PLACES = {"near": False, "apart": True}  # the publisher's folder: the local database's, another
# What must be caught. With FULL the folder of the publisher's unlinked journal is not synced: the
# journal may come back and roll an acknowledged receipt away.
CONTROLS = (
    ("local", "NORMAL"),
    ("local", "OFF"),
    ("publisher", "FULL"),
    ("publisher", "NORMAL"),
    ("publisher", "OFF"),
)
QUICK_STEP = 16  # quick: one image in so many
ENOUGH = 20  # violations of one life; a lab that syncs too little has them without end
UNSEEN = "this weakening went unseen"
SHAPE = re.compile(
    rf"{NAME}/(?:together|({'|'.join(lives.LIVES)})/({'|'.join(PLACES)})"
    r"(?:/(local|publisher)-([A-Z]+))?(?:/(\d+/(?:-|[01ht\d.]+)))?)"
)
# The counts of a run, in this order.
MOST = "operations volatile at once at most"
COUNTS = (
    "points",
    "images",
    "distinct images",
    MOST,
    "weakenings that had to be caught",
    folding.WRITES,
    folding.FOLDS,
)


class Known(NamedTuple):
    """An image that was looked at: where each database stands in it."""

    places: tuple[int | None, int | None]
    sound: bool


class Scene:
    """One recorded life, its publisher near or apart, and the images of it."""

    def __init__(
        self, bench: Bench, life: Life, place: str, control: tuple[str, str] | None = None
    ) -> None:
        self.bench, self.life = bench, life
        self.torn = not PLACES[place]  # a write is torn in the same way in any folder
        self.name = f"{NAME}/{life.name}/{place}"
        if control:
            self.name += f"/{control[0]}-{control[1]}"
        edit = lives.synchronous(*control) if control else None
        self.record = disk.Recorder(bench.stage, bench.aside)
        bench.play(life, self.record, edit)

    def points(self) -> Iterator[tuple[disk.Disk, tuple[int, int]]]:
        """The disk after each operation, and how far the commits had been acknowledged."""
        machine = disk.Disk(self.record.maps)
        acknowledged = (0, 0)
        yield machine, acknowledged
        for operation in self.record.operations:
            machine.step(operation)
            if isinstance(operation, disk.Acknowledged):
                acknowledged = operation.reached
            yield machine, acknowledged

    def find(self, label: str) -> tuple[disk.Image, tuple[int, int]]:
        """The image of this label, and what was acknowledged then."""
        point, choice = label.split("/")
        fates = () if choice == "-" else choice.split(".")
        for machine, acknowledged in self.points():
            if machine.point != int(point):
                continue
            if len(fates) != len(machine.pending):
                raise NoCase(f"{len(machine.pending)} operations are volatile at point {point}")
            return machine.image(fates), acknowledged
        raise NoCase(f"{self.name} has no point {point}")

    def look(self, image: disk.Image, acknowledged: tuple[int, int]) -> judge.Seen:
        """Open an image by plain SQLite and read it."""
        facts = self.bench.seen(disk.files_of(image))
        return judge.look(facts, self.record.history, acknowledged)

    def recover(self, image: disk.Image) -> list[judge.Finding]:
        """Give the image the commands a person has, and judge the end."""
        return self.bench.end(self.life, "run", disk.files_of(image), FIRST)

    def story(self, image: disk.Image) -> list[str]:
        """For a person: what became of each volatile operation, and the files that are found."""
        machine = next(m for m, _ in self.points() if m.point == image.point)
        names = {number: name for name, number in self.record.numbers.items()}
        lines = [f"power is lost after operation {image.point} of {len(self.record.operations)}"]
        for volatile, fate in zip(machine.pending, image.choice, strict=True):
            lines.append(f"{disk.FATES[fate[0]]}: {disk.words(volatile, names)}")
        return [*lines, *(f"found: {name}, {len(data)} bytes" for name, data in image.files)]

    def violations(self, image: disk.Image, findings: list[judge.Finding]) -> list[Violation]:
        return [Violation(f"{self.name}/{image.label}", *finding) for finding in findings]


class Worker:
    """One process's share: the images whose key falls to it, so that each is recovered once."""

    def __init__(self, quick: bool, index: int, jobs: int, tell: pool.Tell) -> None:
        self.quick, self.index, self.jobs, self.tell = quick, index, jobs, tell
        self.counts: Counter[str] = Counter()
        self.violations: list[Violation] = []

    def mine(self, image: disk.Image) -> bool:
        number = int.from_bytes(image.key[:4], "big")
        if self.quick and number // self.jobs % QUICK_STEP:
            return False
        return number % self.jobs == self.index

    def scene(self, scene: Scene) -> None:
        """Every distinct image of one recorded life."""
        known: dict[bytes, Known] = {}
        before = len(self.violations)
        for machine, acknowledged in scene.points():
            if len(self.violations) - before >= ENOUGH:
                return
            if self.index == 0:
                self.counts["points"] += 1
                self.counts[MOST] = max(self.counts[MOST], len(machine.pending))
            for image in machine.images(scene.torn):
                if not self.mine(image):
                    continue
                self.counts["images"] += 1
                seen = known.get(image.key)
                if seen is None:
                    known[image.key] = self.fresh(scene, image, acknowledged)
                elif seen.sound:
                    findings = judge.held(seen.places, acknowledged)
                    if findings:
                        known[image.key] = seen._replace(sound=False)
                    self.violations += scene.violations(image, findings)

    def fresh(self, scene: Scene, image: disk.Image, acknowledged: tuple[int, int]) -> Known:
        """An image not met before: look, then recover."""
        self.counts["distinct images"] += 1
        seen = scene.look(image, acknowledged)
        findings = seen.findings or scene.recover(image)
        self.violations += scene.violations(image, findings)
        self.tell(1)
        return Known(seen.places, not findings)


def control(scene: Scene) -> tuple[str, str] | None:
    """The first image of a weakened life that breaks a promise: its name, what was seen."""
    known: dict[bytes, judge.Seen] = {}
    for machine, acknowledged in scene.points():
        for image in machine.images():
            seen = known.get(image.key)
            if seen is None:
                seen = known[image.key] = scene.look(image, acknowledged)
            findings = seen.findings or judge.held(seen.places, acknowledged)
            if findings:
                return f"{scene.name}/{image.label}", ": ".join(findings[0])
    return None


def run(settings: Settings) -> Result:
    """Every image within the bounds, every control, and the folding under concurrent workers."""
    bounds = (
        f"every subset of up to {disk.EXHAUSTIVE} volatile operations, beyond that every beginning,"
        f" each one lost, each one kept and {disk.DRAWN} drawn; with the publisher near, each write"
        f" torn at each {disk.SECTOR} bytes; every point of memory-put, submit, run (and approve,"
        " run)"
    ) + (f"; quick: half of the lives, and of these one image in {QUICK_STEP}" * settings.quick)
    return divided(settings, NAME, bounds, COUNTS, share)


def share(
    settings: Settings, folder: str, index: int, jobs: int, tell: pool.Tell
) -> tuple[Counter[str], list[Violation]]:
    """What one of the processes does."""
    lab = lives.load(settings.lab)
    worker = Worker(settings.quick, index, jobs, tell)
    played = list(itertools.product(chosen(settings.lab), PLACES))
    for life, place in played[::3] if settings.quick else played:
        bench = Bench(lab, os.path.join(folder, place), PLACES[place])
        try:
            worker.scene(Scene(bench, life, place))
        except LifeFailed as error:
            name, why = f"{NAME}/{life.name}/{place}", f"undisturbed it fails: {error}"
            worker.violations.append(Violation(name, invariants.RESTS, why))
            return worker.counts, worker.violations
    tasks = list(itertools.product(CONTROLS, PLACES))
    if settings.quick:
        tasks = tasks[::3]
    for which, place in tasks[index::jobs]:
        bench = Bench(lab, os.path.join(folder, place), PLACES[place])
        scene = Scene(bench, lives.BASE, place, which)
        if control(scene) is None:
            worker.violations.append(Violation(scene.name, judge.CAUGHT, UNSEEN))
        worker.counts["weakenings that had to be caught"] += 1
    if index == jobs - 1:
        counts, violations = together(lab, folder, 2 if settings.quick else 12)
        worker.counts += counts
        worker.violations += violations
    return worker.counts, worker.violations


def together(lab: Lab, folder: str, rounds: int) -> tuple[Counter[str], list[Violation]]:
    """Workers at once: the log is folded in by one that is alone, and the guard can see another."""
    stage = Stage(os.path.join(folder, "together"))
    counts, findings = folding.folds(lab, stage, rounds)
    if not folding.folds(lab, stage, 4, folding.checkpointing)[1]:
        findings.append((judge.CAUGHT, "checkpoints among writers went unseen"))
    counts["weakenings that had to be caught"] += 1
    return counts, [Violation(f"{NAME}/together", *finding) for finding in findings]


def replay(name: str, settings: Settings) -> list[Violation]:
    """Run one named case again, and leave its databases in `keep`, those of the loss in `left`."""
    parts = SHAPE.fullmatch(name)
    if parts is None:
        raise NoCase("its parts are LIFE/PLACE, then a weakening if any, then POINT/FATES")
    life, place, database, level, label = parts.groups()
    folder = scratch()
    try:
        lab = lives.load(settings.lab)
        if life is None:
            return together(lab, folder, 12)[1]
        bench = Bench(lab, folder, PLACES[place])
        scene = Scene(bench, lives.LIVES[life], place, (database, level) if database else None)
        if label is None:
            unseen = database and not control(scene)
            return [Violation(name, judge.CAUGHT, UNSEEN)] if unseen else []
        image, acknowledged = scene.find(label)
        print("\n".join(f"     {line}" for line in scene.story(image)))
        findings = scene.look(image, acknowledged).findings or scene.recover(image)
        if settings.keep is not None:
            bench.leave(settings.keep, disk.files_of(image))
        return scene.violations(image, findings)
    finally:
        shutil.rmtree(folder)
