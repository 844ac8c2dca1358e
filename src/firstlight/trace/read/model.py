"""What a trace says, as frozen values.

Moments are seconds from the start of the program, which is that of its first process, so that one
moment has one number everywhere. What is not known is None, and `Process.problems` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from firstlight.trace.record.log_format import package_of

#: Operations that take functions: a program of one is that of the functions, also outside of jit.
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
    """What a static value is that is equal to nothing but itself."""

    FUNCTION = "function"
    PARTIAL = "partial"
    METHOD = "method"
    OBJECT = "object"
    OF_PACKAGE = "object of a package"


@dataclass(frozen=True)
class Identity:
    """Which one it is of all that are made of the same code."""

    kind: ByIdentity
    number: int | None  # the same number: the same object; None: it cannot be known again
    made_of: int | None  # the same number: the same code
    belongs_to: tuple[int, ...] = ()  # objects that it has to do with


class Reason(StrEnum):
    """Why JAX compiles again, the strongest first: each alone is enough, whatever comes after."""

    NEW_FUNCTION = "new function object"
    STATIC = "static value"
    TREE = "tree"
    SHAPE = "shape"
    DTYPE = "dtype"
    WEAK = "weak type"
    SHARDING = "sharding"
    CONTEXT = "context"
    UNKNOWN = "unknown"


#: The field of a difference in how many arguments were given by position.
BY_POSITION = "arguments by position"


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was when the nearest program before was compiled."""

    kind: Reason
    field: str | None  # the argument or what of it, a setting; None: the log does not say which
    before: str  # "": that side does not have it
    after: str
    distance: int = 1  # how far it takes two signatures apart
    identity: ByIdentity | None = None  # the same values, in another object

    @property
    def is_of_argument(self) -> bool:
        """Whether a value that was given differs, and which is known."""
        given = (Reason.STATIC, Reason.SHAPE, Reason.DTYPE, Reason.WEAK, Reason.SHARDING)
        return self.kind in given and self.field is not None


@dataclass(frozen=True)
class Signature:
    """What a compiled program depends on."""

    arguments: tuple[Argument, ...]
    leaves: int  # of which so many are listed in `arguments`
    tree: str
    static: Mapping[str, str]
    context: Mapping[str, Any]
    function_object: int  # the same number: the same object
    identity: Mapping[str, Identity] = field(default_factory=dict)  # of some of `static`


@dataclass(frozen=True)
class Constant:
    """An array from outside that is part of a program."""

    name: str | None  # as the function knows it: TABLE, self.weights; None: it has no name there
    origin: str | None  # closure, global
    dtype: str
    shape: tuple[Any, ...]
    bytes: int
    place: SourceLine | None  # the line that uses it first


@dataclass(frozen=True)
class Resharded:
    """An argument that a program divides among devices in another way than it is given."""

    name: str
    dtype: str
    shape: tuple[Any, ...]
    bytes: int
    given: str  # partition specs
    used: str
    place: SourceLine | None  # the line that wants it so


class CacheStatus(StrEnum):
    """Whether a program was found in the persistent cache."""

    HIT = "hit"
    MISS = "miss"
    OFF = "off"
    UNKNOWN = "unknown"


class MissReason(StrEnum):
    """Why it was not. With the first two the cache can help next time, with the others never."""

    NO_ENTRY = "no entry"
    OTHER_KEY = "other key"  # entries of the same program are there, under another key
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
    stage_seconds: Mapping[str, float | None]  # exclusive: what ran inside is not counted twice
    signature: Signature | None
    site: SourceLine | None  # the call, nearest outside of JAX
    user_site: SourceLine | None  # nearest outside of any installed package
    compiled: bool  # False: traced or lowered only
    cache: CacheUse | None = None
    equations: int | None = None
    equation_lines: tuple[tuple[SourceLine, int], ...] = ()
    constant_bytes: int | None = None
    constants: tuple[Constant, ...] = ()  # the large ones of them, the largest first
    resharded: tuple[Resharded, ...] = ()
    executable_bytes: int | None = None
    recompile_reason: Reason | None = None  # None: the first
    recompile_differences: tuple[Difference, ...] = ()  # all of them, the reason first
    #: For each of `equation_lines`: how often its most frequent equation comes again.
    equation_repeats: tuple[int, ...] = ()
    cache_settings: Mapping[str, Any] = field(default_factory=dict)
    results_before: int | None = None  # how often the program had waited for a result by then
    entry_site: SourceLine | None = None  # the user's call of a package that called `user_site`
    before_first_result: bool = True  # or there was none
    packages: tuple[str, ...] = ()  # whose code took part in it
    stack: tuple[SourceLine, ...] = ()  # from the call outwards, without frames of JAX
    stages: tuple[Span, ...] = ()  # from begin to end, with what ran inside

    @property
    def seconds(self) -> float:
        return sum(s or 0.0 for s in self.stage_seconds.values())

    @property
    def found_in_cache(self) -> bool:
        return self.cache is not None and self.cache.status == CacheStatus.HIT

    @property
    def recompile_is_for_that_alone(self) -> bool:
        return len({difference.kind for difference in self.recompile_differences}) <= 1

    @property
    def differing(self) -> tuple[str, ...]:
        """Paths of all arguments that differ from the nearest program before."""
        return tuple(d.field for d in self.recompile_differences if d.is_of_argument and d.field)


@dataclass(frozen=True)
class Function:
    """All compiles of one function: of the same code, whatever object it was."""

    name: str
    place: SourceLine | None
    module: str | None
    library: bool  # of JAX itself: an operation outside of any jit
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
        """What the persistent cache did: {"hit": 1, "miss": 3}."""
        return dict(Counter(c.cache.status for c in self.compiles if c.cache is not None))


@dataclass(frozen=True)
class ImportedPackage:
    """A top-level package with all of its modules."""

    name: str
    seconds: float  # of its own modules, without those of others that they import
    with_others_seconds: float  # what would be saved if it were not imported first by this one
    modules: int
    begin_seconds: float
    imported_by: str | None = None  # the package around it; None: the program itself
    site: SourceLine | None = None  # the import statement, of expensive ones
    beyond_jax_seconds: float = 0.0  # with others, but without JAX and what comes with it


@dataclass(frozen=True)
class Wait:
    site: SourceLine | None
    user_site: SourceLine | None
    count: int
    seconds: float
    first_seconds: float
    last_seconds: float


class Witness(Enum):
    MARKED = "marked"  # by the program itself, or by what it was asked to look for
    READ = "read"  # by the program's own code
    PUT_OUT = "put out"


@dataclass(frozen=True)
class Read:
    seconds: float
    site: SourceLine | None
    package: str | None = None  # that read it for itself


@dataclass(frozen=True)
class Span:
    kind: str  # interpreter, import, backend, trace, lower, compile, wait, rest
    begin_seconds: float
    end_seconds: float
    label: str


@dataclass(frozen=True)
class Thread:
    """A thread beside the main one, while it did something that is recorded."""

    number: int  # by which the system, and `Compile.thread`, know it
    name: str
    timeline: tuple[Span, ...]  # without the time in which nothing is known of it


@dataclass(frozen=True)
class DeviceUse:
    """The first use of an accelerator."""

    platform: str
    begin_seconds: float
    seconds: float
    reserves_memory: bool  # most of that of the device, as JAX does by default


@dataclass(frozen=True)
class Process:
    number: int
    pid: int
    rank: str | None
    command: tuple[str, ...]
    python: str
    jax_version: str | None
    torch_version: str | None
    wall_seconds: float | None  # None: it did not get to its end
    first_result_seconds: float | None  # of the program itself: see `first_result`
    first_result_site: SourceLine | None
    phases_seconds: Mapping[str, float]  # by kind of span; they add up to the wall time
    timeline: tuple[Span, ...]  # of the main thread
    imports: tuple[ImportedPackage, ...]
    waits: tuple[Wait, ...]
    short_waits: int
    short_waits_seconds: float
    own_seconds: float  # of the recorder
    unfinished: str | None  # what was being compiled when the log ended
    problems: tuple[str, ...]
    whole: bool = True  # recorded from its start
    incomplete: str | None = None  # why compiles may be missing
    starts_at_seconds: float = 0.0  # after the start of the first process
    first_result_witness: Witness | None = None
    first_read: Read | None = None  # the first that anybody read: it may be a package
    first_output: Read | None = None  # the first output that may hold a result
    first_result_pattern: str | None = None  # what was asked for as the first result
    started_at: float | None = None  # seconds of the clock on the wall, since 1970
    threads: tuple[Thread, ...] = ()  # others than the main one, in the order of their begin
    device_use: DeviceUse | None = None


@dataclass(frozen=True)
class Finding:
    kind: str
    seconds: float  # what it costs, at most; findings may overlap
    title: str  # a sentence
    function: str | None
    place: SourceLine | None
    remedy: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    before_first_result_seconds: float | None = None  # of the seconds; None: unknown
    apart: bool = False  # of how JAX is set up, not of this program: shown after all others

    @property
    def location(self) -> str | None:
        return None if self.place is None else self.place.location


@dataclass(frozen=True)
class Trace:
    processes: tuple[Process, ...]
    functions: tuple[Function, ...]  # most expensive first
    findings: tuple[Finding, ...]  # most expensive first, after them those that stand apart
    time_to_first_result_seconds: float | None
    compile_count: int
    recompiles: int
    torch_regions: tuple[Mapping[str, Any], ...] = ()

    @property
    def started_at(self) -> float | None:
        """Seconds of the clock on the wall, since 1970, of the first process."""
        return min((p.started_at for p in self.processes if p.started_at is not None), default=None)
