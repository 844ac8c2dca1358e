"""The first lines of the measured process, run by path: Firstlight loads after the first timestamp.

Short because a script is compiled at every start, which counts as `interpreter`; the rest is in
`instrument.py`, which is loaded from bytecode.
"""

import time

STARTED_NS = time.monotonic_ns()

import sys

# The parent's own copy of Firstlight, whether installed or a folder of source files, before any
# other installed copy. First on the path for this import only: it must not hide other modules.
sys.path.insert(0, __file__[: -len("/firstlight/measure/worker.py")])
from firstlight.measure.instrument import main

sys.path.append(sys.path.pop(0))
main(STARTED_NS)
