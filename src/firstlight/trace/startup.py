"""Starts the recorder when Python starts, if FIRSTLIGHT_TRACE names a folder.

`firstlight-trace.pth` imports this module. If anything fails here, the program runs unrecorded.
"""

import os

try:
    from firstlight.trace.record.whole_process import process_started_ns, record_process

    _spawned = os.environ.pop("FIRSTLIGHT_TRACE_SPAWNED_NS", None)
    # An absolute path: child processes write to the same folder, whatever their working directory.
    _folder = os.environ["FIRSTLIGHT_TRACE"] = os.path.abspath(os.environ["FIRSTLIGHT_TRACE"])
    try:
        record_process(_folder, int(_spawned) if _spawned else process_started_ns())
    except OSError as error:
        # Reported once: child processes could not write there either.
        del os.environ["FIRSTLIGHT_TRACE"]
        os.write(
            2,
            f"firstlight: nothing is recorded: {_folder} cannot be written to ({error.strerror}). "
            "Set FIRSTLIGHT_TRACE to another folder.\n".encode("utf-8", "replace"),
        )
except Exception:  # for instance, stderr is closed
    pass
