"""The shipped JSON Schemas, by the name of the file that they describe."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

SCHEMAS = {
    "index.json": "snapshot-index-1.schema.json",
    "signature.json": "snapshot-signature-1.schema.json",
    "manifest.json": "snapshot-manifest-1.schema.json",
    "validation_report.json": "snapshot-validation-1.schema.json",
    "distributions.json": "snapshot-distributions-1.schema.json",
    "plan.json": "snapshot-plan-1.schema.json",
    "run.json": "run-1.schema.json",
}


def first_error(plain: Any, schema: str) -> str | None:
    """What does not fit, with its place, or None. Needs jsonschema."""
    import jsonschema

    error = jsonschema.exceptions.best_match(_validator(schema).iter_errors(plain))
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


@functools.cache
def _validator(schema: str) -> Any:
    import jsonschema

    text = files("firstlight").joinpath("schemas", schema).read_text("utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))
