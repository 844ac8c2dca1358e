"""The waist of the house: what a run is, as frozen values, and how they are read and written.

Measuring writes a `Plan`, then one `Sample` per process (a line of `samples.jsonl`);
summarising turns samples into `CaseSummary`; everybody else reads `Run`.
Everything here is the standard library only, so that every reader can import it.
"""

from firstlight.errors import FirstlightError
from firstlight.records.codec import from_json, to_json
from firstlight.records.environment import cache_variables, case_flags
from firstlight.records.errors import (
    MalformedRecordError,
    NewerSchemaError,
    OutputError,
    RecordError,
)
from firstlight.records.files import (
    append_sample,
    can_validate,
    load_object,
    load_plan,
    load_run,
    load_samples,
    now,
    stamp,
    write_json,
    write_new,
)
from firstlight.records.host import NOISY_SHARE, SECRET_NAME, noisy_share
from firstlight.records.plan import Case, Plan, Settings, jobs, rounds, slug
from firstlight.records.samples import (
    PHASES,
    REPEATS,
    STATUSES,
    CacheProof,
    ColdStart,
    Correctness,
    MemoryUse,
    Sample,
    WarmCalls,
)
from firstlight.records.summary import (
    SCHEMA_VERSION,
    BreakEven,
    CaseSummary,
    Estimate,
    Protocol,
    Run,
    WarmEstimate,
)
from firstlight.whole_files import write_text

__all__ = [
    "NOISY_SHARE",
    "PHASES",
    "REPEATS",
    "SCHEMA_VERSION",
    "SECRET_NAME",
    "STATUSES",
    "BreakEven",
    "CacheProof",
    "Case",
    "CaseSummary",
    "ColdStart",
    "Correctness",
    "Estimate",
    "FirstlightError",
    "MalformedRecordError",
    "MemoryUse",
    "NewerSchemaError",
    "OutputError",
    "Plan",
    "Protocol",
    "RecordError",
    "Run",
    "Sample",
    "Settings",
    "WarmCalls",
    "WarmEstimate",
    "append_sample",
    "cache_variables",
    "can_validate",
    "case_flags",
    "from_json",
    "jobs",
    "load_object",
    "load_plan",
    "load_run",
    "load_samples",
    "noisy_share",
    "now",
    "rounds",
    "slug",
    "stamp",
    "to_json",
    "write_json",
    "write_new",
    "write_text",
]
