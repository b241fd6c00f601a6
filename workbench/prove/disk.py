"""A disk that loses power: from a trace of file operations, every image it may be found with.

The model, stricter than real file systems: what is written to a file is volatile until that file is
synced; a name made, removed or renamed is volatile until its folder is synced (syncing a new file
does not save its name); whatever is volatile is kept or lost operation by operation, in any subset,
and a write may be torn at any 512-byte boundary of the file. Limit: a disk that lies about a sync,
or changes a sector it was not asked to write, is not modelled; nor are modes and owners of files.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from workbench.prove import trace
from workbench.prove.judge import History
from workbench.prove.lives import Files, Stage

SECTOR = 512
EXHAUSTIVE = 8  # up to so many volatile operations every subset is tried, beyond it a sample
DRAWN = 24  # of the sample: so many subsets drawn at random, with a fixed seed
LOST, KEPT, HEAD, TAIL = "0", "1", "h", "t"
FATES = {LOST: "lost", KEPT: "kept", HEAD: "torn, its beginning kept", TAIL: "torn, its end kept"}
MODES = ("fchmod", "fchown")


class Write(NamedTuple):
    """Bytes laid into a file."""

    file: int
    offset: int
    data: bytes

    def cuts(self) -> list[int]:
        """The sector boundaries strictly inside, as positions in `data`."""
        first = SECTOR - self.offset % SECTOR
        return list(range(first, len(self.data), SECTOR))


class Cut(NamedTuple):
    """A file brought to a size."""

    file: int
    size: int


class Names(NamedTuple):
    """Entries of one folder, set (to a file) or removed (None) in one operation."""

    folder: str
    entries: tuple[tuple[str, int | None], ...]


class Sync(NamedTuple):
    """A file synced."""

    file: int


class SyncFolder(NamedTuple):
    """A folder synced."""

    folder: str


class Acknowledged(NamedTuple):
    """A commit was answered; from here on at least these states must be found."""

    reached: tuple[int, int]


Volatile = Write | Cut | Names
Operation = Write | Cut | Names | Sync | SyncFolder | Acknowledged


class Recorder(trace.Watcher):
    """Turns the calls of one traced life into operations; `history` keeps the committed states."""

    def __init__(self, stage: Stage, aside: Stage) -> None:
        self.stage, self.aside = stage, aside
        self.operations: list[Operation] = []
        self.maps: dict[str, list[tuple[int, bytes]]] = {}  # a -shm's content, from a place on
        self.history = History()
        self.files: dict[int, int] = {}  # inode -> number in the model
        self.names: dict[str, int] = {}
        self.numbers: dict[str, int] = {}  # as names, with the removed ones
        self._next = 0
        self._data = b""
        self._offset = 0
        self._existed = False

    def entry(self, call: trace.Call) -> int:
        if call.name in ("write", "pwrite64", "writev"):
            self._data, self._offset = call.data(), call.offset()
        if call.name in trace.OPENS:
            self._existed = os.path.lexists(call.paths[0])
        return 0

    def exit(self, call: trace.Call) -> int:
        result = call.result if call.result is not None else -1
        if result >= 0 and call.name not in MODES:
            self._record(call, result)
            self._see_maps()
        return 0

    def mark(self, pid: int, text: str) -> None:
        self.aside.put(self.stage.copy())
        self.history.add(self.aside.facts())
        self.operations.append(Acknowledged(self.history.reached))

    def _record(self, call: trace.Call, result: int) -> None:
        if call.name in trace.OPENS:
            self._opened(call, result)
        elif call.name in trace.REMOVES:
            self._named(call.paths[0], None)
        elif call.name in ("rename", "renameat", "renameat2"):
            self._renamed(*call.paths)
        elif call.name in ("fsync", "fdatasync"):
            if stat.S_ISDIR(os.stat(call.paths[0]).st_mode):
                self.operations.append(SyncFolder(self._relative(call.paths[0])))
            else:
                self._on_file(Sync(self.files[call.identity()]), call)
        elif call.name == "ftruncate":
            self._on_file(Cut(self.files[call.identity()], call.args[1]), call)
        elif call.name in ("write", "pwrite64", "writev"):
            written = Write(self.files[call.identity()], self._offset, self._data[:result])
            self._on_file(written, call)
        else:
            raise NotImplementedError(f"the model of the disk does not know {call.name}")

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, os.path.realpath(self.stage.folder))

    def _on_file(self, operation: Write | Cut | Sync, call: trace.Call) -> None:
        if not call.paths[0].endswith("-shm"):  # its content is that of the map, not of calls
            self.operations.append(operation)

    def _opened(self, call: trace.Call, result: int) -> None:
        if not self._existed:
            number = self._next  # an inode's number may be that of a file removed before
            self._next += 1
            self.files[call.identity(result)] = number
            self._named(call.paths[0], number)
        elif call.flags & os.O_TRUNC:
            self.operations.append(Cut(self.files[call.identity(result)], 0))

    def _named(self, path: str, number: int | None) -> None:
        name = self._relative(path)
        if number is None:
            self.names.pop(name, None)
        else:
            self.names[name] = self.numbers[name] = number
        self.operations.append(Names(os.path.dirname(name), ((name, number),)))

    def _renamed(self, old_path: str, new_path: str) -> None:
        old, new = self._relative(old_path), self._relative(new_path)
        if os.path.dirname(old) != os.path.dirname(new):
            raise NotImplementedError("the model of the disk renames within one folder only")
        self.names[new] = self.names.pop(old)
        self.operations.append(Names(os.path.dirname(old), ((old, None), (new, self.names[new]))))

    def _see_maps(self) -> None:
        for name in self.names:
            if name.endswith("-shm"):
                with open(os.path.join(self.stage.folder, name), "rb") as file:
                    content = file.read()
                seen = self.maps.setdefault(name, [])
                if not seen or seen[-1][1] != content:
                    seen.append((len(self.operations), content))


class Image(NamedTuple):
    """One thing the disk may hold; `key` is equal for equal images (of a -shm its presence)."""

    point: int
    choice: tuple[str, ...]
    key: bytes
    files: tuple[tuple[str, bytes], ...]

    @property
    def label(self) -> str:
        """Point and choice, as a replayable name has them."""
        return f"{self.point}/{'.'.join(self.choice) or '-'}"


class Disk:
    """What is safe, and what is volatile, after a part of the operations."""

    def __init__(self, maps: dict[str, list[tuple[int, bytes]]]) -> None:
        self.maps = maps
        self.point = 0
        self.content: dict[int, bytes] = {}
        self.names: dict[str, int] = {}
        self.pending: list[Volatile] = []
        # Known at this point only: each file's volatile operations, contents, contents with hash.
        self._mine: dict[int, list[Write | Cut]] = {}
        self._begun: dict[tuple[int, tuple[str, ...]], bytes] = {}
        self._made: dict[tuple[int, tuple[str, ...]], tuple[bytes, bytes]] = {}

    def step(self, operation: Operation) -> None:
        """One operation further."""
        self.point += 1
        for known in (self._mine, self._begun, self._made):
            known.clear()
        if isinstance(operation, (Write, Cut, Names)):
            self.pending.append(operation)
        elif isinstance(operation, (Sync, SyncFolder)):
            rest: list[Volatile] = []
            for volatile in self.pending:
                if not self._saved_by(volatile, operation):
                    rest.append(volatile)
                elif isinstance(volatile, Names):
                    _rename(self.names, volatile)
                else:
                    old = self.content.get(volatile.file, b"")
                    self.content[volatile.file] = _applied(old, volatile, KEPT)
            self.pending = rest

    @staticmethod
    def _saved_by(volatile: Volatile, sync: Sync | SyncFolder) -> bool:
        if isinstance(volatile, Names):
            return isinstance(sync, SyncFolder) and sync.folder == volatile.folder
        return isinstance(sync, Sync) and sync.file == volatile.file

    def images(self, torn: bool = True) -> Iterator[Image]:
        """Every image within the bounds, if power is lost now."""
        for choice in choices(self.pending, self.point, torn):
            yield self.image(choice)

    def image(self, choice: Sequence[str]) -> Image:
        """The image in which each volatile operation fared as chosen."""
        names = dict(self.names)
        by_file: dict[int, list[str]] = {}
        for volatile, fate in zip(self.pending, choice, strict=True):
            if not isinstance(volatile, Names):
                by_file.setdefault(volatile.file, []).append(fate)
            elif fate == KEPT:
                _rename(names, volatile)
        total = hashlib.blake2b(digest_size=16)
        files = []
        for name in sorted(names):
            if name.endswith("-shm"):
                content, mark = self._map(name), b"present"
            else:
                content, mark = self._file(names[name], tuple(by_file.get(names[name], ())))
            total.update(name.encode() + b"\0" + mark)
            files.append((name, content))
        return Image(self.point, tuple(choice), total.digest(), tuple(files))

    def _map(self, name: str) -> bytes:
        """What the shared memory file held then: the most that could have reached the disk."""
        found = b""
        for place, content in self.maps.get(name, ()):
            if place <= self.point:
                found = content
        return found

    def _file(self, file: int, fates: tuple[str, ...]) -> tuple[bytes, bytes]:
        """A file's content and its hash, when its volatile operations fared so."""
        if file not in self._mine:
            self._mine[file] = [
                v for v in self.pending if not isinstance(v, Names) and v.file == file
            ]
        made = self._made.get((file, fates))
        if made is None:
            content = self._content(file, fates)
            made = content, hashlib.blake2b(content, digest_size=16).digest()
            self._made[file, fates] = made
        return made

    def _content(self, file: int, fates: tuple[str, ...]) -> bytes:
        """By the beginnings: choices that begin alike share the work."""
        if not fates:
            return self.content.get(file, b"")
        begun = self._begun.get((file, fates))
        if begun is None:
            before = self._content(file, fates[:-1])
            begun = _applied(before, self._mine[file][len(fates) - 1], fates[-1])
            self._begun[file, fates] = begun
        return begun


def words(operation: Volatile, names: dict[int, str]) -> str:
    """An operation for a person; `names` has the last name of each file."""
    if isinstance(operation, Names):
        return ", ".join(
            f"the name {name} {'removed' if number is None else 'made'}"
            for name, number in operation.entries
        )
    name = names.get(operation.file, f"file {operation.file}")
    if isinstance(operation, Cut):
        return f"{name} cut to {operation.size} bytes"
    return f"{len(operation.data)} bytes at {operation.offset} of {name}"


def _rename(names: dict[str, int], change: Names) -> None:
    for name, number in change.entries:
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def _applied(content: bytes, operation: Write | Cut, fate: str) -> bytes:
    """A file's content after an operation that was lost, kept, or kept up to or from a cut."""
    if fate == LOST:
        return content
    if isinstance(operation, Cut):
        return content[: operation.size].ljust(operation.size, b"\0")
    offset, data = operation.offset, operation.data
    if fate != KEPT:
        cut = operation.cuts()[int(fate[1:])]
        if fate[0] == HEAD:
            data = data[:cut]
        else:
            offset, data = offset + cut, data[cut:]
    return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]


def choices(
    pending: Sequence[Volatile], point: int, torn: bool = True
) -> Iterator[tuple[str, ...]]:
    """The fates tried: subsets (all, or the sample), then each write torn at each sector."""
    size = len(pending)
    if size <= EXHAUSTIVE:
        yield from itertools.product((KEPT, LOST), repeat=size)
    else:
        yield from _sample(size, point)
    if torn:
        yield from _torn(pending)


def _torn(pending: Sequence[Volatile]) -> Iterator[tuple[str, ...]]:
    size = len(pending)
    for place, volatile in enumerate(pending):
        if not isinstance(volatile, Write):
            continue
        for cut in range(len(volatile.cuts())):
            for fate in (f"{HEAD}{cut}", f"{TAIL}{cut}"):
                before, after = place, size - place - 1
                yield (KEPT,) * before + (fate,) + (KEPT,) * after
                yield (KEPT,) * before + (fate,) + (LOST,) * after
                yield (LOST,) * before + (fate,) + (LOST,) * after


def _sample(size: int, point: int) -> Iterator[tuple[str, ...]]:
    """Every beginning, every single one lost, every single one kept, and DRAWN drawn ones."""
    for place in range(size + 1):
        yield (KEPT,) * place + (LOST,) * (size - place)
    for place in range(size):
        yield (KEPT,) * place + (LOST,) + (KEPT,) * (size - place - 1)
        yield (LOST,) * place + (KEPT,) + (LOST,) * (size - place - 1)
    draw = random.Random(point)
    for _ in range(DRAWN):
        yield tuple(KEPT if draw.getrandbits(1) else LOST for _ in range(size))


def files_of(image: Image) -> Files:
    """The image as files to put on a stage."""
    return dict(image.files)
