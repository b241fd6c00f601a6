"""The base lab's command line: submit, run, crash, recover, look.

Guarantee: data is JSON on stdout, words are on stderr, an error is one line, and an exit code says
whether to go on (the table is EXIT_CODES). Whatever happens to the output, the database is whole.
Limit: it trusts its operator; a service takes scope and owner from its authenticated session.
"""

import _signal  # the built-in part of signal, which would load enum first

if __name__ == "__main__" and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C while modules load: no traceback

import argparse
import contextlib
import errno
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TextIO

import provider
from provider import LabError
from runtime import (
    CALL_SECONDS,
    DEADLINE_SECONDS,
    DEFAULT_MEMORY,
    DEFAULT_SCOPE,
    FAULTS,
    LEASE_SECONDS,
    LOCAL,
    MAX_SECONDS,
    MEMORY_TTL,
    MIN_SECONDS,
    VERSION,
    Event,
    Lease,
    LostLease,
    NotFound,
    Runtime,
    Status,
    UsageError,
    check_name,
    looking,
    workflow_in,
)

DONE, FAILED, USAGE, NOT_NOW, INJECTED, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 75, 130, 143
EXIT_CODES = f"""exit codes:
  {DONE}    done as asked
  {FAILED}    refused, failed, conflict, not found
  {USAGE}    usage
  {NOT_NOW}    not now: leased by another, lease lost, retry_wait, reconciling, busy,
       publisher missing
  {INJECTED}   injected fault
  {INTERRUPTED}  Ctrl-C
  {TERMINATED}  SIGTERM"""
DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ms|s|m)?", re.ASCII)
UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}
MAX_INPUT_BYTES = 4 * provider.MAX_SOURCE_BYTES
RUN_COLUMNS = (
    "status",
    "generation",
    "owner",
    "lease_until",
    "attempts",
    "available_at",
    "error",
)
LISTED = 20  # job ids named in an error line
FOLD_TRIES, FOLD_PAUSE = 4, 0.003  # a close takes milliseconds; a log still open then is in use
POLL_SECONDS = 1.0  # how soon --wait notices that another worker has finished


# --- Output ---------------------------------------------------------------------------------------


def printable(text: str, stream: TextIO, keep: str = "") -> str:
    """Text for a console: control and format characters, and what it cannot show, as escapes."""
    import unicodedata

    encoding = getattr(stream, "encoding", None) or "ascii"

    def shown(match: re.Match[str]) -> str:
        char = match.group()
        if char in keep:
            return char
        hidden = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        with contextlib.suppress(UnicodeError):
            if not hidden and char.encode(encoding).decode(encoding) == char:
                return char
        units = char.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))

    return text if text.isascii() and text.isprintable() else re.sub(r"[^ -~]", shown, text)


class OutputError(LabError):
    """The answer did not arrive; what the command did in the database is done."""

    definite = False


def emit(value: object) -> None:
    """Data on stdout, as JSON."""
    put(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def put(text: str) -> None:
    """Text on stdout, whole; a reader that has gone away is no error, a full device is."""
    if sys.stdout is None:
        raise OutputError("the answer has nowhere to go: standard output is closed; use inspect")
    text = printable(text, sys.stdout, keep="\n")
    try:
        if not hasattr(sys.stdout, "buffer"):
            sys.stdout.write(text)
            return
        rest = memoryview(text.encode(sys.stdout.encoding, "backslashreplace"))
        while rest:  # unbuffered, a write may take a part only, and says so to nobody but us
            taken = sys.stdout.buffer.write(rest)
            if not taken:
                raise BlockingIOError(errno.EAGAIN, "the reader is too slow")
            rest = rest[taken:]
        sys.stdout.flush()
    except OSError as error:
        # What could not be written must not be tried again when the interpreter ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            reason = error.strerror or error
            raise OutputError(f"the answer could not be written: {reason}; use inspect") from error


def say(words: str) -> None:
    """One line on stderr; nothing depends on its arriving."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(printable(words, sys.stderr), file=sys.stderr, flush=True)


def moment(at: float) -> str:
    """A Unix time for a person."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    except (OverflowError, ValueError, OSError):
        return repr(at)


# --- Input ----------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """argparse with whole option names only and errors of one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        options["allow_abbrev"] = False
        super().__init__(*args, **options)

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse's one way to print; its own swallows a full device."""
        if message and file in (None, sys.stdout):
            put(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        say(f"error: {message}; see {self.prog} --help")
        sys.exit(USAGE)


def refuse_lists(parser: Parser, arguments: argparse.Namespace) -> None:
    """Python 3.11 makes an empty list of `--option=--`: that is a usage error."""
    for name, value in vars(arguments).items():
        if [] in value if name == "source" else value == []:
            parser.error(f"argument --{name.replace('_', '-')}: expected a value")


def seconds(text: str) -> float:
    """`2`, `2s`, `500ms` or `1m` as seconds; at least a millisecond."""
    match = DURATION.fullmatch(text)
    value = float(match[1]) * UNIT_SECONDS[match[2] or "s"] if match else 0.0
    if not MIN_SECONDS <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration, like 2, 2s, 500ms, 1m (1ms up)")
    return value


def within_limit(data: bytes, what: str) -> bytes:
    """The data; UsageError for more than a job can carry."""
    if len(data) > MAX_INPUT_BYTES:
        raise UsageError(f"{what}: more than {MAX_INPUT_BYTES} bytes; name files with --source")
    return data


def text_of(argument: str, what: str) -> str:
    """The argument itself, or standard input for `-`; UsageError unless that is UTF-8."""
    if argument != "-":
        return argument
    if sys.stdin is None:
        raise UsageError(f"{what}: there is no standard input")
    try:
        return within_limit(sys.stdin.buffer.read(MAX_INPUT_BYTES + 1), what).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what}: standard input is not UTF-8: {error.reason}") from error


def read_sources(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The sources that --sources and --source name, in that order; else the two default ones."""
    sources: list[dict[str, Any]] = []
    try:
        if arguments.sources == "-":
            sources += provider.inline_sources(text_of("-", "--sources"))
        elif arguments.sources is not None:
            with open(arguments.sources, "rb") as file:
                data = within_limit(file.read(MAX_INPUT_BYTES + 1), "--sources")
            sources += provider.inline_sources(data.decode("utf-8"))
        for named in arguments.source:
            source_id, equals, path = named.partition("=")
            if not equals:
                raise UsageError(f"--source takes ID=PATH, not {named!r}")
            sources.append(provider.file_source(source_id, path))
    except OSError as error:
        named = error.filename or arguments.sources
        raise UsageError(f"source file {named!r}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    return sources or list(provider.DEFAULT_SOURCES)


# --- A long call ----------------------------------------------------------------------------------


class Heartbeat:
    """Renews a lease at a third of its length while steps run, from a connection of its own.

    A renewal that fails is uncertain until the lease's own end; from then the guard at the next
    step's start stops the worker. It cannot recall a request that was sent.
    """

    def __init__(self, runtime: Runtime, lease: Lease) -> None:
        import threading

        self.lease, self.pause = lease, runtime.lease_seconds / 3
        self.own = type(runtime)(
            runtime.path, clock=runtime.clock, lease_seconds=runtime.lease_seconds
        )
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        provider.start_without_signals(self.thread)

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _beat(self) -> None:
        with self.own:
            while not self.stop.wait(self.pause):
                try:
                    self.own.renew(*self.lease)
                except LostLease:
                    return
                except LabError:
                    continue  # busy or unreadable just now: the next beat tries again


def end_process(fault: str) -> NoReturn:
    """An injected fault: the process ends here, with no handler and no clean-up run."""
    with contextlib.suppress(OSError):
        os.write(2, f"error: injected fault {fault}: the process ends here\n".encode())
    os._exit(INJECTED)


# --- Commands -------------------------------------------------------------------------------------


class Command(NamedTuple):
    """One verb: its help, an example, its options and what it does."""

    help: str
    example: str
    options: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


class CommandLine:
    """The verbs of one workflow. A command returns an exit code; LabError carries its own."""

    PROG = "cli.py"
    ABOUT = __doc__
    DB = "lab.sqlite"
    JOB = "demo"
    # What `run` reports of a job in each status.
    EXITS = {
        Status.SUCCEEDED: DONE,
        Status.FAILED: FAILED,
        Status.CANCELLED: FAILED,
        Status.QUEUED: NOT_NOW,
        Status.RUNNING: NOT_NOW,
        Status.RETRY_WAIT: NOT_NOW,
    }

    def commands(self) -> dict[str, Command]:
        memory, ttl = self.scope_options, "--ttl 1m --value TEXT"
        return {
            "memory-put": Command("store the scope's memory", ttl, self.put_options, self.put),
            "memory-forget": Command("empty the scope's memory", "", memory, self.forget),
            "submit": Command(
                "store a job", "--job j1 --source S1=notes.txt", self.submit_options, self.submit
            ),
            "run": Command(
                "claim a job and do its missing steps", "--job j1", self.run_options, self.run
            ),
            "inspect": Command("show a job", "--job j1", self.job_option, self.inspect),
            "list": Command("show all jobs", "", self.no_options, self.list),
            "cancel": Command("stop a job", "--job j1", self.job_option, self.cancel),
        }

    def parser(self) -> Parser:
        parser = Parser(prog=self.PROG, description=self.ABOUT, epilog=EXIT_CODES)
        parser.add_argument("--version", action="version", version=f"recovery lab {VERSION}")
        verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        for name, command in self.commands().items():
            example = f"example: python3 {self.PROG} {name} --db {self.DB} {command.example}"
            verb = verbs.add_parser(
                name, help=command.help, description=command.help, epilog=example.rstrip()
            )
            verb.add_argument("--db", default=self.DB, help="local database (default: %(default)s)")
            command.options(verb)
            verb.set_defaults(execute=command.execute)
        return parser

    def runtime(self, arguments: argparse.Namespace, **options: Any) -> Runtime:
        return Runtime(arguments.db, **options)

    def no_options(self, verb: argparse.ArgumentParser) -> None:
        """A command of --db alone."""

    def job_option(self, verb: argparse.ArgumentParser) -> None:
        verb.add_argument("--job", help="job id (default: the database's only job)")

    def scope_options(self, verb: argparse.ArgumentParser) -> None:
        for name, default in zip(("tenant", "requester", "project"), DEFAULT_SCOPE, strict=True):
            verb.add_argument(f"--{name}", default=default, help="scope (default: %(default)s)")

    def put_options(self, verb: argparse.ArgumentParser) -> None:
        self.scope_options(verb)
        verb.add_argument(
            "--value", default=DEFAULT_MEMORY, help="text, or - for standard input", metavar="TEXT"
        )
        verb.add_argument("--ttl", type=seconds, default=MEMORY_TTL, help="until it expires")

    def submit_options(self, verb: argparse.ArgumentParser) -> None:
        self.scope_options(verb)
        verb.add_argument("--job", default=self.JOB, help="job id (default: %(default)s)")
        verb.add_argument(
            "--source",
            action="append",
            default=[],
            metavar="ID=PATH",
            help="a UTF-8 file, by reference; repeatable",
        )
        verb.add_argument("--sources", metavar="FILE", help="JSON list of id and text, or -")
        verb.add_argument("--provider", choices=provider.PROVIDERS, default="fixture")
        verb.add_argument("--model", help="for --provider api")
        verb.add_argument("--endpoint", help="full URL of chat completions; key: LLM_API_KEY")
        verb.add_argument("--report-target", help="where the report is meant to go")
        verb.add_argument("--deadline-seconds", type=seconds, default=DEADLINE_SECONDS)

    def run_options(self, verb: argparse.ArgumentParser) -> None:
        self.job_option(verb)
        verb.add_argument("--owner", help="name of this worker (default: host:pid)")
        verb.add_argument("--lease-seconds", type=seconds, default=LEASE_SECONDS)
        verb.add_argument("--call-seconds", type=seconds, default=CALL_SECONDS)
        verb.add_argument("--fault", choices=FAULTS, help="end the process at this point, exit 75")
        verb.add_argument("--heartbeat", action="store_true", help="renew the lease meanwhile")
        verb.add_argument(
            "--wait", action="store_true", help="go on until it has ended or waits for a person"
        )

    def put(self, arguments: argparse.Namespace) -> int:
        value = text_of(arguments.value, "--value")
        with self.runtime(arguments) as runtime:
            memory = runtime.memory_put(value, scope=scope_of(arguments), ttl=arguments.ttl)
        emit({"scope": json.loads(memory.scope), **pick(memory, "revision", "expires")})
        return DONE

    def forget(self, arguments: argparse.Namespace) -> int:
        with self.runtime(arguments) as runtime:
            memory = runtime.memory_forget(scope=scope_of(arguments))
        emit({"scope": json.loads(memory.scope), **pick(memory, "revision", "expires")})
        return DONE

    def submit(self, arguments: argparse.Namespace) -> int:
        with self.runtime(arguments) as runtime:
            job, created = runtime.submit(
                arguments.job,
                sources=read_sources(arguments),
                provider=arguments.provider,
                model=arguments.model,
                endpoint=arguments.endpoint,
                scope=scope_of(arguments),
                report_target=arguments.report_target,
                deadline_seconds=arguments.deadline_seconds,
            )
        if not created:
            say(f"job {job.id!r} already exists with this input: {job.status}; nothing changed")
        rest = pick(job, "input_hash", "memory_rev", "deadline")
        emit({"job_id": job.id, "status": job.status, "created": created, **rest})
        return DONE

    def run(self, arguments: argparse.Namespace) -> int:
        options: dict[str, Any] = {
            "lease_seconds": arguments.lease_seconds,
            "call_seconds": arguments.call_seconds,
            "fault": arguments.fault,
            "crash": end_process,
            "keepalive": Heartbeat if arguments.heartbeat else None,
        }
        owner = default_owner() if arguments.owner is None else arguments.owner
        with self.runtime(arguments, **options) as runtime:
            job = self.job_of(arguments, runtime)
            told = None
            while True:
                answer, words, lost = self.attempt(runtime, job, owner)
                retry_at = answer.get("retry_at")
                if not arguments.wait or retry_at is None:
                    break
                if retry_at != told:
                    say(f"waiting: {words}")
                    told = retry_at
                time.sleep(min(max(retry_at - runtime.clock(), 0.01), POLL_SECONDS))
        emit(answer)
        code = self.EXITS.get(answer["status"], FAILED)
        if lost and code != DONE:
            code = NOT_NOW  # how the job ended is the new owner's to say
        if words:
            say(f"error: {words}" if code else words)
        return code

    def attempt(self, runtime: Runtime, job: str, owner: str) -> tuple[dict[str, Any], str, bool]:
        """One `run`: the answer for stdout, words for what is not plainly done, lease lost."""
        lost = ""
        try:
            ran = runtime.run(job, owner)
            view, steps, reused = runtime.inspect(job), ran.steps_run, ran.steps_reused
            # What this run did, though someone may have gone on with the job since.
            view["job"].update(pick(ran.job, *RUN_COLUMNS))
        except LostLease as error:
            lost, view = f"{error}; ", runtime.inspect(job)
            committed = [e for e in view["events"] if e["kind"] == Event.STEP_COMMITTED]
            own = error.lease.generation
            steps = tuple(e["detail"] for e in committed if e["generation"] == own)
            reused = tuple(e["detail"] for e in committed if e["generation"] < own)
        row, published = view["job"], view["checkpoints"].get("publish", {})
        answer = {
            "job_id": job,
            **{name: row[name] for name in ("status", "generation", "attempts")},
            "steps_run": list(steps),
            "steps_reused": list(reused),
            **{name: published[name] for name in ("receipt", "deduplicated") if name in published},
            "effect": view["effect"],
            "error": row["error"],
        }
        if view["effect"] == "confirmed":
            answer.setdefault("receipt", view["receipts"][0]["receipt"])
        waits = {Status.RUNNING: "lease_until", Status.RETRY_WAIT: "available_at"}
        if row["status"] in waits:
            answer["retry_at"] = row[waits[row["status"]]]
        words = self.words(view) if lost or self.EXITS.get(row["status"], FAILED) else ""
        return answer, lost + words, bool(lost)

    def words(self, view: dict[str, Any]) -> str:
        """What a person needs to know of a job that is not simply done."""
        row, effect = view["job"], f"effect {view['effect']}"
        job, status, now = f"job {row['id']!r}", row["status"], view["now"]
        if status == Status.RUNNING:
            until = row["lease_until"]
            if until <= now:
                return f"{job} is running with a lease that has run out ({effect}); run again"
            held = f"{job} is leased by {row['owner']!r} until {moment(until)}"
            return f"{held}, in {until - now:.1f} s; run again then{clock_hint(view)}"
        if status == Status.RETRY_WAIT:
            at = row["available_at"]
            return f"{job} is tried again from {moment(at)}, in {at - now:.1f} s: {row['error']}"
        if status == Status.FAILED:
            return f"{job} failed: {row['error']} ({effect})"
        return f"{job} is {status} ({effect})"

    def inspect(self, arguments: argparse.Namespace) -> int:
        with self.runtime(arguments) as runtime:
            view = runtime.inspect(self.job_of(arguments, runtime))
        trouble = view.pop("trouble", None)
        emit(view)
        if trouble:
            say(f"note: {trouble}; the receipts are not shown")
        return DONE

    def list(self, arguments: argparse.Namespace) -> int:
        names = ("status", "generation", "attempts", "deadline", "error")
        with self.runtime(arguments) as runtime:
            jobs = [
                {"job_id": job.id, "workflow": workflow_in(job.spec), **pick(job, *names)}
                for job in runtime.jobs()
            ]
        emit(jobs)
        return DONE

    def cancel(self, arguments: argparse.Namespace) -> int:
        with self.runtime(arguments) as runtime:
            job = runtime.cancel(self.job_of(arguments, runtime))
            view = runtime.inspect(job.id)
        rest = pick(job, "status", "generation")
        emit({"job_id": job.id, **rest, "effect": view["effect"]})
        if job.status == Status.CANCELLED:
            return DONE
        say(f"error: not cancelled: {self.words(view)}")
        return NOT_NOW if self.EXITS.get(job.status) == NOT_NOW else FAILED

    def job_of(self, arguments: argparse.Namespace, runtime: Runtime) -> str:
        """--job, or the only job there is; UsageError names them where there are several."""
        if arguments.job is not None:
            check_name("job id", arguments.job)
            return str(arguments.job)
        with looking(runtime.path, LOCAL) as local:
            rows = local.execute("SELECT id FROM jobs ORDER BY id LIMIT ?", (LISTED + 1,))
            ids = [row[0] for row in rows]
        if not ids:
            raise NotFound(f"no job in {arguments.db!r}; submit one")
        if len(ids) > 1:
            named = ", ".join(map(repr, ids[:LISTED])) + (", ..." if len(ids) > LISTED else "")
            raise UsageError(f"{arguments.db!r} has several jobs: name one with --job: {named}")
        return str(ids[0])


def fold_in(path: str) -> None:
    """Close the local database once more when its log was left behind.

    Two commands that close at one moment each see the other's lock, and neither folds it in.
    """
    for _ in range(FOLD_TRIES):
        if not os.path.exists(path + "-wal"):
            return
        time.sleep(FOLD_PAUSE * (os.getpid() % 7 + 1))  # hardly two at the same moment again
        with contextlib.suppress(LabError), looking(path, LOCAL):
            pass


def scope_of(arguments: argparse.Namespace) -> tuple[str, str, str]:
    return arguments.tenant, arguments.requester, arguments.project


def pick(row: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def default_owner() -> str:
    import socket

    return f"{socket.gethostname()}:{os.getpid()}"


def clock_hint(view: dict[str, Any]) -> str:
    """A lease granted in the future means that the clock went back, not that someone works."""
    granted = [e["at"] for e in view["events"] if e["kind"] == Event.LEASE_RENEWED]
    if not granted or granted[-1] <= view["now"]:
        return ""
    ahead = granted[-1] - view["now"]
    return f"; that lease was granted {ahead:.0f} s ahead of now: was the clock set back?"


# --- Entry ----------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """A signal asked the process to end; the exit code."""


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """SIGINT and SIGTERM end the command between two statements, unless the parent ignores them."""
    before: dict[signal.Signals, Any] = {}
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:  # one is enough: the way out is not interrupted again
            raise Interrupted(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(each)
        if handler in (signal.SIG_DFL, signal.default_int_handler):
            with contextlib.suppress(ValueError):  # not the main thread: no signal arrives here
                signal.signal(each, interrupt)
                before[each] = handler
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def main(argv: Sequence[str] | None = None, line: CommandLine | None = None) -> int:
    """Run one command; returns its exit code. SystemExit for usage and --help, as argparse."""
    try:
        with signals():
            parser = (line or CommandLine()).parser()
            arguments = parser.parse_args(argv)
            refuse_lists(parser, arguments)
            code = int(arguments.execute(arguments))
            fold_in(os.path.realpath(arguments.db))
            return code
    except Interrupted as interrupted:
        say("error: interrupted; what was committed stays, a running job is left to its lease")
        return int(interrupted.args[0])
    except LabError as error:
        say(f"error: {error}")
        return error.exit_code
    except OSError as error:
        say(f"error: {error}")
        return FAILED
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        # A row that this version never writes: say so instead of a traceback.
        kind = type(error).__name__
        say(f"error: a stored value is not what this lab writes ({kind}: {error}); run evaluate.py")
        return FAILED
    except Exception as error:
        # No memory, no thread to be had: one line, and the job is left to its lease.
        say(f"error: {type(error).__name__}: {error}; what was committed stays")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
