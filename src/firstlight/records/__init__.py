"""A run as frozen dataclasses, and how they are read from and written to disk.

Measuring writes a `Plan`, then one `Sample` per process (a line of `samples.jsonl`). Summarising
turns samples into `CaseSummary`. All other rooms read `Run`. Standard library only, so that any
room can import it.
"""

from firstlight.records.codec import (
    MalformedRecordError,
    NewerSchemaError,
    OutputError,
    RecordError,
    from_json,
    to_json,
)
from firstlight.records.files import (
    append_sample,
    can_validate,
    load_object,
    load_plan,
    load_run,
    load_samples,
    now,
    require_known_version,
    stamp,
    write_json,
    write_new,
    writing,
)
from firstlight.records.plan import (
    CONCURRENT,
    MEASURED_ON,
    PRIMED,
    SERVER_ADAPTER,
    Case,
    Plan,
    Settings,
    cache_variables,
    case_flags,
    jobs,
    rounds,
    slug,
)
from firstlight.records.samples import (
    PHASES,
    REPEATS,
    CacheProof,
    ColdStart,
    Correctness,
    JsonObject,
    MemoryUse,
    Sample,
    WarmCalls,
)
from firstlight.records.summary import (
    NOISY_SHARE,
    SECRET_NAME,
    BreakEven,
    CaseSummary,
    Estimate,
    Protocol,
    Run,
    WarmEstimate,
    noisy_share,
)
from firstlight.whole_files import write_text
