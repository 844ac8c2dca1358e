"""The server's log: one line per event with a time stamp, as text or as JSON.

A model that fails on every request would fill the disk: at most one traceback per second and model
is written, with the number of failures that were held back.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

LOG = logging.getLogger("firstlight.serve")
#: JAX logs what fails in a callback, with a traceback per call, before the server does.
_TWICE = "jax._src.callback"
_EVERY_SECONDS = 1.0
_MAX_TRACEBACK = 16_384
#: What ends a line, for a reader of text.
_LINE_ENDS = str.maketrans({ord(end): " | " for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"})


def set_up(as_json: bool = False) -> None:
    """Write the log of this process, which only serves, to stdout and, errors, to stderr."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, Lines)]:
        root.removeHandler(handler)
    root.addHandler(Lines(as_json))
    LOG.setLevel(logging.INFO)
    logging.getLogger(_TWICE).setLevel(logging.CRITICAL)


def failed(what: str, error: Exception, model: str = "") -> None:
    """Log an error of a model, or of a request, whose client does not see it."""
    extra = {"model": model}
    LOG.error("%s failed: %s", what, _in_short(error), exc_info=error, extra=extra)


def _in_short(error: Exception) -> str:
    """The type of an error, and the ends of its message: XLA's contain whole tracebacks."""
    lines = str(error).strip().splitlines() or [""]
    ends = lines[0] if len(lines) == 1 else f"{lines[0][:200]} … {lines[-1][:200]}"
    return f"{type(error).__name__}: {ends[:500]}"


@dataclass
class _Held:
    """Failures of one model since the last that was written."""

    until: float
    count: int = 0
    last: logging.LogRecord | None = None


class Lines(logging.Handler):
    """Writes records as lines, and holds tracebacks back that come too often."""

    def __init__(self, as_json: bool = False, every_seconds: float = _EVERY_SECONDS) -> None:
        super().__init__()
        self._as_json, self._every = as_json, every_seconds
        self._held: dict[str, _Held] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Called with this handler's lock held."""
        if record.exc_info is None:
            self._write(record)
            return
        now = time.monotonic()
        key = getattr(record, "model", record.name)
        held = self._held.get(key)
        if held is not None and now < held.until:
            held.count, held.last = held.count + 1, record
            return
        self._held[key] = _Held(now + self._every)
        self._write(record)
        timer = threading.Timer(self._every, self._release, (key,))
        timer.daemon = True
        timer.start()

    def _release(self, key: str) -> None:
        """Write the last of the failures that were held back, and how many came before it."""
        self.acquire()
        try:
            held = self._held.pop(key, None)
            if held is not None and held.last is not None:
                held.last.held_back = held.count - 1
                self.emit(held.last)
        finally:
            self.release()

    def flush(self) -> None:
        """Write what is held back, at the end of the process."""
        for key in list(self._held):
            self._release(key)

    def _write(self, record: logging.LogRecord) -> None:
        stream = sys.stdout if record.levelno < logging.WARNING else sys.stderr
        print((_json if self._as_json else _text)(record), file=stream, flush=True)


def _text(record: logging.LogRecord) -> str:
    fields = _fields(record)
    line = f"{fields['time']} firstlight: {fields['message']}"
    if "held_back" in fields:
        line += f" ({fields['held_back']} more held back)"
    if "traceback" in fields:
        line += f"\n{fields['traceback']}"
    return line.translate(_LINE_ENDS)


def _json(record: logging.LogRecord) -> str:
    return json.dumps(_fields(record))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields = {
        "time": when.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "message": record.getMessage(),
    }
    for name in ("model", "held_back"):
        if getattr(record, name, None):
            fields[name] = getattr(record, name)
    if record.exc_info:
        text = logging.Formatter().formatException(record.exc_info)
        fields["traceback"] = text[-_MAX_TRACEBACK:]
    return fields
