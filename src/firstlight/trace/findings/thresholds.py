"""From when on something is worth to be told. A program that is as it should be has no finding.

Counts, or shares of the start, rather than seconds: seconds depend on the machine and on what else
it does, and a verdict should not. The start is the time until the first result, with what is
compiled after it; JAX's own import is part of it, so a share of it is never a share of nothing.
"""

# --- compiling again ------------------------------------------------------------------------------

#: Recompiles of a function from one and the same line: that line runs again and again with
#: something else, and each time is waited for. One is enough: a ragged last batch is only one.
RECOMPILES_AT_ONE_LINE = 1
#: Static values are made to be several: one line that runs with two of them is no accident yet.
STATIC_RECOMPILES_AT_ONE_LINE = 2
#: Recompiles from several lines: a batch for training and one for testing are two shapes with good
#: reason, four are a habit.
RECOMPILES_AT_SEVERAL_LINES = 3
#: A loop outside of jit that is compiled again for nothing: the first time may be a warm-up.
LOOPS_AGAIN_AT_ONE_LINE = 2

# --- start-up -------------------------------------------------------------------------------------

#: Operations outside of any jit within one function of the program. A seed, a few arrays: that is
#: five or six everywhere, and nobody needs to be told.
ONE_OP_COMPILES = 8
#: The same over all functions that have fewer: spread out, but somebody waits for each of them.
ONE_OP_COMPILES_IN_ALL = 16
#: Fewer that are such a part of the start, and of all compiling, are told as well.
ONE_OP_SHARE_OF_START = 0.3
ONE_OP_SHARE = 0.2
#: Packages beyond JAX itself and what it needs, by how long JAX itself took to import: the machine
#: and its load are the same for both. A package that took part in a compile is not told, however
#: long: the result needs it.
IMPORT_SHARE_OF_JAX = 0.5

# --- programs -------------------------------------------------------------------------------------

#: A few tables of numbers are no harm; from here on they are hashed, written into the program and
#: read again for a noticeable part of the compile (10 MB: 0.1 s to load).
CONSTANT_BYTES = 1_000_000
#: So many equations of one line, and the same one so often: that line was in a loop of Python.
EQUATIONS_OF_A_LINE = 100
REPEATS_OF_A_LINE = 30
#: One function is the whole start-up only where compiling it takes more than all the others
#: together, and such a part of the start.
DOMINATING_SHARE = 0.5
DOMINATING_SHARE_OF_START = 0.4
#: A recording within a run has no imports to compare with: there, only what is large by its count
#: of programs, or of equations, is a start of its own.
LARGE_PROGRAMS = 8
LARGE_EQUATIONS = 100

# --- persistent cache -----------------------------------------------------------------------------

#: What a cache would save of every start, or one that stores nothing does not: told from such a
#: part of the start on. Less is not worth a setting.
CACHE_OFF_SHARE = 0.1
CACHE_USELESS_SHARE = 0.1
#: A first run with a cache is as it should be, only the seconds are worth to be known.
CACHE_COLD_SHARE = 0.4

# --- running --------------------------------------------------------------------------------------

#: Waits at one line that are a habit (each step), not a look now and then.
WAITS_AT_ONE_LINE = 20
#: Of the time between the first and the last wait of the line, and of the whole run.
WAIT_SHARE = 0.1
WAIT_SHARE_OF_RUN = 0.01
#: A compile that comes so long after the first result, and after so long without any, is a stall in
#: the middle of the work and no longer the start: in parts of the time until the first result.
LATE_SHARE = 0.5
QUIET_SHARE = 0.25
#: The same in results that were read: so many steps without a compile, and then one.
LATE_RESULTS = 100

# --- several processes ----------------------------------------------------------------------------

#: What processes spent on programs that another one of them compiled as well, of the start.
SAME_PROGRAM_SHARE = 0.05
