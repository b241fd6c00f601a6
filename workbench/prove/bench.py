"""Where a life is played, killed, failed and recovered: one worker's folders and loaded lab.

Guarantee: a traced play writes the same bytes each time (stopped clock, fixed random seed), so that
a place in it can be named and met again. Limit: one process at a time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from workbench.prove import folding, invariants, judge, lives, pool, trace
from workbench.prove.lives import Actor, Clock, Edit, Facts, Files, Lab, Life, Stage
from workbench.prove.report import NoCase, Result, Settings, Violation, in_order

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
SYNCS = ("fsync", "fdatasync", "fchmod", "fchown")  # these change no content and no name
LATER = 40.0  # seconds from a life to its recovery: its lease is over, its approval still open
FIRST, SECOND = lives.START + LATER, lives.START + 75  # clocks of the two recoveries
# A full disk refuses what needs space; removing, truncating and syncing still work.
NEEDS_SPACE = ("open", "openat", "creat", "write", "pwrite64", "writev", "fallocate", "mkdir")


class Frame(NamedTuple):
    """The files at one stop of a traced life, and how far each database was acknowledged."""

    label: str  # "17-before"
    call: str
    files: Files
    key: bytes  # as image_key has it
    acknowledged: tuple[int, int]


class Film(trace.Watcher):
    """Copies the files at every stop; `history` keeps the states of the acknowledged commits."""

    def __init__(self, stage: Stage, aside: Stage | None = None) -> None:
        self.stage = stage
        self.aside = aside
        self.frames: list[Frame] = []
        self.history = judge.History()
        self.calls = 0
        self.guard = folding.Guard(stage.path)
        self._files: Files | None = None
        self._hashes: dict[str, bytes] = {}

    def _shoot(self, side: str, call: trace.Call) -> None:
        names = [os.path.relpath(path, self.stage.folder) for path in call.paths]
        if self._files is None:
            self._see(self.stage.copy())
        elif side == "after" and call.name not in SYNCS:
            self._see(self.stage.look(names))
        maps = [name for name in self._files or () if name.endswith("-shm")]
        self._see(self.stage.look(maps))
        self.frames.append(
            Frame(
                f"{self.calls}-{side}",
                f"{call.name} {names[0]}",
                self._files or {},
                _key(self._hashes),
                self.history.reached,
            )
        )

    def _see(self, changed: Mapping[str, bytes | None]) -> None:
        """Take in what a call may have changed; nothing else has moved since the last stop."""
        files = dict(self._files or {})
        for name, content in changed.items():
            if content is None:
                files.pop(name, None)
                self._hashes.pop(name, None)
            elif files.get(name) != content:
                files[name] = content
                self._hashes[name] = _hash(name, content)
        self._files = files

    def frame(self, label: str) -> Frame:
        """The stop of this label; NoCase where there is none."""
        for frame in self.frames:
            if frame.label == label:
                return frame
        raise NoCase(f"{label} is none of the {len(self.frames)} stops")

    def entry(self, call: trace.Call) -> int:
        self.calls += 1
        self.guard.entry(call)
        self._shoot("before", call)
        return 0

    def exit(self, call: trace.Call) -> int:
        self._shoot("after", call)
        return 0

    def mark(self, pid: int, text: str) -> None:
        if self.aside is not None:
            self.aside.put(self.stage.copy())
            self.history.add(self.aside.facts())


class Killer(trace.Watcher):
    """Kills at one stop."""

    def __init__(self, label: str) -> None:
        number, self.side = label.split("-")
        self.left = int(number)

    def entry(self, call: trace.Call) -> int:
        self.left -= 1
        if self.left:
            return trace.PASS
        return trace.KILL if self.side == "before" else 0

    def exit(self, call: trace.Call) -> int:
        return trace.KILL


class Failer(trace.Watcher):
    """Fails one call, or every one from there on, with an errno."""

    def __init__(self, stage: Stage, number: int, error: str, span: str) -> None:
        self.stage = stage
        self.left, self.error, self.span = number, error, span
        self.acknowledged: Files = {}  # the files at the last commit that was answered

    def mark(self, pid: int, text: str) -> None:
        self.acknowledged = self.stage.copy()

    def entry(self, call: trace.Call) -> int:
        self.left -= 1
        if self.left > 0 or (self.left < 0 and self.span == "once"):
            return trace.PASS
        if self.left < 0 and self.error == "ENOSPC" and call.name not in NEEDS_SPACE:
            return trace.PASS
        return ERRORS[self.error]


@contextlib.contextmanager
def patience(seconds: int = 60) -> Iterator[None]:
    """TimeoutError for what does not come to an end; for a process's main thread."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class LifeFailed(pool.WorkerFailed):
    """An undisturbed life did not come to its end; the message says how."""


class Bench:
    """One worker's folders and the lab it loaded; each method is one kind of case."""

    def __init__(self, lab: Lab, folder: str, apart: bool = False) -> None:
        self.lab = lab
        self.court = judge.Court(lab)
        self.stage = Stage(os.path.join(folder, "stage"), apart)
        self.aside = Stage(os.path.join(folder, "aside"), apart)
        self.said = os.path.join(folder, "said.json")
        self.seeds = []
        for number in range(2):
            seed = os.path.join(folder, f"seed-{number}")
            with open(seed, "wb") as file:
                file.write(hashlib.sha512(seed[-1].encode()).digest() * 8)
            self.seeds.append(seed)

    def film(self, life: Life) -> Film:
        """The whole life, undisturbed."""
        film = Film(self.stage, self.aside)
        self.play(life, film)
        return film

    def play(self, life: Life, watcher: trace.Watcher, edit: Edit | None = None) -> None:
        """The whole life before any watcher; LifeFailed unless it comes to its end."""
        actor = Actor(self.lab, life, self.stage.path, Clock(), edit)
        self._trace(self._saying(actor.live), watcher, {}, 0)
        said = self._heard()
        if said:
            raise LifeFailed(said)

    def kill(self, life: Life, label: str) -> Files:
        """The life with a real SIGKILL at one stop; the files it left."""
        actor = Actor(self.lab, life, self.stage.path, Clock())
        code = self._trace(actor.live, Killer(label), {}, 0, ended=(-signal.SIGKILL,))
        if code != -signal.SIGKILL:
            raise pool.WorkerFailed(f"{life.name} {label}: nothing was killed")
        return self.stage.copy()

    def kill_recovery(
        self, life: Life, way: str, files: Files, label: str, status: str | None
    ) -> Files:
        """The recovery from an image with a real SIGKILL at one stop; the files it left."""
        actor = Actor(self.lab, life, self.stage.path, Clock(FIRST))
        body = self._saying(lambda: actor.recover(way, status))
        self._trace(body, Killer(label), files, 1, ended=(-signal.SIGKILL,))
        return self.stage.copy()

    def kill_command(self, life: Life, label: str) -> Files | None:
        """A life whose last command is a new Python with the command line, killed at one stop.

        The files it left; None where it ended before that stop.
        """
        self.stage.put({})
        Actor(self.lab, life, self.stage.path, Clock(time.time())).live(without_last=True)
        folder = os.path.dirname(str(self.lab.runtime.__file__))
        script = os.path.join(folder, life.script)
        arguments = [sys.executable, "-B", script, life.commands[-1], "--db", self.stage.path]

        def body() -> int:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.execv(sys.executable, arguments)

        code = trace.trace([body], Killer(label), [self.stage.folder])[0]
        if code not in (0, -signal.SIGKILL):
            raise pool.WorkerFailed(f"{life.script} ended with {code}")
        return self.stage.copy() if code else None

    def film_recovery(
        self, life: Life, way: str, files: Files, status: str | None
    ) -> tuple[Film, str]:
        """The recovery from an image, filmed, to its end; what went wrong, or nothing."""
        actor = Actor(self.lab, life, self.stage.path, Clock(FIRST))
        film = Film(self.stage)
        self._trace(self._saying(lambda: actor.recover(way, status)), film, files, 1)
        return film, self._heard()

    def fail(self, life: Life, number: int, error: str, span: str) -> tuple[Failer, str]:
        """The life with a call failed, up to the command that raises; what it raised, if any."""
        actor = Actor(self.lab, life, self.stage.path, Clock())
        failer = Failer(self.stage, number, error, span)
        self._trace(self._saying(actor.live), failer, {}, 0)
        return failer, self._heard()

    def end(
        self, life: Life, way: str, files: Files, clock: float, before: Facts | None = None
    ) -> list[judge.Finding]:
        """Recover from an image (which says `before`) to the end and judge what is there."""
        before = before or self.seen(files)
        self.stage.put(files)
        try:
            with patience():
                Actor(self.lab, life, self.stage.path, Clock(clock)).recover(way, before.status)
        except Exception as error:
            return [(invariants.RESTS, f"recovery raised {type(error).__name__}: {error}")]
        return self.court.judge(self.stage, life, way, before)

    def leave(self, keep: str, left: Files) -> None:
        """For a person to look at: the files as recovery left them, and in `left` as the death."""
        for folder, files in ((keep, self.stage.copy()), (os.path.join(keep, "left"), left)):
            os.makedirs(folder, exist_ok=True)
            for name, content in files.items():
                plain = os.path.basename(name).replace(lives.APART, "lab.sqlite.publisher.sqlite")
                with open(os.path.join(folder, plain), "wb") as file:
                    file.write(content)

    def seen(self, files: Files) -> Facts:
        """What plain SQLite finds in an image."""
        self.aside.put(files)
        return self.aside.facts()

    def _trace(
        self,
        body: Callable[[], int],
        watcher: trace.Watcher,
        files: Files,
        seed: int,
        ended: tuple[int, ...] = (0,),
    ) -> int:
        self.stage.put(files)
        with patience():
            code = trace.trace([body], watcher, [self.stage.folder], self.seeds[seed])[0]
        if code not in (0, *ended):
            raise pool.WorkerFailed(f"a child ended with {code}")
        return code

    def _saying(self, body: Callable[[], object]) -> Callable[[], int]:
        """A body that writes down what it raised, outside the watched folder."""

        def run() -> int:
            said = ""
            try:
                body()
            except Exception as error:
                own = isinstance(error, self.lab.runtime.LabError)
                said = f"{'' if own else 'not the lab error: '}{type(error).__name__}: {error}"
            with open(self.said, "w", encoding="utf-8") as file:
                json.dump(said, file)
            return 0

        return run

    def _heard(self) -> str:
        with open(self.said, encoding="utf-8") as file:
            said: str = json.load(file)
        return said


def image_key(files: Files) -> bytes:
    """A hash of an image; of a `-shm` only that it is there, for its first opener rebuilds it."""
    return _key({name: _hash(name, content) for name, content in files.items()})


def _key(hashes: Mapping[str, bytes]) -> bytes:
    lines = b"".join(name.encode() + b"\0" + hashes[name] for name in sorted(hashes))
    return hashlib.blake2b(lines, digest_size=16).digest()


def _hash(name: str, content: bytes) -> bytes:
    kept = b"" if name.endswith("-shm") else content
    return hashlib.blake2b(kept, digest_size=16).digest()


_workshop: str | None = None


Share = Callable[[Settings, str, int, int, pool.Tell], tuple[Counter[str], list[Violation]]]


def divided(
    settings: Settings, name: str, bounds: str, labels: Sequence[str], share: Share
) -> Result:
    """What a traced instrument's processes find, each with a scratch folder of its own.

    share(settings, folder, index, jobs, tell): one process's counts and violations. labels: the
    counts, in their order.
    """
    skipped = trace.unavailable()
    if skipped:
        return Result(name, bounds, {}, [], 0.0, skipped)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    violations: list[Violation] = []
    folder = scratch()
    try:
        for found, wrong in pool.spread(
            settings.jobs,
            lambda index, jobs, tell: share(settings, f"{folder}/{index}", index, jobs, tell),
            lambda done: settings.progress(name, done, 0),
        ):
            counts += found
            violations += wrong
    finally:
        shutil.rmtree(folder)
    return Result(name, bounds, in_order(counts, labels), violations, time.monotonic() - began)


def scratch() -> str:
    """A new folder, in memory where there is such a place: no disk is tested here, only calls."""
    memory = "/dev/shm"
    where = memory if os.path.isdir(memory) and os.access(memory, os.W_OK) else None
    return tempfile.mkdtemp(prefix="prove-", dir=_workshop or where)


@contextlib.contextmanager
def workshop() -> Iterator[None]:
    """Whatever scratch folders are made within, by killed processes too, are gone afterwards."""
    global _workshop
    _workshop = scratch()
    try:
        yield
    finally:
        shutil.rmtree(_workshop, ignore_errors=True)
        _workshop = None


def chosen(lab_folder: str) -> list[Life]:
    """The lives that the lab under test can live."""
    has_approval = os.path.exists(os.path.join(lab_folder, "approval_runtime.py"))
    return [lives.BASE, lives.APPROVAL] if has_approval else [lives.BASE]
