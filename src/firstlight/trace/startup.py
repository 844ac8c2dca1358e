"""Imported at the start of Python where FIRSTLIGHT_TRACE names a folder (firstlight-trace.pth).

Whatever goes wrong here, the program runs as if nothing had been asked for.
"""

import os

try:
    from firstlight.trace.record.whole_process import process_started_ns, record_process

    _spawned = os.environ.pop("FIRSTLIGHT_TRACE_SPAWNED_NS", None)
    # The processes that this one starts, in whatever folder it is by then, write to the same place.
    _folder = os.environ["FIRSTLIGHT_TRACE"] = os.path.abspath(os.environ["FIRSTLIGHT_TRACE"])
    try:
        record_process(_folder, int(_spawned) if _spawned else process_started_ns())
    except OSError as error:
        # Said once: the processes that this one starts could not write there either.
        del os.environ["FIRSTLIGHT_TRACE"]
        os.write(
            2,
            f"firstlight: nothing is recorded: {_folder} cannot be written to ({error.strerror}). "
            "Set FIRSTLIGHT_TRACE to another folder.\n".encode("utf-8", "replace"),
        )
except Exception:  # whatever there may be, stderr that is closed among it
    pass
