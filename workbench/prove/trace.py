"""Follow the file-changing system calls of forked children, and stop, kill or fail any of them.

Guarantee: each such call of a child is seen twice, at its entry (not yet done) and at its exit
(done); a child that the watcher kills at one of these stops runs no further instruction, so what
the files hold then is what SIGKILL leaves. Limit: Linux on x86-64 and aarch64, kernel 4.8 or
newer, children of one thread; stores into a shared mapping (SQLite's `-shm`) are no system calls
and are not seen. `unavailable` says why where it cannot work.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

KILL = -1  # what a watcher returns to kill the child at that stop
PASS = -2  # at the entry: let the call go, and do not stop at its exit

AT_FDCWD = -100
PTRACE_CONT, PTRACE_SYSCALL, PTRACE_SEIZE = 7, 24, 0x4206
PTRACE_GETREGSET, PTRACE_SETREGSET = 0x4204, 0x4205
NT_PRSTATUS, NT_ARM_SYSTEM_CALL = 1, 0x404
TRACESYSGOOD, TRACEEXEC, TRACESECCOMP, EXITKILL = 0x1, 0x10, 0x80, 0x100000
EVENT_EXEC, EVENT_SECCOMP, EVENT_STOP = 4, 7, 128
WALL = 0x40000000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SECCOMP_RET_ALLOW, SECCOMP_RET_TRACE = 0x7FFF0000, 0x7FF00000
RANDOM_PATHS = (b"/dev/urandom", b"/dev/random")


class Machine(NamedTuple):
    """Where one processor keeps a system call: register indexes, audit number, call numbers."""

    audit: int
    registers: int
    number: int
    result: int
    arguments: tuple[int, ...]
    stack: int
    calls: dict[str, int]


X86_64 = Machine(
    0xC000003E, 27, 15, 10, (14, 13, 12, 7, 9, 8), 19,
    {
        "write": 1, "open": 2, "pwrite64": 18, "writev": 20, "sendfile": 40, "fsync": 74,
        "fdatasync": 75, "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84,
        "creat": 85, "link": 86, "unlink": 87, "symlink": 88, "fchmod": 91, "fchown": 93,
        "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264, "linkat": 265,
        "symlinkat": 266, "fallocate": 285, "pwritev": 296, "renameat2": 316,
        "copy_file_range": 326, "pwritev2": 328,
    },
)  # fmt: skip
AARCH64 = Machine(
    0xC00000B7, 34, 8, 0, (0, 1, 2, 3, 4, 5), 31,
    {
        "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38,
        "truncate": 45, "ftruncate": 46, "fallocate": 47, "fchmod": 52, "fchown": 55,
        "openat": 56, "write": 64, "writev": 66, "pwrite64": 68, "pwritev": 70, "sendfile": 71,
        "fsync": 82, "fdatasync": 83, "renameat2": 276, "copy_file_range": 285, "pwritev2": 287,
    },
)  # fmt: skip
MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}

# Which arguments name the file: ("fd", i) a descriptor, ("at", i, j) a path j below descriptor i.
_DESCRIPTOR, _PATH, _BELOW = (("fd", 0, 0),), (("path", 0, 0),), (("at", 0, 1),)
NAMES: dict[str, tuple[tuple[str, int, int], ...]] = {
    "write": _DESCRIPTOR, "pwrite64": _DESCRIPTOR, "writev": _DESCRIPTOR, "pwritev": _DESCRIPTOR,
    "pwritev2": _DESCRIPTOR, "sendfile": _DESCRIPTOR, "fsync": _DESCRIPTOR,
    "fdatasync": _DESCRIPTOR, "ftruncate": _DESCRIPTOR, "fallocate": _DESCRIPTOR,
    "fchmod": _DESCRIPTOR, "fchown": _DESCRIPTOR, "copy_file_range": (("fd", 2, 0),),
    "open": _PATH, "creat": _PATH, "truncate": _PATH, "mkdir": _PATH, "rmdir": _PATH,
    "unlink": _PATH, "openat": _BELOW, "mkdirat": _BELOW, "unlinkat": _BELOW,
    "rename": (("path", 0, 0), ("path", 1, 0)), "link": (("path", 0, 0), ("path", 1, 0)),
    "renameat": (("at", 0, 1), ("at", 2, 3)), "renameat2": (("at", 0, 1), ("at", 2, 3)),
    "linkat": (("at", 0, 1), ("at", 2, 3)),
    "symlink": (("path", 1, 0),), "symlinkat": (("at", 1, 2),),
}  # fmt: skip
FLAGS = {"open": 1, "openat": 2}
OPENS = ("open", "openat", "creat")
REMOVES = ("unlink", "unlinkat", "rmdir")


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    return libc


@functools.cache
def machine() -> Machine:
    """This processor's table; KeyError where there is none."""
    return MACHINES[platform.machine()]


def _ptrace(request: int, pid: int, address: int, data: int | ctypes.Structure) -> None:
    pointer = data if isinstance(data, int) else ctypes.addressof(data)
    if _libc().ptrace(request, pid, address, pointer) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")


class Call:
    """One system call at one of its stops; `paths` are absolute, `result` is None at the entry."""

    __slots__ = ("_child", "args", "name", "paths", "pid", "result")

    def __init__(self, child: _Child, name: str, args: tuple[int, ...]) -> None:
        self._child = child
        self.pid = child.pid
        self.name = name
        self.args = args
        self.paths = tuple(child.path(args, *where) for where in NAMES[name])
        self.result: int | None = None

    @property
    def flags(self) -> int:
        """The flags of an open; 0 for any other call."""
        if self.name == "creat":
            return os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        return self.args[FLAGS[self.name]] if self.name in FLAGS else 0

    def data(self) -> bytes:
        """The bytes that a write hands over; ValueError for a call that this cannot read."""
        if self.name in ("write", "pwrite64"):
            return self._child.read(self.args[1], self.args[2])
        if self.name == "writev":
            vectors = struct.unpack(
                f"{2 * self.args[2]}Q", self._child.read(self.args[1], 16 * self.args[2])
            )
            return b"".join(map(self._child.read, vectors[::2], vectors[1::2]))
        raise ValueError(f"no way to read the data of {self.name}")

    def offset(self) -> int:
        """Where in the file a write begins; ask at the entry."""
        if self.name == "pwrite64":
            return self.args[3]
        with open(f"/proc/{self.pid}/fdinfo/{self.args[0]}") as lines:
            facts = dict(line.split(":", 1) for line in lines)
        if int(facts["flags"], 8) & os.O_APPEND:
            return os.stat(f"/proc/{self.pid}/fd/{self.args[0]}").st_size
        return int(facts["pos"])

    def identity(self, descriptor: int | None = None) -> int:
        """The inode behind the call's descriptor (for an open at its exit: `result`)."""
        number = self.args[0] if descriptor is None else descriptor
        return os.stat(f"/proc/{self.pid}/fd/{number}").st_ino


class Watcher:
    """What is done at each call inside the watched folders; override what is needed."""

    def entry(self, call: Call) -> int:
        """Before the call: 0 or PASS let it go, an errno fails it instead of doing it, or KILL."""
        return 0

    def exit(self, call: Call) -> int:
        """After the call: 0 goes on, KILL kills."""
        return 0

    def mark(self, pid: int, text: str) -> None:
        """The child said `text` by `mark`."""


class _Child:
    """One traced process: its registers and memory."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.machine = machine()
        self.registers = (ctypes.c_ulonglong * self.machine.registers)()
        self.vector = _Vector(ctypes.addressof(self.registers), ctypes.sizeof(self.registers))
        self.memory = self._open()
        self.call: Call | None = None  # the watched call between its entry and its exit
        self.failing = 0
        self.marker = _marker

    def _open(self) -> int:
        return os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self.memory)

    def reopen(self) -> None:
        """After an exec: the open memory is that of the program before, the marker is closed."""
        self.close()
        self.marker = None
        self.memory = self._open()

    def fetch(self) -> None:
        self.vector.length = ctypes.sizeof(self.registers)
        _ptrace(PTRACE_GETREGSET, self.pid, NT_PRSTATUS, self.vector)

    def store(self) -> None:
        _ptrace(PTRACE_SETREGSET, self.pid, NT_PRSTATUS, self.vector)

    def skip(self) -> None:
        """Make the call at whose entry the child stands a call of nothing."""
        if self.machine is AARCH64:
            number = ctypes.c_int(-1)
            vector = _Vector(ctypes.addressof(number), ctypes.sizeof(number))
            _ptrace(PTRACE_SETREGSET, self.pid, NT_ARM_SYSTEM_CALL, vector)
        else:
            self.registers[self.machine.number] = 2**64 - 1
            self.store()

    def answer(self, value: int) -> None:
        """Give the call at whose exit the child stands another result."""
        self.fetch()
        self.registers[self.machine.result] = value % 2**64
        self.store()

    def arguments(self) -> tuple[int, ...]:
        return tuple(self.registers[index] for index in self.machine.arguments)

    def result(self) -> int:
        self.fetch()
        return ctypes.c_longlong(self.registers[self.machine.result]).value

    def read(self, address: int, length: int) -> bytes:
        if not length:
            return b""
        found = os.pread(self.memory, length, address)
        if not found:
            raise OSError(errno.EFAULT, f"no memory at {address:#x} of process {self.pid}")
        return found

    def text(self, address: int) -> bytes:
        """The C string at an address, read up to its page's end, and on where it goes on."""
        found = b""
        while b"\0" not in found:
            found += self.read(address + len(found), 4096 - (address + len(found)) % 4096)
        return found.split(b"\0", 1)[0]

    def path(self, args: tuple[int, ...], kind: str, first: int, second: int) -> str:
        """The absolute path that the arguments name, its folder's symlinks followed."""
        if kind == "fd":
            return self.link(args[first])
        name = os.fsdecode(self.text(args[second if kind == "at" else first]))
        below = ctypes.c_int(args[first]).value if kind == "at" else AT_FDCWD
        if not os.path.isabs(name):
            base = f"/proc/{self.pid}/cwd" if below == AT_FDCWD else f"/proc/{self.pid}/fd/{below}"
            name = os.path.join(os.readlink(base), name)
        folder, last = os.path.split(name)
        return os.path.join(os.path.realpath(folder), last)

    def link(self, descriptor: int) -> str:
        try:
            return os.readlink(f"/proc/{self.pid}/fd/{descriptor}").removesuffix(" (deleted)")
        except OSError:
            return ""

    def redirect(self, argument: int, path: bytes) -> None:
        """Point a path argument at another text, laid below what the stack may be using."""
        address = self.registers[self.machine.stack] - 2048
        os.pwrite(self.memory, path + b"\0", address)
        self.registers[self.machine.arguments[argument]] = address
        self.store()


_marker: int | None = None


def mark(text: str) -> None:
    """Say something to the watcher of this process; nothing happens where there is none."""
    if _marker is not None:
        os.write(_marker, text.encode())


class _Tracing:
    """One run of `trace`: the children, and what is done at each of their stops."""

    def __init__(self, watcher: Watcher, roots: Sequence[str], seed: str | None) -> None:
        self.watcher = watcher
        self.roots = tuple(os.path.join(os.path.realpath(root), "") for root in roots)
        self.seed = os.fsencode(seed) if seed else None
        self.numbers = {number: name for name, number in machine().calls.items()}

    def inside(self, path: str) -> bool:
        return path.startswith(self.roots) or path + "/" in self.roots

    def counts(self, call: Call) -> bool:
        """Does this call change a file (or folder) of the watched ones, if it succeeds?"""
        if not any(map(self.inside, call.paths)):
            return False
        if call.name in OPENS:
            return bool(call.flags & (os.O_CREAT | os.O_TRUNC))
        return True

    def stopped(self, child: _Child, status: int) -> int:
        """Handle one stop; return the request with which the child goes on, or KILL."""
        event, sign = status >> 16, os.WSTOPSIG(status)
        if event == EVENT_SECCOMP:
            return self.entry(child)
        if event == EVENT_EXEC:
            child.reopen()
        if sign == signal.SIGTRAP | 0x80:
            return self.exit(child)
        return PTRACE_CONT

    def entry(self, child: _Child) -> int:
        child.fetch()
        name = self.numbers[child.registers[child.machine.number]]
        args = child.arguments()
        if name == "write" and args[0] == child.marker:
            self.watcher.mark(child.pid, child.read(args[1], args[2]).decode())
            return PTRACE_CONT
        if self.seed and name in FLAGS:
            place = FLAGS[name] - 1
            if child.text(args[place]) in RANDOM_PATHS:
                child.redirect(place, self.seed)
                return PTRACE_CONT
        call = Call(child, name, args)
        if not self.counts(call):
            return PTRACE_CONT
        verdict = self.watcher.entry(call)
        if verdict == KILL:
            return KILL
        if verdict == PASS:
            return PTRACE_CONT
        child.call, child.failing = call, verdict
        if verdict:
            child.skip()
        return PTRACE_SYSCALL

    def exit(self, child: _Child) -> int:
        call, child.call = child.call, None
        if call is None:
            return PTRACE_CONT
        if child.failing:
            child.answer(-child.failing)
        call.result = child.result()
        return KILL if self.watcher.exit(call) == KILL else PTRACE_CONT


def _filter(every_open: bool) -> ctypes.Array[ctypes.c_char]:
    """The kernel-side filter that stops only at the calls of NAMES (classic BPF).

    Opens that neither create nor truncate pass without a stop, unless every one is asked for.
    """
    calls = sorted(machine().calls.items())
    checked = [] if every_open else [name for name, _ in calls if name in FLAGS]
    allow = 3 + len(calls)
    trace_it, checks = allow + 1, allow + 2
    steps = [(0x20, 0, 0, 4), (0x15, 0, allow - 2, machine().audit), (0x20, 0, 0, 0)]
    for name, number in calls:
        target = checks + 4 * checked.index(name) if name in checked else trace_it
        steps.append((0x15, target - len(steps) - 1, 0, number))
    steps += [(0x06, 0, 0, SECCOMP_RET_ALLOW), (0x06, 0, 0, SECCOMP_RET_TRACE)]
    for name in checked:
        steps.append((0x20, 0, 0, 16 + 8 * FLAGS[name]))
        # Jumps go forward only: each check ends in its own verdict.
        steps.append((0x45, 0, 1, os.O_CREAT | os.O_TRUNC))
        steps += [(0x06, 0, 0, SECCOMP_RET_TRACE), (0x06, 0, 0, SECCOMP_RET_ALLOW)]
    return ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))


def _follow_me(gate: int, every_open: bool) -> None:
    """In the child: wait until the parent follows, then ask the kernel for the stops."""
    os.read(gate, 1)
    os.close(gate)
    program = _filter(every_open)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))

    held = Program((len(program) - 1) // 8, ctypes.addressof(program))
    libc = _libc()
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(held), 0, 0
    ):
        os._exit(126)


def _start(body: Callable[[], int], every_open: bool) -> _Child:
    """Fork a child that runs `body` once it is followed; its value is the exit code."""
    gate, opener = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 125
        try:
            os.close(opener)
            _follow_me(gate, every_open)
            code = body()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(gate)
    try:
        _ptrace(PTRACE_SEIZE, pid, 0, TRACESYSGOOD | TRACEEXEC | TRACESECCOMP | EXITKILL)
        child = _Child(pid)
        os.write(opener, b"g")
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(opener)
    return child


def trace(
    bodies: Sequence[Callable[[], int]],
    watcher: Watcher,
    roots: Sequence[str],
    seed: str | None = None,
) -> list[int]:
    """Run each body in a child of its own, all at once; return their exit codes (or -signal).

    Calls on files below `roots` go to the watcher. With `seed`, the children read that file where
    they would read the system's random device, so that two runs write the same bytes. More than
    one body: the process must have no other children.
    """
    global _marker
    tracing = _Tracing(watcher, roots, seed)
    _marker = os.open(os.devnull, os.O_WRONLY)
    children: dict[int, _Child] = {}
    order: list[int] = []
    codes: dict[int, int] = {}
    try:
        for body in bodies:
            child = _start(body, seed is not None)
            order.append(child.pid)
            children[child.pid] = child
        while children:
            pid, status = os.waitpid(order[0] if len(order) == 1 else -1, WALL)
            if pid not in children:
                continue
            if not os.WIFSTOPPED(status):
                children.pop(pid).close()
                codes[pid] = os.waitstatus_to_exitcode(status)
                continue
            _go_on(children[pid], tracing.stopped(children[pid], status), status)
    finally:
        os.close(_marker)
        _marker = None
        for pid, child in children.items():
            child.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, WALL)
    return [codes[pid] for pid in order]


def _go_on(child: _Child, request: int, status: int) -> None:
    if request == KILL:
        os.kill(child.pid, signal.SIGKILL)
        return
    sign = os.WSTOPSIG(status)
    passed_on = 0 if sign & ~0x80 == signal.SIGTRAP or status >> 16 == EVENT_STOP else sign
    try:
        _ptrace(request, child.pid, 0, passed_on)
    except OSError as error:
        if error.errno != errno.ESRCH:  # killed by someone else: its end is reported next
            raise


@functools.cache
def unavailable() -> str | None:
    """Why following children is impossible here, in words; None where it works."""
    if not sys.platform.startswith("linux"):
        return "ptrace is used on Linux only"
    if platform.machine() not in MACHINES:
        return f"no table of system calls for {platform.machine()}"
    try:
        codes = trace([lambda: 0], Watcher(), ["/"])
    except OSError as error:
        return f"ptrace is not allowed here ({error})"
    return None if codes == [0] else f"a followed child ended with {codes[0]}"
