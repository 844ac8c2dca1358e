"""The waist of the house: what a run is, as frozen values, and their JSON in and out.

Measuring writes `Sample` (one process, one line of `samples.jsonl`); summarising turns samples into
`CaseSummary`; report, `show`, exporters, gate and snapshot read `Run`. Readers ignore fields that
they do not know; what was not measured is null, never 0 or NaN.

    RecordError
    ├── NewerSchemaError    the file was written by a newer Firstlight
    └── MalformedRecordError the file is not what its name says
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

SCHEMA_VERSION = 1

#: The phases of a cold start, in the order in which they happen. `unattributed` completes them.
PHASES = (
    "interpreter",
    "import",
    "backend_init",
    "setup",
    "trace",
    "lower",
    "compile",
    "first_execute",
)

#: What can become of a process or a case. Only `ok` has a timing that may be quoted.
STATUSES = (
    "ok",
    "failed",  # the result does not agree with the reference, or the program raised
    "unproven",  # the cache was not in the declared state
    "crashed",  # ended by a signal, or without a report
    "timeout",
    "out-of-memory",
    "skipped",  # its framework is not installed, or the backend does not offer it
    "incomplete",  # interrupted before every process had run
)


class FirstlightError(Exception):
    """Base of every error that Firstlight raises on purpose; its text is meant for the user."""


class RecordError(FirstlightError):
    """A record cannot be read or written."""


class NewerSchemaError(RecordError):
    """The record was written by a newer Firstlight."""


class MalformedRecordError(RecordError):
    """The file is damaged or something else than its name says."""


@dataclass(frozen=True)
class Protocol:
    """Everything that must be equal before two numbers may be compared."""

    cache: str
    parameters: Mapping[str, Any]
    data: tuple[Mapping[str, Any], ...]  # shape, dtype, layout, device of every input
    data_bytes: int
    cold_process: str
    cold_window: tuple[str, ...]
    warm_process: str
    warm_window: str
    warm_up: str
    sync: str
    threads: Mapping[str, Any]
    precision: Mapping[str, Any]
    seed: int | None  # null: the program's own affair
    environment: Mapping[str, str]  # flags set by the harness for this case
    bytecode: str = "warm, like the page cache: a checking process ran before"


@dataclass(frozen=True)
class Correctness:
    """How far the result is from an independent float64 reference."""

    passed: bool
    max_relative_error: float | None  # max|x - ref| / max|ref|, the worst of the outputs
    tolerance: float | None
    reference: str  # where the reference comes from, or why there is none


@dataclass(frozen=True)
class CacheProof:
    """What the persistent cache held and did in one process, and whether the label is true."""

    policy: str
    proven: bool
    reason: str | None  # why it is not proven, or why there was nothing to prove
    entries_before: int | None
    entries_after: int | None
    requests: int | None
    hits: int | None


@dataclass(frozen=True)
class ColdStart:
    """One process from spawn to its first synchronised result, by the parent's clock."""

    total_seconds: float
    phases_seconds: Mapping[str, float | None]
    unattributed_seconds: float


@dataclass(frozen=True)
class WarmCalls:
    """What the same process did after its first result, every call in order."""

    call_seconds: tuple[float, ...]  # synchronised after every call
    batch_calls: int  # calls between two synchronisations of the throughput part
    batch_seconds: tuple[float, ...]
    #: In a gate: calls of each window, in turns with the process of the other side.
    turn_calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryUse:
    """Bytes. Host peaks are VmHWM at the end of each phase; null where the system does not tell."""

    peak_host_bytes: Mapping[str, int | None]
    peak_device_bytes: int | None
    compiler_bytes: Mapping[str, int] | None  # the compiler's own estimate, from the check process


@dataclass(frozen=True)
class Sample:
    """One process: the unit of everything that is published."""

    case: str
    kind: str  # check, prime or timed
    index: int  # number of the process within its case and kind
    order: int  # place in the run
    started_at: str
    status: str
    reason: str | None = None
    stderr_tail: str | None = None
    load_before: float | None = None
    cold: ColdStart | None = None
    warm: WarmCalls | None = None
    memory: MemoryUse | None = None
    cache: CacheProof | None = None
    correctness: Correctness | None = None
    counts: Mapping[str, int | None] = field(default_factory=dict)  # traces, lowerings, compiles
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the worker saw of itself


@dataclass(frozen=True)
class Estimate:
    """A median with an interval that contains the true one with probability `confidence`."""

    median: float
    low: float
    high: float
    n: int
    confidence: float


@dataclass(frozen=True)
class WarmEstimate(Estimate):
    """A steady-state median over processes, with the class of its warm-up."""

    steady_class: str = field(default="flat", metadata={"json": "class"})


@dataclass(frozen=True)
class BreakEven:
    """From how many calls on a compiled case has cost less in total than an uncompiled one.

    `calls`, `low` and `high` are counts or the word "never"; `against` is the backend that takes
    longest to be overtaken, and `by_backend` has them all.
    """

    calls: int | str
    low: int | str
    high: int | str
    confidence: float
    against: str
    by_backend: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseSummary:
    """What `firstlight show --json` prints for a case."""

    case: str
    workload: str
    size: str
    backend: str
    cache: str
    status: str
    reason: str | None
    protocol: Protocol | None
    correctness: Correctness | None = None
    cache_proof: CacheProof | None = None
    cold_seconds: Estimate | None = None
    phases_seconds: Mapping[str, float | None] = field(default_factory=dict)
    unattributed_seconds: float | None = None
    warm_call_seconds: WarmEstimate | None = None
    warm_class: str | None = None  # also where there is no single number
    warm_reason: str | None = None  # why there is none
    throughput_calls_per_second: Estimate | None = None
    batch_calls: int | None = None
    peak_host_bytes: int | None = None
    peak_host_bytes_by_phase: Mapping[str, int | None] = field(default_factory=dict)
    peak_device_bytes: int | None = None
    compiler_bytes: Mapping[str, int] | None = None
    counts: Mapping[str, int | None] = field(default_factory=dict)
    break_even_calls: BreakEven | None = None
    processes_ok: int = 0
    processes_planned: int = 0
    stderr_tail: str | None = None
    note: str | None = None  # what a reader of this number must know, said by the workload


@dataclass(frozen=True)
class Run:
    """A run directory's `run.json`."""

    id: str
    created_at: str
    finished_at: str | None
    complete: bool
    harness: Mapping[str, Any]
    settings: Mapping[str, Any]
    host: Mapping[str, Any]
    warnings: tuple[str, ...]
    cases: tuple[CaseSummary, ...]
    samples_file: str = "samples.jsonl"
    samples_sha256: str | None = None
    schema: str = "firstlight.run"
    schema_version: int = SCHEMA_VERSION


T = TypeVar("T")
_SCALARS = (str, int, float, bool)


def now() -> str:
    """The time as every record has it: UTC, ISO 8601, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def to_json(value: Any) -> Any:
    """Plain dicts and lists for `json`, with each field under its published name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.metadata.get("json", f.name): to_json(getattr(value, f.name))
            for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def from_json(cls: type[T], data: Any) -> T:
    """An instance of the dataclass `cls`; unknown fields are ignored, missing ones are named."""
    if not isinstance(data, dict):
        raise MalformedRecordError(f"expected an object for {cls.__name__}, found {data!r:.60}")
    hints = _hints(typing.cast("Any", cls))
    values: dict[str, Any] = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = f.metadata.get("json", f.name)
        if name in data:
            values[f.name] = _decode(hints[f.name], data[name])
    try:
        return cls(**values)
    except TypeError as error:
        raise MalformedRecordError(f"{cls.__name__}: {error}") from None


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Types of the fields; finding them out takes longer than reading a record."""
    return typing.get_type_hints(cls)


def _decode(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (types.UnionType, typing.Union):
        return _decode(next(a for a in arguments if a is not type(None)), value)
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast("type[Any]", hint), value)
    if origin is tuple:
        if arguments[0] in _SCALARS:  # thousands of warm calls: no function call for each
            return tuple(value)
        return tuple(_decode(arguments[0], v) for v in value)
    return value


def write_json(path: Path, value: Any, schema: str | None = None) -> None:
    """Write atomically: a reader sees the old file or the whole new one, also after a crash.

    With `schema`, the name of a file in `firstlight/schemas`, what is invalid is not written.
    """
    plain = to_json(value)
    if schema is not None:
        _validate(plain, schema)
    write_text(path, json.dumps(plain, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write to a temporary name beside `path`, then rename.

    What is no file (a pipe, a device) is written to as it is; of a link, what it points to.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            error.filename = str(path)  # a write does not say where
            raise
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def can_validate() -> bool:
    """Whether jsonschema is there; on a bare machine it may not be, and the run then says so."""
    from importlib.util import find_spec

    return find_spec("jsonschema") is not None


def _validate(plain: Any, schema: str) -> None:
    if not can_validate():
        return
    import jsonschema

    definition = json.loads((Path(__file__).parent / "schemas" / schema).read_text("utf-8"))
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(definition).iter_errors(plain)
    )
    if error is not None:
        raise MalformedRecordError(
            f"not valid against {schema}: {error.json_path}: {error.message[:200]}"
        )


def load_run(directory: Path) -> Run:
    """The run in `directory` (or the `run.json` itself)."""
    path = directory / "run.json" if directory.is_dir() else directory
    data = load_object(path)
    if data.get("schema") != "firstlight.run":
        raise MalformedRecordError(f"{path}: not a Firstlight run (schema {data.get('schema')!r})")
    version = data.get("schema_version")
    if not isinstance(version, int):
        raise MalformedRecordError(f"{path}: schema_version is {version!r}, not a number")
    if version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path}: written with schema {version}, this Firstlight reads up to "
            f"{SCHEMA_VERSION}. Update Firstlight."
        )
    return from_json(Run, data)


def load_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RecordError(
            f"{path}: no such file. Give a run directory, as printed by `firstlight run`."
        ) from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise MalformedRecordError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise MalformedRecordError(f"{path}: expected an object, found {type(data).__name__}")
    return data


def append_sample(path: Path, sample: Sample) -> None:
    """Add one line and see it on disk before going on, so that a crash loses at most this one."""
    line = json.dumps(to_json(sample), allow_nan=False, separators=(",", ":")) + "\n"
    with open(path, "ab") as file:
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def load_samples(path: Path) -> Iterator[Sample]:
    """The samples in the order in which they were taken.

    A last line without its newline is what a kill or a full disk left: it is not read. Any other
    damage is an error, because silently fewer samples would be a different result.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield from_json(Sample, json.loads(line))
            except (ValueError, RecordError) as error:
                raise MalformedRecordError(f"{path}: line {number}: {error}") from None
