"""What must be equal before two points may lie on one line: the machine, the protocol, the data.

What `compare.conditions` names, as plain values: their hash names a line of a trend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from firstlight.compare.conditions import (
    DATA_FIELDS,
    SETTINGS_FIELDS,
    machine_class,
    steering_variables,
)
from firstlight.records import CaseSummary, Run, to_json
from firstlight.snapshot.strict_json import compact


def of_run(run: Run) -> dict[str, Any]:
    """What concerns all cases of a run."""
    return {
        "machine": machine_class(run.host),
        "settings": {name: to_json(run.settings.get(name)) for name in SETTINGS_FIELDS},
        "environment": steering_variables(run),
    }


def of_case(case: CaseSummary, data_sha256: str | None) -> dict[str, Any] | None:
    """What concerns one case; None where it has no protocol."""
    if case.protocol is None:
        return None
    plain = to_json(case.protocol)
    return {
        "data": {**{name: plain[name] for name in DATA_FIELDS}, "sha256": data_sha256},
        "protocol": {name: value for name, value in plain.items() if name not in DATA_FIELDS},
    }


def key(run: Mapping[str, Any], case: Mapping[str, Any]) -> str:
    """A short name for these conditions: equal for points that may be joined, and only for them."""
    parts = [run["machine"], run["settings"], run["environment"], case["data"], case["protocol"]]
    return hashlib.sha256(compact(parts)).hexdigest()[:16]
