"""Thresholds for reporting, such that a healthy program has no findings.

They are counts or shares of the start, not seconds, which depend on the machine and its load. The
start is the time to the first result plus later compiles; it includes JAX's own import.
"""

# Recompiles of a function from one line: a ragged last batch is only one.
RECOMPILES_AT_ONE_LINE = 1
# Static values are meant to take several values: two at one line are no accident yet.
STATIC_RECOMPILES_AT_ONE_LINE = 2
# Two shapes have a good reason (training, testing); four do not.
RECOMPILES_AT_SEVERAL_LINES = 3
# Loops outside jit: the first recompile may be a warm-up.
LOOPS_AGAIN_AT_ONE_LINE = 2

# Operations outside jit in one function: every program has five or six (a seed, a few arrays).
ONE_OP_COMPILES = 8
# In all functions with fewer, together.
ONE_OP_COMPILES_IN_ALL = 16
# Fewer are enough if they take these shares of the start and of all compiling.
ONE_OP_SHARE_OF_START = 0.3
ONE_OP_SHARE = 0.2
# Imports of other packages, relative to JAX's own import, which has the same load.
IMPORT_SHARE_OF_JAX = 0.5

# First use of a GPU, as a share of the start: it takes 0.1 s if no memory is reserved.
RESERVED_MEMORY_SHARE = 0.1

# Constants that take a noticeable part of the compile (10 MB: 0.1 s to load).
CONSTANT_BYTES = 1_000_000
# Arguments moved between devices in every call: smaller ones take almost no time.
RESHARDED_BYTES = 1_000_000
# Equations of one line, and repeats of the same one, that show a Python loop.
EQUATIONS_OF_A_LINE = 100
REPEATS_OF_A_LINE = 30
# One compile, as shares of all compiling and of the start.
DOMINATING_SHARE = 0.5
DOMINATING_SHARE_OF_START = 0.4
# A recording of a part of a run has no start to compare with: it takes large counts instead.
LARGE_PROGRAMS = 8
LARGE_EQUATIONS = 100
# torch: a multiple of the import of torch (Inductor takes seconds for anything), and the share of
# all that torch compiles.
TORCH_COMPILE_TIMES_IMPORT = 5.0
TORCH_COMPILE_SHARE = 0.5

# Smaller savings of the start are not worth a setting.
CACHE_OFF_SHARE = 0.1
CACHE_USELESS_SHARE = 0.1
# A first run with a new cache is normal: report only a large cost.
CACHE_COLD_SHARE = 0.4
# Time spent on programs that another process compiled too.
SAME_PROGRAM_SHARE = 0.05

# Waits at one line that come in every step, not now and then.
WAITS_AT_ONE_LINE = 20
# Idle time as shares of the time between the line's first and last wait, and of the whole run.
WAIT_SHARE = 0.1
WAIT_SHARE_OF_RUN = 0.01
# A stall: this long after the first result and after the last compile, in times to first result.
LATE_SHARE = 0.5
QUIET_SHARE = 0.25
# Or after this many results without a compile.
LATE_RESULTS = 100
