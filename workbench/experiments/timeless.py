"""All of a recorded run that does not depend on when and where it ran, as text to compare.

Guarantee: statuses, generations, steps, receipts, hashes, event kinds and their order, exit codes
and words are kept; times are one mark, wherever they stand. Limit: who wins a race, and on which
port an endpoint listens, is chance: both are marked likewise, and what the losers were told is cut.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from .evidence import reading
from .keeping import COMMANDS

TEXTS = (COMMANDS, "inspect-before.json", "inspect-after.json", "evaluation.json")
MARKS = (
    (r"\b[0-9]{10}(\.[0-9]+)?\b", "TIME"),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+Z", "TIME"),
    (r"\b(in|for) -?[0-9]+\.[0-9]+ s\b", r"\1 TIME"),
    (r"127\.0\.0\.1:[0-9]+", "127.0.0.1:PORT"),
)
RACERS = (
    (r"(?ms)^\(worker-[0-9]+ has ended\)\n.*?^\(exit [0-9]+\)\n", ""),
    (r"worker-[0-9]+", "worker-N"),
)
ENDPOINT_HASH = r'"input_hash": "([0-9a-f]{64})"'


def timeless(folder: Path) -> dict[str, str]:
    """File name -> what of it must be the same in every run."""
    found = {name: (folder / name).read_text("utf-8") for name in TEXTS}
    for path in sorted(folder.glob("*.sqlite")):
        found[path.name] = dump(path)
    marks: tuple[tuple[str, str], ...] = MARKS + RACERS
    if '"provider": "api"' in found["inspect-after.json"]:
        # The endpoint's port is part of the input, and so of its hash.
        own = re.search(ENDPOINT_HASH, found["inspect-after.json"])
        marks = ((own[1], "INPUT-HASH"), *marks) if own else marks
    return {name: _marked(text, marks) for name, text in found.items()}


def dump(path: Path) -> str:
    """Every row of a database, and what the file says of itself."""
    with reading(path) as connection:
        about = [
            f"{pragma} {connection.execute(f'PRAGMA {pragma}').fetchone()[0]}"
            for pragma in ("application_id", "user_version", "journal_mode")
        ]
        tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        for name, sql in tables:
            about.append(f"{name}: {sql}")
            if sql and sql.startswith("CREATE TABLE"):
                rows = connection.execute(f'SELECT * FROM "{name}" ORDER BY 1, 2')  # noqa: S608
                about += [json.dumps(row) for row in rows]
    return "\n".join(about)


def _marked(text: str, marks: tuple[tuple[str, str], ...]) -> str:
    for pattern, mark in marks:
        text = re.sub(pattern, mark, text)
    return text


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two recordings of an experiment, a line each; none when they agree."""
    first, second = timeless(one), timeless(other)
    found = [f"{name} is only in one of them" for name in first.keys() ^ second.keys()]
    for name in first.keys() & second.keys():
        pairs = zip(first[name].splitlines(), second[name].splitlines(), strict=False)
        lines = [f"{name}: {was!r} became {now!r}" for was, now in pairs if was != now]
        if not lines and first[name] != second[name]:
            lines = [f"{name}: one is longer"]
        found += lines[:3]
    return sorted(found)
