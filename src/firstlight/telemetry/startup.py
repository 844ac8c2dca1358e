"""Imported at the start of Python if a FIRSTLIGHT_METRICS… is set (firstlight-telemetry.pth).

If anything fails here, the program runs unwatched. A process that never imports JAX is not watched
and opens no port.
"""


def _start() -> None:
    import os

    try:
        from firstlight.telemetry.starting import start

        asked = os.environ.get
        start(
            asked("FIRSTLIGHT_METRICS") or None,
            push=asked("FIRSTLIGHT_METRICS_PUSH") or None,
            otlp=asked("FIRSTLIGHT_METRICS_OTLP") or None,
            token_file=asked("FIRSTLIGHT_METRICS_TOKEN_FILE") or None,
            profile_folder=asked("FIRSTLIGHT_PROFILES") or "firstlight-profiles",
            profile_seconds=float(asked("FIRSTLIGHT_PROFILE_SECONDS") or 5.0),
            gradient_seconds=float(asked("FIRSTLIGHT_GRADIENT_SECONDS") or 5.0),
        )
    except Exception as error:  # such as a changed sys.path
        from contextlib import suppress

        with suppress(OSError):
            os.write(2, f"firstlight: telemetry is off: {error}\n".encode("utf-8", "replace"))


try:
    from firstlight.import_watch import when_imported

    when_imported("jax", _start)
except Exception:
    pass
