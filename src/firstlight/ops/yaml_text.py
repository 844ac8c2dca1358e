"""YAML as people read it, from dicts, lists and plain values; every text is quoted as in JSON."""

from __future__ import annotations

import json
import re

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def yaml_text(value: object, comment: str = "") -> str:
    """A document."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "\n".join(_lines(value)) + "\n"


def _lines(value: object) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, inner in value.items() for line in _entry(f"{_scalar(key)}:", inner)]
    if isinstance(value, (list, tuple)) and value:
        return [line for inner in value for line in _item(_lines(inner))]
    return [_scalar(value)]


def _entry(key: str, value: object) -> list[str]:
    lines = _lines(value)
    if isinstance(value, (dict, list, tuple)) and value:
        return [key, *(f"  {line}" for line in lines)]
    return [f"{key} {lines[0]}"]


def _item(lines: list[str]) -> list[str]:
    return [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
