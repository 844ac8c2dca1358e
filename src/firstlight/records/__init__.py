"""The waist of the house: what a run is, as frozen values, and how they are read and written.

Measuring writes a `Plan`, then one `Sample` per process (a line of `samples.jsonl`);
summarising turns samples into `CaseSummary`; everybody else reads `Run`.
Everything here is the standard library only, so that every reader can import it.
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
