"""Imported at the start of Python where FIRSTLIGHT_WARMSTART is set (firstlight-warmstart.pth).

Whatever goes wrong here, the program runs as if nothing had been asked for.
"""


def _attach() -> None:
    try:
        from firstlight.warmstart.jax_cache import attach
    except Exception:  # the program may have changed the path of imports
        return
    attach()


try:
    from firstlight.import_watch import import_without_collecting, when_imported

    import_without_collecting("jax")
    import_without_collecting("torch")
    when_imported("jax._src.compilation_cache", _attach)
except Exception:
    pass
