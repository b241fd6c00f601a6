"""What a job reads and what a model answers: errors, sources, the two providers, draft checks.

Guarantee: a draft leaves this module only as one strictly parsed object whose citations name the
job's own sources; everything else is an error that says whether another attempt can help.
Limit: a citation that exists is no proof that the source supports the sentence; nobody judges that.

Network and TLS modules are imported by the call that needs them: most commands never do.
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any, NoReturn

PROVIDERS = ("fixture", "api")
# One source travels through a checkpoint and a prompt; larger material belongs in a store of its
# own, with only an excerpt handed to the job.
MAX_SOURCE_BYTES = 16 * 1024 * 1024
NUMBER_DIGITS = 40  # no token count or id needs more; Python refuses 4300, and only some releases
FIXTURE_QUOTED = 10  # sources quoted by the fixture, so that its summary stays one readable screen
FIXTURE_CHARS = 160  # of each source or preference
FIXTURE_SUMMARY_CHARS = 2000

DEFAULT_SOURCES: list[dict[str, Any]] = [
    {
        "id": "S1",
        "text": "A checkpoint stores a finished step and its result in one transaction. "
        "A worker that restarts goes on with the next step and repeats none.",
    },
    {
        "id": "S2",
        "text": "A stable operation key lets the report service answer a repeated request with the "
        "receipt it gave before. A lost reply then leads to no second report.",
    },
]


# --- errors -------------------------------------------------------------------------------------


class LabError(Exception):
    """What the lab refuses; `definite` says that the refused thing had no outside effect."""

    exit_code = 1
    definite = True


class PermanentError(LabError):
    """Another attempt would end the same way: the job fails with this reason."""


class RetryableError(LabError):
    """Another attempt may succeed, not before `retry_after` seconds where the server asked so."""

    exit_code = 3

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class ConfigurationError(LabError):
    """The operator's settings, not the job, are at fault: refused before a claim is spent."""


# --- strict JSON --------------------------------------------------------------------------------


def strict_json(text: str) -> Any:
    """Parse JSON that has one reading only; ValueError names what else it holds, never quoting it.

    Python's own parser takes NaN, turns 1e999 into infinity, lets the last of two equal keys win
    and lets half a surrogate pair through, which then fails in the database.
    """
    if text.startswith("\ufeff"):
        raise ValueError("starts with a byte order mark")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("holds invalid Unicode (a lone surrogate)") from None
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("holds a duplicate key")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"holds {name}, not a finite number")


def _bounded_int(digits: str) -> int:
    if len(digits) > NUMBER_DIGITS:
        raise ValueError("holds a number of absurd length")
    return int(digits)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError("holds a number too large, not a finite number")
    return value


# --- sources ------------------------------------------------------------------------------------


def inline_sources(text: str) -> list[dict[str, Any]]:
    """Sources from the JSON text of a list of {"id", "text"}; ValueError where it is not that."""
    try:
        sources = strict_json(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"the sources are not JSON ({place})") from None
    except ValueError as error:
        raise ValueError(f"the JSON of the sources {error}") from None
    if not isinstance(sources, list):
        raise ValueError('the sources must be a list of objects with "id" and "text"')
    for number, source in enumerate(sources, 1):
        if not isinstance(source, dict) or set(source) != {"id", "text"}:
            raise ValueError(f'source number {number} must have exactly "id" and "text"')
    check_sources(sources)
    return sources


def file_source(source_id: str, path: str) -> dict[str, Any]:
    """A UTF-8 file by reference: {"id", "uri", "bytes", "sha256"}; ValueError where unusable.

    The path is resolved first, so that a link changed later does not change what was submitted.
    """
    import hashlib
    from urllib.parse import quote

    try:
        real = os.path.realpath(path)
        data = _read_regular(real)
        data.decode("utf-8")
    except OSError as error:
        raise ValueError(f"source {source_id!r}: {path!r}: {_os_reason(error)}") from None
    except UnicodeDecodeError:
        raise ValueError(f"source {source_id!r}: {path!r} is not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"source {source_id!r}: {path!r}: {error}") from None
    return {
        "id": source_id,
        "uri": "file://" + quote(os.fsencode(real)),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def check_sources(sources: list[dict[str, Any]]) -> None:
    """At least one source; ids unique, non-empty, printable; texts storable. ValueError if not."""
    if not sources:
        raise ValueError("at least one source is needed")
    seen: set[str] = set()
    for number, source in enumerate(sources, 1):
        name = source.get("id")
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ValueError(f"source number {number} needs an id of printable characters")
        if name in seen:
            raise ValueError(f"the source id {name!r} is used twice")
        seen.add(name)
        if "uri" not in source:
            _check_text(name, source.get("text"))


def collect(spec: dict[str, Any]) -> dict[str, Any]:
    """The texts of the job's sources, as {"sources": [{"id", "text"}]}.

    Files are read again and must be those submitted; PermanentError names the source if not.
    """
    return {
        "sources": [{"id": source["id"], "text": _text_of(source)} for source in spec["sources"]]
    }


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise ValueError(f"the text of source {name!r} must be a string")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise ValueError(f"the text of source {name!r} holds a lone surrogate") from None
    if size > MAX_SOURCE_BYTES:
        raise ValueError(f"source {name!r} is larger than {MAX_SOURCE_BYTES} bytes")


def _text_of(source: dict[str, Any]) -> str:
    import hashlib
    from urllib.parse import unquote_to_bytes

    if "uri" not in source:
        return str(source["text"])
    name = source["id"]
    scheme, separator, path = source["uri"].partition("://")
    if scheme != "file" or not separator:
        raise PermanentError(f"source {name!r}: its address is not a file URI")
    try:
        data = _read_regular(unquote_to_bytes(path))
    except OSError as error:
        raise PermanentError(f"source {name!r}: {_os_reason(error)}") from None
    except ValueError as error:
        raise PermanentError(f"source {name!r}: {error}") from None
    if (len(data), hashlib.sha256(data).hexdigest()) != (source["bytes"], source["sha256"]):
        raise PermanentError(f"source {name!r}: the file has changed since it was submitted")
    return data.decode("utf-8")


def _read_regular(path: str | bytes) -> bytes:
    """All bytes of one regular file of bounded size; OSError, or ValueError with the reason."""
    # Without O_NONBLOCK, opening a named pipe would wait for a writer before it could be refused.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_SOURCE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_SOURCE_BYTES:
        raise ValueError(f"larger than {MAX_SOURCE_BYTES} bytes")
    return data


def _os_reason(error: OSError) -> str:
    return f"cannot be read ({error.strerror or type(error).__name__})"


# --- draft and verify ---------------------------------------------------------------------------


def draft(
    spec: dict[str, Any], collected: dict[str, Any], memory: str, seconds: float
) -> dict[str, Any]:
    """The draft checkpoint: summary, citations, provider, model, finish_reason, usage if told.

    `memory` is the preference in force, "" for none. An api call ends after `seconds`, whatever
    the server does; name resolution alone cannot be interrupted. PermanentError, RetryableError.
    """
    if spec["provider"] == "fixture":
        written = _fixture(collected["sources"], memory)
        return {**written, "provider": "fixture", "model": None, "finish_reason": "stop"}
    raise PermanentError("the api provider is not built yet")


def verify(draft: dict[str, Any], collected: dict[str, Any]) -> dict[str, Any]:
    """Check shape and citations of a draft; PermanentError. Whether a source supports the summary
    is not judged, and the answer says so."""
    _check_draft(draft, [source["id"] for source in collected["sources"]])
    return {
        "citations": len(draft["citations"]),
        "known": True,
        "semantic_support": "not_judged",
    }


def report(draft: dict[str, Any]) -> dict[str, Any]:
    """What is sent, hashed and reviewed: the summary and citations of a verified draft."""
    try:
        return {"summary": draft["summary"], "citations": draft["citations"]}
    except (KeyError, TypeError):
        raise PermanentError("the draft holds no report") from None


def _check_draft(draft: object, known: list[str]) -> None:
    if not isinstance(draft, dict):
        raise PermanentError("the draft is not a JSON object")
    summary, citations = draft.get("summary"), draft.get("citations")
    if not isinstance(summary, str) or not summary.strip():
        raise PermanentError("the draft's summary must be text that is not blank")
    if (
        not isinstance(citations, list)
        or not citations
        or not all(isinstance(name, str) for name in citations)
    ):
        raise PermanentError("the draft's citations must be a list of at least one source id")
    if not set(citations) <= set(known):
        raise PermanentError("the draft's citations must be ids of the job's sources")
    if len(set(citations)) != len(citations):
        raise PermanentError("the draft's citations must not repeat a source id")


def _fixture(sources: list[dict[str, Any]], memory: str) -> dict[str, Any]:
    """A stand-in for a model: the opening of each source, and the preference it was given."""
    parts = [f"Sources read: {len(sources)}."]
    parts += [f"{source['id']}: {_opening(source['text'])}" for source in sources[:FIXTURE_QUOTED]]
    if len(sources) > FIXTURE_QUOTED:
        parts.append(f"Not quoted: {len(sources) - FIXTURE_QUOTED} more.")
    if memory:
        parts.append(f"Preference in force: {_opening(memory)}")
    summary = " ".join(parts)[:FIXTURE_SUMMARY_CHARS]
    return {"summary": summary, "citations": [source["id"] for source in sources]}


def _opening(text: str) -> str:
    """The first sentence, on one line and without control characters, or as much as fits."""
    head = "".join(char if char.isprintable() else " " for char in text[: 8 * FIXTURE_CHARS])
    line = " ".join(head.split())
    sentence = re.split(r"(?<=[.!?。])\s", line, maxsplit=1)[0]
    return sentence if len(sentence) <= FIXTURE_CHARS else sentence[: FIXTURE_CHARS - 1] + "…"


# --- api: settings ------------------------------------------------------------------------------

KEY_VARIABLE = "LLM_API_KEY"
_ENDPOINT = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>/[!-~]*)?",
    re.IGNORECASE,
)


def check_endpoint(url: str) -> None:
    """ValueError unless a full https URL (http to loopback only) with nothing secret in it.

    The URL itself is never part of the message: it may hold what must not be shown.
    """
    _split_endpoint(url)


def check_ready(spec: dict[str, Any]) -> None:
    """ConfigurationError unless the job's provider could be called now; sends nothing."""
    if spec["provider"] == "api":
        _read_key()


def _split_endpoint(url: object) -> tuple[bool, str, int, str]:
    """(TLS?, host, port, path) of a permitted endpoint."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("the endpoint must be a URL in printable ASCII without blanks")
    if "?" in url or "#" in url:
        raise ValueError("the endpoint must have no query and no fragment")
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("the endpoint must have no user name or password")
    match = _ENDPOINT.fullmatch(url)
    if match is None:
        raise ValueError("the endpoint must be a full URL: https://HOST[:PORT]/PATH")
    tls = match["scheme"].lower() == "https"
    host = match["host"].lower().strip("[]")
    port = int(match["port"] or (443 if tls else 80))
    if not 0 < port < 65536:
        raise ValueError("the endpoint's port must be 1 to 65535")
    if match["host"].startswith("[") and not _is_address(host):
        raise ValueError("the endpoint's address is no IPv6 address")
    if not tls and host != "localhost" and not _is_loopback(host):
        raise ValueError("the endpoint must be https; plain http is for loopback addresses only")
    return tls, host, port, match["path"] or "/"


def _is_address(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    import ipaddress

    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _read_key() -> str:
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        raise ConfigurationError(f"{KEY_VARIABLE} is not set; the api provider needs it")
    if re.fullmatch(r"[!-~]+", key) is None:
        raise ConfigurationError(
            f"{KEY_VARIABLE} holds a character not allowed in a key (a blank, a control "
            "character such as a newline, or one outside ASCII); set it again without"
        )
    return key
