"""Imported at the start of Python where FIRSTLIGHT_TRACE names a folder (firstlight-trace.pth).

Whatever goes wrong here, the program runs as if nothing had been asked for.
"""

import os

try:
    from firstlight.trace.recorder import process_started_ns, record_process

    _spawned = os.environ.pop("FIRSTLIGHT_TRACE_SPAWNED_NS", None)
    # The processes that this one starts, in whatever folder it is by then, write to the same place.
    os.environ["FIRSTLIGHT_TRACE"] = os.path.abspath(os.environ["FIRSTLIGHT_TRACE"])
    record_process(
        os.environ["FIRSTLIGHT_TRACE"], int(_spawned) if _spawned else process_started_ns()
    )
except Exception:  # the folder cannot be written to, and whatever else there may be
    pass
