"""The first lines of the measured process, run by path: nothing of ours loads before the clock.

Kept this short because a script is compiled at every start, and that would count as `interpreter`;
the rest is in `instrument.py`, which is loaded from its bytecode.
"""

import time

STARTED_NS = time.monotonic_ns()

import sys

# The parent's own copy of Firstlight, whether it is installed or only a folder of source files, and
# whatever else is installed under that name. First for this import only: it must hide nothing else.
sys.path.insert(0, __file__[: -len("/firstlight/measure/worker.py")])
from firstlight.measure.instrument import main

sys.path.append(sys.path.pop(0))
main(STARTED_NS)
