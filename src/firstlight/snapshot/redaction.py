"""Removes private data from a run before it is published.

Home directories become `~`, passwords and tokens `***`, the names of user and machine `(user)` and
`(host)`, and texts that the publisher names `(redacted)`; no other byte of a file changes. No hash
of the original is kept: anybody could try names until one fits.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from urllib.parse import quote

from firstlight.records import SECRET_NAME
from firstlight.snapshot.layout import RUN, SAMPLES


class Private(StrEnum):
    TEXT = "text of --redact"
    VARIABLE = "value of a variable"
    PASSWORD = "password in an address"
    CREDENTIAL = "password or token"
    HOME = "home directory"
    USER = "user name"
    HOST = "name of the machine"


_MARK = dict.fromkeys(Private, "***") | {
    Private.TEXT: "(redacted)",
    Private.HOME: "~",
    Private.USER: "(user)",
    Private.HOST: "(host)",
}
#: `/home/ann`, `/Users/ann`, `/nfs/home/ann`, `/root`, wherever a path may begin. A name ends at a
#: character that shells and messages do not have in one.
_HOME = re.compile(
    r"(?:(?<=file://)|(?<![\w/.~-]))"
    r"(?:(?:/[\w.-]+){0,8}?/(?:home|users)/[^/\s\"'\\:;,<>()]+|/root(?![\w.-]))",
    re.IGNORECASE,
)
#: A password may contain `/` and `@`, so after a colon it extends to the last `@`. That removes too
#: much of `http://host:80/a@b`, which does no harm.
_PASSWORD = re.compile(r"(?<=://)(?:[^\s\"<>/@:]*:[^\s\"<>]*|[^/\s\"'<>@]+)(?=@)")
#: Tokens recognised by their form: Hugging Face, GitHub, GitLab, Slack, AWS, JWT.
_TOKEN = re.compile(
    r"\b(?:hf_\w{20,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|"
    r"xox[abeprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|sk-[\w-]{20,}|eyJ[\w-]{8,}\.eyJ[\w-]+\.[\w-]+)"
)
_NAMED = r"passw(?:or)?d|pwd|secret|token|(?:api|access|account)[_-]?key|credentials?"
#: In each, the one group is the private part: `?sig=…`, `Pwd=…` and `'password': '…'`, headers.
_CREDENTIALS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<=[?&;])[\w.-]*(?:sig|signature|token|key|secret|code|credential)=([^\s\"'&;#]+)",
        rf"(?:{_NAMED})[\"']?\s*[:=]\s*[\"']?([^\s\"'&;,]+)",
        r"authorization[\"']?\s*[:=]\s*[\"']?((?:\w+ +)?[^\s\"',;]+)",
        r"\bbearer\s+([\w.~+/=-]{6,})",
    )
)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"(\s*:)?')
#: Fields that identify a case or a package and are not free text: a user may be called jax.
_IDENTIFIER = re.compile(
    r"case|workload|size|backend|cache|cache_kind|kind|status|schema|adapter|program|reference|"
    r"policy|class|steady_class|warm_class|warm_reason|lock|packages|dtype|layout|device|against|"
    r"quantity|verdict"
)
_CASE_ID = re.compile(r"[^\s/]+\[[^\]]*\]/[^\s/]+/\w+")
#: Values that are no secret, though the variable is named like one.
_PLAIN_VALUE = re.compile(r"enabled|disabled|default|always|\d{1,7}|.{0,5}", re.DOTALL)
#: Names so common that they identify nobody.
_SHARED_NAME = re.compile(
    r"root|user|admin|ubuntu|debian|runner|nobody|jovyan|vscode|localhost|localdomain|local",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Owner:
    """The private data of the user of this process."""

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # by variable
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    home: str | None = None  # which `_HOME` may not match

    @classmethod
    def of_process(cls) -> Owner:
        """From the environment and the system, without network access."""
        import socket

        host = socket.gethostname()
        users = (_account(), os.environ.get("USER"), os.environ.get("LOGNAME"), Path.home().name)
        hosts = (host, host.split(".", 1)[0], os.environ.get("HOSTNAME"))
        named = {n: v for n, v in os.environ.items() if SECRET_NAME.search(n)}
        secrets = {n: v for n, v in named.items() if not _PLAIN_VALUE.fullmatch(v.lower())}
        home = str(Path.home())
        return cls(secrets, _distinct(users), _distinct(hosts), home if len(home) > 1 else None)


def _account() -> str | None:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without an entry
        return None


def _distinct(names: Sequence[str | None]) -> tuple[str, ...]:
    """The names that may identify somebody, longest first."""
    found = {n for n in names if n and len(n) > 1 and not _SHARED_NAME.fullmatch(n)}
    return tuple(sorted(found, key=lambda name: (-len(name), name)))


@dataclass(frozen=True)
class Replaced:
    """How often one kind of private data was replaced in a file."""

    kind: Private
    variable: str | None  # whose value it was
    times: int


@dataclass(frozen=True)
class Redacted:
    """The bytes that may be published, and what was replaced in them."""

    data: bytes
    found: tuple[Replaced, ...]
    replacements: int  # as many marks as a reader finds: a mark may itself have been replaced


def redact(data: bytes, texts: Sequence[str] = (), owner: Owner | None = None) -> Redacted:
    """Replace private paths, names, passwords and the given texts in a JSON file."""
    counts: Counter[tuple[Private, str | None]] = Counter()
    clean = data
    for text in sorted(texts, key=len, reverse=True):  # a text may contain another
        spelled = json.dumps(text)[1:-1].encode()
        counts[Private.TEXT, None] += clean.count(spelled)
        clean = clean.replace(spelled, _MARK[Private.TEXT].encode())
    rules = _Rules(owner or Owner(), counts)
    clean = _STRING.sub(rules.string, clean)
    found = tuple(Replaced(*key, times) for key, times in counts.items() if times)
    return Redacted(clean, found, max(count_marks(clean) - count_marks(data), int(clean != data)))


def redact_run(
    files: Mapping[str, bytes], texts: Sequence[str] = (), owner: Owner | None = None
) -> dict[str, Redacted]:
    """The redacted files of a run; `run.json` gets the hash of the redacted samples."""
    clean = {name: redact(data, texts, owner) for name, data in files.items()}
    both = files[SAMPLES], clean[SAMPLES].data
    was, public = (hashlib.sha256(data).hexdigest().encode() for data in both)
    return {**clean, RUN: replace(clean[RUN], data=clean[RUN].data.replace(was, public))}


class _Rules:
    """Replaces private parts of strings, and counts them by kind."""

    def __init__(self, owner: Owner, counts: Counter[tuple[Private, str | None]]) -> None:
        self._counts, self._key = counts, ""
        own = [re.compile(rf"{re.escape(owner.home)}(?![\w.-])")] if owner.home else []
        self._rules = [(Private.PASSWORD, _PASSWORD), (Private.CREDENTIAL, _TOKEN)]
        self._rules += [(Private.CREDENTIAL, pattern) for pattern in _CREDENTIALS]
        self._rules += [(Private.HOME, pattern) for pattern in (*own, _HOME)]
        # A value may occur verbatim, as its repr, or quoted in a URL.
        values = {
            spelling: name
            for name, v in owner.secrets.items()
            for spelling in (v, repr(v)[1:-1], quote(v, safe=""))
        }
        # Longest first: if one password begins like another, nothing of it may remain.
        self._values = dict(sorted(values.items(), key=lambda one: -len(one[0])))
        self._names = [
            (kind, re.compile(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", re.IGNORECASE))
            for kind, names in ((Private.USER, owner.users), (Private.HOST, owner.hosts))
            for name in names
        ]

    def string(self, match: re.Match[bytes]) -> bytes:
        """The redacted string; the original bytes if nothing is private."""
        colon = match[1] or b""
        spelled = match[0][: len(match[0]) - len(colon)]
        text: str = json.loads(spelled)
        if colon:
            self._key = text
        identifies = _IDENTIFIER.fullmatch(self._key) or _CASE_ID.fullmatch(text)
        clean = text
        for spelling, variable in self._values.items():
            if spelling in clean:
                self._counts[Private.VARIABLE, variable] += clean.count(spelling)
                clean = clean.replace(spelling, _MARK[Private.VARIABLE])
        for kind, pattern in self._rules if colon or identifies else self._rules + self._names:
            clean = pattern.sub(partial(self._mark, kind), clean)
        return match[0] if clean == text else json.dumps(clean).encode() + colon

    def _mark(self, kind: Private, match: re.Match[str]) -> str:
        private = match[match.lastindex or 0]
        if private == _MARK[kind]:
            return match[0]
        self._counts[kind, None] += 1
        return match[0].replace(private, _MARK[kind])


def count_marks(data: bytes) -> int:
    return sum(data.count(mark.encode()) for mark in {*_MARK.values()})


def private_part(source: bytes, texts: Sequence[str], owner: Owner) -> str | None:
    """The kind of private data in a program, in words, or None."""
    program = source.decode("utf-8", "surrogateescape")
    if any(text in program for text in texts):
        return "text to be redacted"
    for variable, value in owner.secrets.items():
        if value in program:
            return f"the value of the variable {variable}"
    for pattern, what in (
        (_PASSWORD, "a password in an address"),
        (_TOKEN, "what looks like a token"),
        (_HOME, "a home directory"),
    ):
        if pattern.search(program):
            return what
    return "a home directory" if owner.home and owner.home in program else None
