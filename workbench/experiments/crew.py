"""The child processes of a run, in one place, so that none outlives it.

Guarantee: after `dismiss` every child is dead, also a stopped one, and no new one starts.
Limit: if this process is killed by SIGKILL, a stopped child stays; the others end by themselves.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from .evidence import Finished
from .script import KEY, THROWAWAY_KEY

COMMAND_SECONDS = 30.0  # no command of an experiment takes a tenth of it


class Dismissed(Exception):
    """The run is being given up."""


def python() -> list[str]:
    """This interpreter, in the modes that it runs in: -O, -W and -X dev reach the commands too."""
    words = [sys.executable]
    if sys.flags.optimize:
        words.append("-" + "O" * sys.flags.optimize)
    if sys.flags.dev_mode:
        words += ["-X", "dev"]
    return words + [f"-W{option}" for option in sys.warnoptions]


class Turns:
    """So many commands at once; of those that wait, whoever has the longest sleeps ahead is next.

    So the sleeps overlap, and what never sleeps fills the gaps.
    """

    def __init__(self, places: int) -> None:
        self._free, self._lock, self._count = places, threading.Lock(), itertools.count()
        self._waiting: list[tuple[float, int, threading.Event]] = []

    @contextlib.contextmanager
    def turn(self, ahead: float) -> Iterator[None]:
        with self._lock:
            mine = threading.Event()
            if self._free:
                self._free -= 1
                mine.set()
            else:
                heapq.heappush(self._waiting, (-ahead, next(self._count), mine))
        mine.wait()
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:
                    heapq.heappop(self._waiting)[2].set()
                else:
                    self._free += 1


class Crew:
    """Starts children, each in a group of its own, and ends them."""

    def __init__(self, lab: Path) -> None:
        self.lab = lab
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._dismissed = threading.Event()
        # More commands at once than processors would only make leases run out for no reason.
        self._turns = Turns(max(2, os.cpu_count() or 2))

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        ahead: float | None,
    ) -> Finished:
        """Run one command to its end, in turn by the seconds of sleep ahead; None is at once."""
        with contextlib.nullcontext() if ahead is None else self._turns.turn(ahead):
            process = self.start(words, folder, environment, subprocess.PIPE, subprocess.PIPE)
            try:
                out, err = process.communicate(timeout=COMMAND_SECONDS)
                code: int | None = process.returncode
            except subprocess.TimeoutExpired:
                self.kill(process)
                out, err = process.communicate()
                code = None
            self.forget(process)
        if self._dismissed.is_set():
            raise Dismissed
        return Finished(code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    def start(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        out: int | IO[bytes],
        err: int | IO[bytes],
    ) -> subprocess.Popen[bytes]:
        """Start a command of the lab; `words` begin with a program of the lab's folder."""
        with self._lock:
            if self._dismissed.is_set():
                raise Dismissed
            process = subprocess.Popen(
                [*python(), str(self.lab / words[0]), *words[1:]],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            self._alive.add(process)
            return process

    def wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code of a command behind; None where it had to be killed."""
        try:
            return process.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill(process)
            process.wait()
            return None
        finally:
            self.forget(process)

    def sleep(self, seconds: float) -> None:
        """Sleep, unless the run is given up meanwhile."""
        if seconds > 0 and self._dismissed.wait(seconds):
            raise Dismissed

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._alive.discard(process)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a child and whatever it has started; a stopped one, too."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def dismiss(self) -> None:
        """Give the run up: every child is killed, every later start and sleep raises Dismissed."""
        with self._lock:
            self._dismissed.set()
            alive = list(self._alive)
        for process in alive:
            self.kill(process)


def environment(key: bool = False) -> dict[str, str]:
    """A child's environment: as ours, but no key of ours, and output that any of us can read."""
    kept = {name: value for name, value in os.environ.items() if name != KEY}
    kept["PYTHONIOENCODING"] = "utf-8"
    if key:
        kept[KEY] = THROWAWAY_KEY
    return kept


def until(crew: Crew, seen: Callable[[], bool], seconds: float) -> bool:
    """Poll a sign until it is there (True) or the seconds are over."""
    ends = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > ends:
            return False
        crew.sleep(0.05)
    return True
