"""The data of a trace, as frozen dataclasses.

Moments are seconds from the start of the program's first process, in every process. Unknown values
are None, and `Process.problems` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from firstlight.trace.record.log_format import package_of

#: Operations that take functions: their programs are the user's, even outside jit.
CONTROL_FLOW = frozenset({"scan", "while", "cond"})
#: Stages of a compile, in their order.
STAGES = ("trace", "lower", "compile")


@dataclass(frozen=True)
class SourceLine:
    file: str
    line: int
    function: str | None = None

    @property
    def package(self) -> str | None:
        return package_of(self.file)

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Argument:
    """An array, or a number, among the arguments of a call."""

    path: str
    dtype: str
    shape: tuple[Any, ...]
    weak: bool
    sharding: str | None


class ByIdentity(Enum):
    """Kinds of static values that are equal only to themselves."""

    FUNCTION = "function"
    PARTIAL = "partial"
    METHOD = "method"
    OBJECT = "object"
    OF_PACKAGE = "object of a package"


@dataclass(frozen=True)
class Identity:
    """Which one a value is among those made of the same code."""

    kind: ByIdentity
    number: int | None  # equal for the same object; None: it cannot be recognised again
    made_of: int | None  # equal for the same code
    belongs_to: tuple[int, ...] = ()  # the numbers of its owners


class Reason(StrEnum):
    """Why JAX compiles again, the strongest first: each alone is enough."""

    NEW_FUNCTION = "new function object"
    STATIC = "static value"
    TREE = "tree"
    SHAPE = "shape"
    DTYPE = "dtype"
    WEAK = "weak type"
    SHARDING = "sharding"
    CONTEXT = "context"
    UNKNOWN = "unknown"


#: `Difference.field` if another number of arguments was given by position.
BY_POSITION = "arguments by position"


@dataclass(frozen=True)
class Difference:
    """One difference between a compile and the nearest earlier one."""

    kind: Reason
    field: str | None  # path of an argument, or name of a setting; None: the log does not say which
    before: str  # "": missing on that side
    after: str
    distance: int = 1  # its weight in the search for the nearest signature
    identity: ByIdentity | None = None  # set if only the object differs

    @property
    def is_of_argument(self) -> bool:
        """Whether the value of a known argument differs."""
        given = (Reason.STATIC, Reason.SHAPE, Reason.DTYPE, Reason.WEAK, Reason.SHARDING)
        return self.kind in given and self.field is not None


@dataclass(frozen=True)
class Signature:
    """Everything that a compiled program depends on."""

    arguments: tuple[Argument, ...]
    leaves: int  # all; `arguments` may list fewer
    tree: str
    static: Mapping[str, str]
    context: Mapping[str, Any]
    function_object: int  # equal for the same object
    identity: Mapping[str, Identity] = field(default_factory=dict)  # of some of `static`


@dataclass(frozen=True)
class Constant:
    """An array that a program captured."""

    name: str | None  # in the function: TABLE, self.weights; None: unknown
    origin: str | None  # closure, global
    dtype: str
    shape: tuple[Any, ...]
    bytes: int
    place: SourceLine | None  # the line that uses it first


@dataclass(frozen=True)
class Resharded:
    """An argument whose sharding is not the one that the program uses."""

    name: str
    dtype: str
    shape: tuple[Any, ...]
    bytes: int
    given: str  # partition specs
    used: str
    place: SourceLine | None  # the line that requests `used`


class CacheStatus(StrEnum):
    """Whether a program was found in the persistent cache."""

    HIT = "hit"
    MISS = "miss"
    OFF = "off"
    UNKNOWN = "unknown"


class MissReason(StrEnum):
    """Why a program was not in the cache. Only after the first two can the next start find it."""

    NO_ENTRY = "no entry"
    OTHER_KEY = "other key"  # there are entries of the same name, under other keys
    BELOW_THRESHOLD = "below threshold"
    CALLBACKS = "callbacks"
    RANK = "rank"
    NOT_WRITTEN = "not written"


@dataclass(frozen=True)
class CacheUse:
    status: CacheStatus
    reason: MissReason | None  # of a miss
    written: bool


@dataclass(frozen=True)
class Compile:
    """One call that made JAX trace, lower or compile."""

    name: str
    process: int  # its number in the trace
    thread: int
    begin_seconds: float
    end_seconds: float
    stage_seconds: Mapping[str, float | None]  # without the time of what ran inside
    signature: Signature | None
    site: SourceLine | None  # the call: the nearest line outside JAX
    user_site: SourceLine | None  # the nearest line outside any installed package
    compiled: bool  # False: traced or lowered only
    cache: CacheUse | None = None
    equations: int | None = None
    equation_lines: tuple[tuple[SourceLine, int], ...] = ()
    constant_bytes: int | None = None
    constants: tuple[Constant, ...] = ()  # large ones only, the largest first
    resharded: tuple[Resharded, ...] = ()
    executable_bytes: int | None = None
    recompile_reason: Reason | None = None  # None: the first
    recompile_differences: tuple[Difference, ...] = ()  # the reason first
    #: For each of `equation_lines`: how often its most frequent equation occurs.
    equation_repeats: tuple[int, ...] = ()
    cache_settings: Mapping[str, Any] = field(default_factory=dict)
    results_before: int | None = None  # results that the program had waited for by then
    entry_site: SourceLine | None = None  # the user's call of a package that called `user_site`
    before_first_result: bool = True  # also true if there was no first result
    packages: tuple[str, ...] = ()  # whose code made equations of it
    stack: tuple[SourceLine, ...] = ()  # from the call outwards, without JAX's frames
    stages: tuple[Span, ...] = ()  # including the time of what ran inside

    @property
    def seconds(self) -> float:
        return sum(s or 0.0 for s in self.stage_seconds.values())

    @property
    def found_in_cache(self) -> bool:
        return self.cache is not None and self.cache.status == CacheStatus.HIT

    @property
    def has_single_reason(self) -> bool:
        return len({difference.kind for difference in self.recompile_differences}) <= 1

    @property
    def differing(self) -> tuple[str, ...]:
        """Paths of all arguments that differ from the nearest earlier compile."""
        return tuple(d.field for d in self.recompile_differences if d.is_of_argument and d.field)


@dataclass(frozen=True)
class Function:
    """All compiles of one function, that is of the same code."""

    name: str
    place: SourceLine | None
    module: str | None
    library: bool  # one of JAX's own: an operation outside any jit
    compiles: tuple[Compile, ...]
    kind: str | None = None  # function, partial, method, …

    @property
    def seconds(self) -> float:
        return sum(c.seconds for c in self.compiles)

    @property
    def recompiles(self) -> int:
        return sum(c.recompile_reason is not None for c in self.compiles)

    @property
    def stage_seconds(self) -> dict[str, float]:
        return {s: sum(c.stage_seconds.get(s) or 0.0 for c in self.compiles) for s in STAGES}

    @property
    def cache_counts(self) -> dict[str, int]:
        """Compiles by cache status: {"hit": 1, "miss": 3}."""
        return dict(Counter(c.cache.status for c in self.compiles if c.cache is not None))


@dataclass(frozen=True)
class ImportedPackage:
    """A top-level package with all of its modules."""

    name: str
    seconds: float  # of its own modules only
    with_others_seconds: float  # with the modules of others that it was the first to import
    modules: int
    begin_seconds: float
    imported_by: str | None = None  # a package; None: the program itself
    site: SourceLine | None = None  # the import statement, if it was expensive
    beyond_jax_seconds: float = 0.0  # with others, without JAX and what JAX imports


@dataclass(frozen=True)
class Wait:
    site: SourceLine | None
    user_site: SourceLine | None
    count: int
    seconds: float
    first_seconds: float
    last_seconds: float


class Witness(Enum):
    MARKED = "marked"  # by the program itself, or by --first-result
    READ = "read"  # by the program's own code
    PUT_OUT = "put out"


@dataclass(frozen=True)
class Read:
    seconds: float
    site: SourceLine | None
    package: str | None = None  # that read it for its own purposes


@dataclass(frozen=True)
class Span:
    kind: str  # interpreter, import, backend, trace, lower, compile, wait, rest
    begin_seconds: float
    end_seconds: float
    label: str


@dataclass(frozen=True)
class Thread:
    """A thread other than the main one, while it did something that is recorded."""

    number: int  # the system's, and that of `Compile.thread`
    name: str
    timeline: tuple[Span, ...]  # without the time in which nothing was recorded


@dataclass(frozen=True)
class DeviceUse:
    """The first use of an accelerator."""

    platform: str
    begin_seconds: float
    seconds: float
    reserves_memory: bool  # most of the device's, as JAX does by default


@dataclass(frozen=True)
class Process:
    number: int
    pid: int
    rank: str | None
    command: tuple[str, ...]
    python: str
    jax_version: str | None
    torch_version: str | None
    wall_seconds: float | None  # None: it did not reach its end
    first_result_seconds: float | None  # of the program itself: see `first_result`
    first_result_site: SourceLine | None
    phases_seconds: Mapping[str, float]  # by kind of span; they add up to the wall time
    timeline: tuple[Span, ...]  # of the main thread
    imports: tuple[ImportedPackage, ...]
    waits: tuple[Wait, ...]
    short_waits: int
    short_waits_seconds: float
    own_seconds: float  # spent in the recorder
    unfinished: str | None  # the program being compiled when the log ended
    problems: tuple[str, ...]
    whole: bool = True  # recorded from its start
    incomplete: str | None = None  # why compiles may be missing
    starts_at_seconds: float = 0.0  # after the start of the first process
    first_result_witness: Witness | None = None
    first_read: Read | None = None  # by anything, packages included
    first_output: Read | None = None  # the first output that may show a result
    first_result_pattern: str | None = None  # of --first-result
    started_at: float | None = None  # wall clock, seconds since 1970
    threads: tuple[Thread, ...] = ()  # other than the main one, by their begin
    device_use: DeviceUse | None = None


@dataclass(frozen=True)
class Finding:
    kind: str
    seconds: float  # an upper bound of the cost; findings may overlap
    title: str  # a sentence
    function: str | None
    place: SourceLine | None
    remedy: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    before_first_result_seconds: float | None = None  # of the seconds; None: unknown
    apart: bool = False  # about the setup of JAX, not this program: shown after all others

    @property
    def location(self) -> str | None:
        return None if self.place is None else self.place.location


@dataclass(frozen=True)
class Trace:
    processes: tuple[Process, ...]
    functions: tuple[Function, ...]  # most expensive first
    findings: tuple[Finding, ...]  # most expensive first; `apart` ones last
    time_to_first_result_seconds: float | None
    compile_count: int
    recompiles: int
    torch_regions: tuple[Mapping[str, Any], ...] = ()

    @property
    def started_at(self) -> float | None:
        """Start of the first process by the wall clock, seconds since 1970."""
        return min((p.started_at for p in self.processes if p.started_at is not None), default=None)
