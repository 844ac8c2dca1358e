"""Imported when Python starts with FIRSTLIGHT_WARMSTART set (firstlight-warmstart.pth).

No error here may reach the program: it runs without the cache instead.
"""


def _attach() -> None:
    try:
        from firstlight.warmstart.jax_cache import attach
    except Exception:  # the program may have changed sys.path
        return
    attach()


try:
    from firstlight.import_watch import import_without_collecting, when_imported

    import_without_collecting("jax")
    import_without_collecting("torch")
    when_imported("jax._src.compilation_cache", _attach)
except Exception:
    pass
