"""Reading and writing records. Files are written atomically; errors name the file and the fault."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firstlight.records.codec import (
    MalformedRecordError,
    NewerSchemaError,
    OutputError,
    RecordError,
    from_json,
    to_json,
)
from firstlight.records.plan import PLAN_SCHEMA, Plan
from firstlight.records.samples import JsonObject, Sample
from firstlight.records.summary import SCHEMA_VERSION, Run
from firstlight.whole_files import write_text


def now() -> str:
    """The current time in UTC, ISO 8601 with milliseconds, as in every record."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def stamp(moment: str) -> str:
    """A time from `now` as part of a folder name: 20260301T091500."""
    return moment[:19].replace(":", "").replace("-", "")


@contextlib.contextmanager
def writing(path: Path, then: str = "") -> Iterator[None]:
    """Turn an OSError into an `OutputError` about `path`; `then` is advice to append."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}.{then}") from None


def write_json(path: Path, value: object, schema: str | None = None) -> None:
    """Write atomically, after validating against the packaged schema file `schema`."""
    plain = to_json(value)
    if schema is not None:
        _validate(plain, schema)
    write_text(path, json.dumps(plain, indent=1, allow_nan=False) + "\n")


def can_validate() -> bool:
    """Whether jsonschema is installed; without it a run is not validated and has a warning."""
    from importlib.util import find_spec

    return find_spec("jsonschema") is not None


def _validate(plain: object, schema: str) -> None:
    if not can_validate():
        return
    import jsonschema

    definition = json.loads((Path(__file__).parents[1] / "schemas" / schema).read_text("utf-8"))
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(definition).iter_errors(plain)
    )
    if error is not None:
        raise MalformedRecordError(
            f"not valid against {schema}: {error.json_path}: {error.message[:200]}"
        )


def load_run(directory: Path) -> Run:
    """Load the run in `directory`, which may also be the path of a `run.json`."""
    path = directory / "run.json" if directory.is_dir() else directory
    data = load_object(path)
    if data.get("schema") != "firstlight.run":
        raise MalformedRecordError(f"{path}: not a Firstlight run (schema {data.get('schema')!r})")
    require_known_version(path, data, SCHEMA_VERSION)
    return from_json(Run, data)


def require_known_version(path: Path, data: JsonObject, newest: int) -> None:
    """Refuse a file whose format version is newer than `newest`."""
    version = data.get("schema_version")
    if not isinstance(version, int):
        raise MalformedRecordError(f"{path}: schema_version is {version!r}, not a number")
    if version > newest:
        raise NewerSchemaError(
            f"{path}: written with schema {version}, this Firstlight reads up to {newest}. Update "
            "Firstlight."
        )


def load_plan(path: Path) -> Plan:
    data = load_object(path)
    if data.get("schema") != PLAN_SCHEMA:
        raise MalformedRecordError(f"{path}: not a plan of a run (schema {data.get('schema')!r})")
    return from_json(Plan, data, str(path))


def load_object(path: Path) -> dict[str, Any]:
    """Load a JSON file whose top level is an object."""
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
    """Append one line and sync it to disk, so that a crash loses at most this sample."""
    line = json.dumps(to_json(sample), allow_nan=False, separators=(",", ":")) + "\n"
    with open(path, "ab") as file:
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def load_samples(path: Path) -> Iterator[Sample]:
    """Yield the samples in the order in which they were taken.

    An unfinished last line (after a kill or on a full disk) is ignored. Any other damage is an
    error, because dropping samples silently would change the result.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield from_json(Sample, json.loads(line))
            except (ValueError, RecordError) as error:
                raise MalformedRecordError(f"{path}: line {number}: {error}") from None


def write_new(path: Path, text: str) -> None:
    """Write a text file; refuse if it exists."""
    if path.exists():
        raise OutputError(f"{path} exists. Nothing is overwritten: give another name.")
    with writing(path):
        write_text(path, text)
