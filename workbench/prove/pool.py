"""Share work among forked processes that stay warm: nothing is imported twice, nothing is shared.

Guarantee: every worker's answer arrives, or its failure is raised here. Limit: answers are pickled;
a worker is pinned to one processor, so that a tracer and what it traces wake each other at once.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

Tell = Callable[[int], None]
Work = Callable[[int, int, Tell], Any]
HEADER = struct.Struct("=BI")
PROGRESS, ANSWER, FAILURE = range(3)


class WorkerFailed(RuntimeError):
    """A worker raised or died: the instrument, not the lab, is broken."""


def spread(jobs: int, work: Work, progress: Callable[[int], None] | None = None) -> list[Any]:
    """Run work(index, jobs, tell) in `jobs` forked processes; their answers, by index.

    tell(n) says that n more cases are done; `progress` hears the sum.
    """
    pipes: dict[int, int] = {}
    pids: dict[int, int] = {}
    answers: dict[int, Any] = {}
    done = 0
    try:
        for index in range(jobs):
            pids[index], reader = _begin(index, jobs, work)
            pipes[reader] = index
        while pipes:
            for reader in select.select(list(pipes), [], [])[0]:
                kind, body = _receive(reader)
                if kind == PROGRESS:
                    done += struct.unpack("=I", body)[0]
                    if progress is not None:
                        progress(done)
                    continue
                index = pipes.pop(reader)
                os.close(reader)
                if kind != ANSWER:
                    raise WorkerFailed(body.decode() or f"worker {index} died")
                answers[index] = pickle.loads(body)
    finally:
        for reader in pipes:
            os.close(reader)
        for index, pid in pids.items():
            if index not in answers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return [answers[index] for index in range(jobs)]


def _begin(index: int, jobs: int, work: Work) -> tuple[int, int]:
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.close(reader)
        _pin(index)
        answer = work(index, jobs, lambda n: _send(writer, PROGRESS, struct.pack("=I", n)))
        _send(writer, ANSWER, pickle.dumps(answer))
    except BaseException:
        _send(writer, FAILURE, traceback.format_exc().encode())
    finally:
        os._exit(0)


def _pin(index: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[index % len(processors)]})


def _send(writer: int, kind: int, body: bytes) -> None:
    rest = HEADER.pack(kind, len(body)) + body
    while rest:
        rest = rest[os.write(writer, rest) :]


def _receive(reader: int) -> tuple[int, bytes]:
    header = _exactly(reader, HEADER.size)
    if len(header) < HEADER.size:
        return FAILURE, b""
    kind, length = HEADER.unpack(header)
    body = _exactly(reader, length)
    return (kind, body) if len(body) == length else (FAILURE, b"")


def _exactly(reader: int, length: int) -> bytes:
    found = b""
    while len(found) < length:
        piece = os.read(reader, length - len(found))
        if not piece:
            break
        found += piece
    return found
