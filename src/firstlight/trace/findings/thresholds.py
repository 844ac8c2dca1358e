"""From when on something is worth reporting: a program that is as it should be has no finding.

Counts or shares of the start, not seconds, which depend on the machine and its load. The start is
the time until the first result, with what is compiled after it; it includes JAX's own import.
"""

# Recompiles of a function from one line: a ragged last batch is only one.
RECOMPILES_AT_ONE_LINE = 1
# Static values are made to be several: two of them at one line are no accident yet.
STATIC_RECOMPILES_AT_ONE_LINE = 2
# Shapes for training and for testing are two, with good reason; four are a habit.
RECOMPILES_AT_SEVERAL_LINES = 3
# A loop outside of jit that is compiled again: the first time may be a warm-up.
LOOPS_AGAIN_AT_ONE_LINE = 2

# Operations outside of jit in one function: a seed and a few arrays are five or six everywhere.
ONE_OP_COMPILES = 8
# The same over all functions that have fewer.
ONE_OP_COMPILES_IN_ALL = 16
# Fewer, if they are such a part of the start, and of all compiling.
ONE_OP_SHARE_OF_START = 0.3
ONE_OP_SHARE = 0.2
# Packages beyond JAX, relative to JAX's own import: the load is the same for both.
IMPORT_SHARE_OF_JAX = 0.5

# The first use of a GPU, of the start: without reserving its memory it takes a tenth of a second.
RESERVED_MEMORY_SHARE = 0.1

# From here on constants take a noticeable part of the compile (10 MB: 0.1 s to load).
CONSTANT_BYTES = 1_000_000
# Arguments that are moved between devices in every call: smaller ones take no time.
RESHARDED_BYTES = 1_000_000
# So many equations of one line, and the same one so often: the line was in a loop of Python.
EQUATIONS_OF_A_LINE = 100
REPEATS_OF_A_LINE = 30
# Of all compiling, and of the start.
DOMINATING_SHARE = 0.5
DOMINATING_SHARE_OF_START = 0.4
# A recording within a run has no imports to compare with: only large counts are a start.
LARGE_PROGRAMS = 8
LARGE_EQUATIONS = 100
# torch: how many times the import of torch itself (Inductor takes seconds for anything), and the
# share of all that torch compiles.
TORCH_COMPILE_TIMES_IMPORT = 5.0
TORCH_COMPILE_SHARE = 0.5

# Saving less of the start is not worth a setting.
CACHE_OFF_SHARE = 0.1
CACHE_USELESS_SHARE = 0.1
# A first run with a cache is as it should be; only a large cost is worth knowing.
CACHE_COLD_SHARE = 0.4
# What processes spent on programs that another one compiled as well.
SAME_PROGRAM_SHARE = 0.05

# Waits at one line that are a habit (each step), not a look now and then.
WAITS_AT_ONE_LINE = 20
# Of the time between the first and the last wait of the line, and of the whole run.
WAIT_SHARE = 0.1
WAIT_SHARE_OF_RUN = 0.01
# A stall, in times to the first result: so long after it, and after the compile before.
LATE_SHARE = 0.5
QUIET_SHARE = 0.25
# The same in results that were read without a compile between them.
LATE_RESULTS = 100
