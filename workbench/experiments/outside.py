"""The world around an experiment, as small programs that a person can start as well.

    outside.py endpoint --port N ANSWER...   a chat endpoint; ends after the last ANSWER
    outside.py lock FILE                     hold a database's write lock until it is told to end
    outside.py edit FILE SQL                 change a database behind the lab's back

Each ends by itself after a minute, or when whoever started it is gone. Limit: the endpoint speaks
just enough HTTP for the lab's adapter; it is no model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

PATIENCE = 60.0
SUMMARY = "Two notes were read. The service keeps one report for each operation key."


def waiting() -> Iterator[None]:
    """Moments, until a minute is over or the parent is gone."""
    ends, parent = time.monotonic() + PATIENCE, os.getppid()
    while time.monotonic() < ends and os.getppid() == parent:
        yield
        time.sleep(0.02)


def tell(words: str) -> None:
    print(words, flush=True)


def completion() -> bytes:
    """A chat completion that the lab accepts."""
    content = json.dumps({"summary": SUMMARY, "citations": ["S1", "S2"]})
    message = {"role": "assistant", "content": content}
    usage = {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def endpoint(arguments: argparse.Namespace) -> int:
    """Answer as told: `ok`, `ok@FILE` (once FILE exists) or an HTTP status such as 429."""
    import http.server
    import socketserver

    answers = list(arguments.answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = answers.pop(0)
            tell(f"asked; the answer is {answer}")
            kind, _, sign = answer.partition("@")
            if sign:
                for _ in waiting():
                    if os.path.exists(sign):
                        break
            body = completion() if kind == "ok" else b'{"error": {"message": "slow down"}}'
            self.send_response(200 if kind == "ok" else int(kind))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: Any) -> None:
            """Only our own words."""

    class Server(socketserver.TCPServer):
        allow_reuse_address = True
        timeout = 0.1

        def handle_error(self, *_: Any) -> None:
            tell("the caller has gone away")

    with Server(("127.0.0.1", arguments.port), Handler) as server:
        tell(f"listening on 127.0.0.1:{server.server_address[1]}")
        for _ in waiting():
            if not answers:
                break
            server.handle_request()
    return 0


def lock(arguments: argparse.Namespace) -> int:
    """Hold the write lock; nothing is written."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    connection = sqlite3.connect(arguments.file, timeout=5.0, isolation_level=None)
    with contextlib.closing(connection):
        connection.execute("BEGIN IMMEDIATE")
        tell(f"holding the write lock of {arguments.file}")
        for _ in waiting():
            pass
        connection.execute("ROLLBACK")
    return 0


def edit(arguments: argparse.Namespace) -> int:
    connection = sqlite3.connect(arguments.file, timeout=5.0, isolation_level=None)
    with contextlib.closing(connection):
        changed = connection.execute(arguments.sql).rowcount
    tell(f"rows changed: {changed}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="outside.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    verb = verbs.add_parser("endpoint", help=endpoint.__doc__)
    verb.add_argument("--port", type=int, default=0)
    verb.add_argument("answers", nargs="+", metavar="ANSWER")
    verb.set_defaults(execute=endpoint)
    verb = verbs.add_parser("lock", help=lock.__doc__)
    verb.add_argument("file")
    verb.set_defaults(execute=lock)
    verb = verbs.add_parser("edit", help="change a database behind the lab's back")
    verb.add_argument("file")
    verb.add_argument("sql")
    verb.set_defaults(execute=edit)
    arguments = parser.parse_args(argv)
    return int(arguments.execute(arguments))


if __name__ == "__main__":
    sys.exit(main())
