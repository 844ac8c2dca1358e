"""The first lines of the measured process, run by path: nothing of ours loads before the clock.

Kept this short because a script is compiled at every start, and that would count as `interpreter`;
the rest is in `instrument.py`, which is loaded from its bytecode.
"""

import time

STARTED_NS = time.monotonic_ns()

import sys

# Found also where Firstlight is only a folder of source files; last, so that it hides nothing.
sys.path.append(__file__[: -len("/firstlight/measure/worker.py")])

from firstlight.measure.instrument import main

main(STARTED_NS)
