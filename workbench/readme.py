"""`python3 -m workbench.readme`: type every command of the README and see each end as said.

Guarantee: each line of each `bash` block runs in one fresh folder with the lab in it; a line ends
with the code of its `# exit N` comment, else with 0. Limit: what a reader fills in is filled in
here (HASH, the endpoint's HOST), and a line marked `# minutes` is named and left to its own run.
"""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .experiments.outside import completion

LAB = Path(__file__).resolve().parent.parent
PATIENCE = 600  # seconds; the longest line, the tests, takes some two minutes
LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", "*.sqlite", ".mypy_cache", ".ruff_cache")


class Line(NamedTuple):
    """One command line of the README and the exit code it must have."""

    text: str
    code: int
    takes_minutes: bool


def lines_of(readme: str) -> list[Line]:
    """The command lines of all `bash` blocks, in order."""
    lines = []
    for block in re.findall(r"^```bash\n(.*?)^```", readme, re.MULTILINE | re.DOTALL):
        for text in block.replace("\\\n", " ").splitlines():
            if text.strip() and not text.startswith("#"):
                exit_comment = re.search(r"# exit (\d+)", text)
                code = int(exit_comment[1]) if exit_comment else 0
                lines.append(Line(text, code, "# minutes" in text))
    return lines


class _Model(http.server.BaseHTTPRequestHandler):
    """Stands in for the model's endpoint: one good answer, always."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = completion()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the commands' own output is what matters."""


@contextmanager
def model() -> Iterator[str]:
    """The address of a loopback endpoint while it serves."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def type_all(lines: list[Line], folder: Path, endpoint: str) -> Iterator[tuple[Line, str | None]]:
    """Run each line in folder; yields it with None, or with what went otherwise than said."""
    environment = {**os.environ, "LLM_API_KEY": "readme-key", "PYTHONDONTWRITEBYTECODE": "1"}
    shown_hash = "HASH"
    for line in lines:
        text = line.text.replace("https://HOST/", endpoint)
        text = re.sub(r"\bHASH\b", shown_hash, text)
        try:
            done = subprocess.run(
                ["bash", "-c", text],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="backslashreplace",
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            yield line, f"no end within {PATIENCE} s"
            continue
        hashes = re.findall(r'"binding_hash": "([0-9a-f]{64})"', done.stdout)
        shown_hash = hashes[-1] if hashes else shown_hash
        wrong = (
            f"exit {done.returncode}, not {line.code}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
        yield line, None if done.returncode == line.code else wrong


@contextmanager
def fresh_copy() -> Iterator[Path]:
    """The lab in an otherwise empty folder."""
    with tempfile.TemporaryDirectory(prefix="lab-readme-") as name:
        folder = Path(name) / "lab"
        shutil.copytree(LAB, folder, ignore=LEFT_OUT)
        shutil.copytree(LAB / "runs", folder / "runs", dirs_exist_ok=True)
        yield folder


def main() -> int:
    """Type the README; 0 when every line ended as it says."""
    wrong = 0
    lines = lines_of((LAB / "README.md").read_text(encoding="utf-8"))
    for line in lines:
        if line.takes_minutes:
            print(f"not run here, it takes minutes: {line.text}", flush=True)
    short = [line for line in lines if not line.takes_minutes]
    with fresh_copy() as folder, model() as endpoint:
        for line, trouble in type_all(short, folder, endpoint):
            print(f"{'FAIL' if trouble else 'ok  '}  {line.text}", flush=True)
            if trouble:
                wrong += 1
                print(trouble, flush=True)
    print(f"{len(short) - wrong} of {len(short)} commands ended as the README says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
