"""Death of the process at every boundary of a job's life, and at every boundary of its recovery.

Single deaths are real, one fork and one end for each boundary; so are second deaths in the plain
recovery (REAL says how many). In the other ways of recovering, and for third deaths, the files are
copied while the process stands at the boundary: that such a copy is what a death leaves, and that
a recovery goes the same way twice, is what the real deaths show.
Equal images (random salts apart) are recovered once, and the paths that lead to them are counted.

Guarantee: after each of these deaths fresh commands bring the job to rest with every invariant
kept. Limit: one process at a time; several at once are the schedules' business.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from workbench.prove import boundaries, invariants, lives, pool
from workbench.prove.bench import LifeFailed, scratch
from workbench.prove.boundaries import DIED, Clock, Door, Hands, Life, dying, image_key
from workbench.prove.invariants import Finding, Image
from workbench.prove.judge import SAME
from workbench.prove.lives import START, Files, Lab, Stage
from workbench.prove.report import NoCase, Result, Settings, Violation
from workbench.prove.tasks import Tasks

NAME = "sweep"
# Of the plain recovery from each image every so many boundaries really die: all, or one in three,
# beginning at another one for each image, so that each boundary is met from several images.
REAL = {"base": 1, "approval": 3}
QUICK_STEP = 24  # quick: one boundary in so many really dies; no third deaths
QUICK_LIVES = ("base", "approval")

Key = tuple[str, bytes, float]  # what makes two images one: life, files, second


class Shot(NamedTuple):
    """The files at one boundary, and the time there; equal neighbours share their files."""

    label: str
    files: Files
    now: float


class Film(NamedTuple):
    """A recovery played to its end: what stood at each boundary, and what was wrong at the end."""

    shots: list[Shot]
    findings: list[Finding]
    commands: list[str]


class Seen(NamedTuple):
    """One distinct image: the first name that led to it, and how many paths do."""

    name: str
    paths: int


class NoDeath(pool.WorkerFailed):
    """A process went past the boundary at which it was to end."""


class Yard:
    """One process's folders, where lives are played, ended and recovered."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.clock = lab, Clock()
        self.folder = scratch()
        self.stage = Stage(os.path.join(self.folder, "stage"))
        self.aside = Stage(os.path.join(self.folder, "aside"))

    def close(self) -> None:
        shutil.rmtree(self.folder)

    def hands(self, life: Life, door: Door) -> Hands:
        return Hands(self.lab, life, self.stage.path, self.clock, door)

    def set(self, files: Files, now: float) -> None:
        self.stage.put(files)
        self.clock.set(now)

    def look(self, files: Files) -> Image:
        """What is in an image, seen by plain SQLite on a copy."""
        self.aside.put(files)
        return invariants.read(self.aside.path)

    def shoot(self) -> tuple[Door, list[Shot]]:
        """A door that copies the files at each boundary."""
        shots: list[Shot] = []

        def at(number: int, label: str) -> None:
            if door.worked or not shots:
                files = self.stage.copy()
                if shots and shots[-1].files == files:
                    files = shots[-1].files
            else:
                files = shots[-1].files
            door.worked = False
            shots.append(Shot(label, files, self.clock.now))

        door = Door(at)
        return door, shots

    def film_life(self, life: Life) -> list[Shot]:
        """The whole life, undisturbed; LifeFailed unless it comes to its end."""
        self.set({}, START)
        door, shots = self.shoot()
        try:
            self.hands(life, door).live()
        except Exception as error:
            raise LifeFailed(f"{type(error).__name__}: {error}") from error
        return shots

    def film(self, life: Life, way: str, files: Files, now: float) -> Film:
        """A recovery to its end, copied at each boundary, and judged."""
        door, shots = self.shoot()
        return self._recover(life, way, files, now, door)._replace(shots=shots)

    def end(self, life: Life, way: str, files: Files, now: float) -> Film:
        """A recovery to its end, judged."""
        return self._recover(life, way, files, now, Door())

    def _recover(self, life: Life, way: str, files: Files, now: float, door: Door) -> Film:
        before = self.look(files)
        self.set(files, now)
        commands: list[str] = []
        findings = invariants.judge(before) if before.jobs else []
        try:
            self.hands(life, door).recover(way, commands)
        except Exception as error:
            seen = f"{commands[-1]} raised {type(error).__name__}: {error}"
            findings.append(Finding(invariants.RESTS, seen))
        after = invariants.read(self.stage.path)
        findings += invariants.judge(after)
        findings += invariants.judge_recovery(before, after)
        return Film([], findings, commands)

    def die(self, life: Life, number: int, way: str | None = None) -> Shot:
        """Really die: in the life, or in a recovery, of what the stage holds now."""
        pid = os.fork()
        if pid == 0:
            try:
                hands = self.hands(life, dying(number, kill=number % 2 == 0))
                hands.live() if way is None else hands.recover(way, [])
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code not in (DIED, -9):
            where = f"the recovery by {way}" if way else life.name
            raise NoDeath(f"no death at boundary {number} of {where}: it ended with {code}")
        return Shot("", self.stage.copy(), self.clock.now)


class Store:
    """Distinct images, shared by the processes through a folder: a name for each, and its files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def put(self, key: Key, files: Files) -> None:
        path = self._path(key)
        if os.path.exists(path):
            return
        draft = f"{path}.{os.getpid()}"
        os.makedirs(draft)
        for name, content in files.items():
            with open(os.path.join(draft, name.replace("/", "%")), "wb") as file:
                file.write(content)
        try:
            os.rename(draft, path)
        except OSError:  # another process had the same image
            shutil.rmtree(draft)

    def get(self, key: Key) -> Files:
        files = {}
        path = self._path(key)
        for name in os.listdir(path):
            with open(os.path.join(path, name), "rb") as file:
                files[name.replace("%", "/")] = file.read()
        return files

    def _path(self, key: Key) -> str:
        return os.path.join(self.folder, f"{key[0]}-{key[1].hex()}-{key[2]:.0f}")


def key_of(life: str, shot: Shot) -> Key:
    """The life decides how it is recovered, the second when."""
    return life, image_key(shot.files), float(int(shot.now))


def distinct(life: str, shots: list[Shot]) -> Iterator[tuple[int, Key, Shot]]:
    """The boundaries at which an image stands that stood at none before: number, key, shot."""
    known: set[Key] = set()
    last: Shot | None = None
    for number, shot in enumerate(shots, 1):
        if last is not None and shot.files is last.files and int(shot.now) == int(last.now):
            continue
        last, key = shot, key_of(life, shot)
        if key not in known:
            known.add(key)
            yield number, key, shot


class Share:
    """What one process found in its part of the work."""

    def __init__(self, yard: Yard, store: Store) -> None:
        self.yard, self.store = yard, store
        self.counts: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.seen: dict[Key, Seen] = {}

    def report(self, name: str, findings: list[Finding]) -> None:
        self.violations += [Violation(f"{NAME}/{name}", *finding) for finding in findings]

    def note(self, shot: Shot, name: str, paths: int) -> None:
        """One more image, or more paths to a known one."""
        key = key_of(name.split("/")[0], shot)
        known = self.seen.get(key)
        if known is None:
            self.store.put(key, shot.files)
            self.seen[key] = Seen(name, paths)
        else:
            self.seen[key] = known._replace(paths=known.paths + paths)

    def note_all(self, shots: list[Shot], name: str, paths: int) -> None:
        """Every boundary of a recovery; equal neighbours at once."""
        number = 0
        while number < len(shots):
            end = number + 1
            while end < len(shots) and shots[end].files is shots[number].files:
                if int(shots[end].now) != int(shots[number].now):
                    break
                end += 1
            self.note(shots[number], f"{name}/{number + 1}", paths * (end - number))
            number = end

    def single(self, life: Life, shots: list[Shot], number: int, really: bool) -> None:
        """The death at one boundary of the life."""
        shot = shots[number - 1]
        if really:
            self.yard.set({}, START)
            dead = self.yard.die(life, number)
            self.counts["real deaths"] += 1
            if image_key(dead.files) != image_key(shot.files):
                self.report(f"{life.name}/{number}", [Finding(SAME, shot.label)])
            shot = dead._replace(label=shot.label)
        self.note(shot, f"{life.name}/{number}", 1)

    def double(self, life: Life, key: Key, first: Seen, way: str, quick: bool) -> None:
        """The deaths at each boundary of one recovery from one image."""
        files = self.store.get(key)
        film = self.yard.film(life, way, files, key[2])
        self.report(f"{first.name}/{way}", film.findings)
        self.counts["pairs of deaths"] += first.paths * len(film.shots)
        self.note_all(film.shots, f"{first.name}/{way}", first.paths)
        if way != "run" or life.name not in REAL or film.findings:
            return
        step = QUICK_STEP if quick else REAL[life.name]
        for number in range(1 + key[1][0] % step, len(film.shots) + 1, step):
            self.yard.set(files, key[2])
            dead = self.yard.die(life, number, way)
            self.counts["real deaths"] += 1
            shot = film.shots[number - 1]
            if image_key(dead.files) != image_key(shot.files):
                self.report(f"{first.name}/{way}/{number}", [Finding(SAME, shot.label)])

    def triple(self, life: Life, key: Key, second: Seen, way: str, deep: bool) -> None:
        """One more recovery, to its end, from an image after two deaths; and third deaths in it."""
        files = self.store.get(key)
        if not deep:
            self.report(f"{second.name}/{way}", self.yard.end(life, way, files, key[2]).findings)
            return
        film = self.yard.film(life, way, files, key[2])
        self.report(f"{second.name}/{way}", film.findings)
        self.counts["triples of deaths"] += second.paths * len(film.shots)
        self.note_all(film.shots, f"{second.name}/{way}", second.paths)

    def last(self, life: Life, key: Key, third: Seen) -> None:
        files = self.store.get(key)
        self.report(f"{third.name}/run", self.yard.end(life, "run", files, key[2]).findings)


class Sweep:
    """The rounds over one lab: single deaths, pairs, triples; each shared by all processes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.folder = scratch()
        self.store = Store(self.folder)
        self.done = 0
        approvals = os.path.exists(os.path.join(settings.lab, "approval_runtime.py"))
        self.lives = [
            life
            for life in boundaries.LIVES
            if (approvals or not life.approval) and (not settings.quick or life.name in QUICK_LIVES)
        ]

    def spread(
        self, what: Callable[..., None], tasks: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Life, dict[Key, Seen]]]:
        """Do a thing for each task, in all processes; the distinct images found, by life."""
        queue = Tasks(len(tasks))

        def work(
            index: int, jobs: int, tell: Callable[[int], None]
        ) -> tuple[Counter[str], list[Violation], dict[Key, Seen]]:
            yard = Yard(lives.load(self.settings.lab))
            try:
                share = Share(yard, self.store)
                for number in queue:
                    what(share, *tasks[number])
                    tell(1)
                    if self.settings.first and share.violations:
                        break
                return share.counts, share.violations, share.seen
            finally:
                yard.close()

        def heard(done: int) -> None:
            self.settings.progress(NAME, self.done + done, 0)

        merged: dict[Key, Seen] = {}
        try:
            for counts, violations, seen in pool.spread(self.settings.jobs, work, heard):
                self.counts += counts
                self.violations += violations
                for key, each in seen.items():
                    known = merged.get(key)
                    paths = each.paths + (known.paths if known else 0)
                    merged[key] = (known or each)._replace(paths=paths)
        finally:
            queue.close()
        self.done += len(tasks)
        if self.settings.first and self.violations:
            merged.clear()  # nothing more is to be done
        by_life: dict[str, dict[Key, Seen]] = {}
        for key, each in merged.items():
            by_life.setdefault(key[0], {})[key] = each
        return [(life, by_life.get(life.name, {})) for life in self.lives]

    def run(self) -> None:
        """All rounds."""
        quick = self.settings.quick
        firsts = self.spread(Share.single, self._singles())
        self.counts["images after one death"] += sum(len(images) for _, images in firsts)
        seconds = self.spread(Share.double, [(*each, quick) for each in self._ways(firsts)])
        self.counts["images after two deaths"] += sum(len(images) for _, images in seconds)
        thirds = self.spread(Share.triple, [(*each, not quick) for each in self._ways(seconds)])
        self.counts["images after three deaths"] += sum(len(images) for _, images in thirds)
        last = [(life, key, seen) for life, images in thirds for key, seen in images.items()]
        self.spread(Share.last, last)

    def _ways(
        self, found: list[tuple[Life, dict[Key, Seen]]]
    ) -> Iterator[tuple[Life, Key, Seen, str]]:
        for life, images in found:
            for key, seen in images.items():
                for way in life.ways[:1] if self.settings.quick else life.ways:
                    yield life, key, seen, way

    def _singles(self) -> list[tuple[Life, list[Shot], int, bool]]:
        tasks = []
        yard = Yard(lives.load(self.settings.lab))
        try:
            for life in self.lives:
                try:
                    shots = yard.film_life(life)
                except LifeFailed as error:
                    wrong = Finding(invariants.RESTS, f"undisturbed it fails: {error}")
                    self.violations.append(Violation(f"{NAME}/{life.name}", *wrong))
                    continue
                self.counts["boundaries"] += len(shots)
                for number in range(1, len(shots) + 1):
                    really = not self.settings.quick or number % QUICK_STEP == 1
                    tasks.append((life, shots, number, really))
        finally:
            yard.close()
        return tasks


def run(settings: Settings) -> Result:
    """Every death within the bounds; see the module's docstring."""
    began = time.monotonic()
    sweep = Sweep(settings)
    try:
        sweep.run()
    finally:
        shutil.rmtree(sweep.folder)
    ways = "; ".join(
        f"{life.name}: {', '.join(life.ways[:1] if settings.quick else life.ways)}"
        for life in sweep.lives
    )
    bounds = f"one process at a time; deaths in lives and in recoveries by {ways}" + (
        f"; quick: one boundary in {QUICK_STEP} really dies; two deaths"
        if settings.quick
        else "; each boundary of a life really dies, and of a first recovery by run each (base) or"
        " one in 3 (approval); three deaths"
    )
    violations = smallest(sweep.violations)
    return Result(NAME, bounds, dict(sweep.counts), violations, time.monotonic() - began)


def smallest(violations: list[Violation]) -> list[Violation]:
    """For each life and property the case with the fewest deaths, and how many more there are."""
    kept: dict[tuple[str, str], list[Violation]] = {}
    for each in violations:
        kept.setdefault((each.name.split("/")[1], each.property), []).append(each)
    found = []
    for group in kept.values():
        first = min(group, key=lambda each: (each.name.count("/"), len(each.name), each.name))
        more = f" (and {len(group) - 1} more cases)" if len(group) > 1 else ""
        found.append(first._replace(detail=first.detail + more))
    return found


def replay(name: str, settings: Settings) -> list[Violation]:
    """Die really at each place of a name, recover, say so, and leave the databases in `keep`."""
    life, places, last = parse(name)
    yard = Yard(lives.load(settings.lab))
    findings: list[Finding] = []
    try:
        shots = yard.film_life(life)
        yard.set({}, START)
        print(f"     {', '.join(life.commands)}")
        for number, way in places:
            if way is not None:
                files, now = yard.stage.copy(), float(int(yard.clock.now))
                shots = yard.film(life, way, files, now).shots
                yard.set(files, now)
            dead = yard.die(life, number, way)
            label, of = shots[number - 1].label, f" of the recovery by {way}" if way else ""
            print(f"     the process dies at boundary {number}{of}: {label}")
            if image_key(dead.files) != image_key(shots[number - 1].files):
                findings.append(Finding(SAME, label))
        film = yard.end(life, last, yard.stage.copy(), float(int(yard.clock.now)))
        print(f"     recovery by {last}: {', '.join(film.commands)}")
        if settings.keep is not None:
            leave(yard, settings.keep)
    finally:
        yard.close()
    return [Violation(name, *finding) for finding in dict.fromkeys(findings + film.findings)]


def parse(name: str) -> tuple[Life, list[tuple[int, str | None]], str]:
    """The life of a name, its deaths (boundary; and of which recovery) and the last recovery."""
    _, life_name, *words = name.split("/")
    life = boundaries.BY_NAME.get(life_name)
    if life is None:
        raise NoCase(f"no life {life_name!r}: {', '.join(boundaries.BY_NAME)}")
    places: list[tuple[int, str | None]] = []
    way: str | None = None
    for word in words:
        if word.isdecimal():
            places.append((int(word), way))
            way = None
        elif way is None and word in life.ways:
            way = word
        else:
            raise NoCase(f"{word!r} is no boundary, and no way here of recovering {life.name}")
    return life, places, way or "run"


def leave(yard: Yard, folder: str) -> None:
    """The databases as the recovery left them: closed, so that each is one file."""
    os.makedirs(folder, exist_ok=True)
    for name, content in yard.stage.copy().items():
        with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
            file.write(content)
