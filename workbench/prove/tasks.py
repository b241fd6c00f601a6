"""Numbers handed out to forked processes, each number once, so that all end at about one time."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

NUMBER = struct.Struct("=I")
MOST = 16_000  # what a pipe holds without a reader


class Tasks:
    """Made before the fork; whichever process asks next takes the next number."""

    def __init__(self, count: int) -> None:
        if count > MOST:
            raise ValueError(f"{count} tasks do not fit into a pipe")
        self.reader, writer = os.pipe()
        os.write(writer, b"".join(NUMBER.pack(number) for number in range(count)))
        os.close(writer)

    def __iter__(self) -> Iterator[int]:
        while block := os.read(self.reader, NUMBER.size):
            yield int(NUMBER.unpack(block)[0])

    def close(self) -> None:
        os.close(self.reader)
