"""The folder of compiled programs: one per user, with one folder per kind of machine in it."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress

from firstlight.errors import FirstlightError

#: Version of the layout; a new number starts an empty cache.
LAYOUT = "compiled-2"
_WHAT_TO_DO = (
    "Name a folder of your own with FIRSTLIGHT_CACHE_DIR (firstlight exec --cache), or turn the "
    "cache off with FIRSTLIGHT_CACHE=off."
)


class CacheFolderError(FirstlightError):
    """A folder that cannot hold the cache."""


class ForeignFolderError(CacheFolderError):
    """Others can write to the folder; their programs would run with this user's rights."""


def is_off() -> bool:
    return os.environ.get("FIRSTLIGHT_CACHE", "").lower() in ("off", "0", "no", "false")


def of_user() -> str:
    """$XDG_CACHE_HOME/firstlight, or ~/.cache/firstlight."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification says to ignore it
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "firstlight")


def in_front() -> str:
    """This machine's folder in front of a shared cache: a hit there needs no network."""
    return os.environ.get("FIRSTLIGHT_CACHE_LOCAL_DIR") or of_user()


def max_bytes() -> int:
    """The bound of the folder: FIRSTLIGHT_CACHE_MAX_BYTES, or 4 GiB."""
    given = os.environ.get("FIRSTLIGHT_CACHE_MAX_BYTES") or str(2**32)
    if not given.isdecimal():
        raise CacheFolderError(
            f"FIRSTLIGHT_CACHE_MAX_BYTES is {given!r}: give a whole number of bytes."
        )
    return int(given)


def is_trusted(status: os.stat_result) -> bool:
    """Whether only this user or root can have written it: writing an entry means running code."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def opened(path: str) -> str:
    """The folder of the entries in `path`, which is created if needed.

    Raises:
        CacheFolderError: It cannot be created, or (ForeignFolderError) others can write to it.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.stat(path)
    except FileExistsError:
        raise CacheFolderError(f"{path} is not a folder. {_WHAT_TO_DO}") from None
    except OSError as error:
        why = error.strerror or error
        raise CacheFolderError(f"{path} cannot be made: {why}. {_WHAT_TO_DO}") from None
    if not is_trusted(status):
        foreign = status.st_uid not in (os.geteuid(), 0)
        why = f"belongs to another user (uid {status.st_uid})" if foreign else "is open to others"
        also = "" if foreign else f" (chmod go-w {path})"
        raise ForeignFolderError(
            f"{path} {why}, whose programs would run with your rights{also}. {_WHAT_TO_DO}"
        )
    return os.path.join(path, LAYOUT)


def kind_name(jax_version: str, jaxlib_version: str) -> str:
    """The name of this kind of machine: machines that can load each other's executables share it.

    Device, driver and XLA's flags are not part of it: they are in JAX's keys.
    """
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    system = os.uname()
    machine = f"{system.sysname}-{system.machine}".lower()
    return f"jax{jax_version}-jaxlib{jaxlib_version}-{python}-{machine}-{_processor()}"


def _processor() -> str:
    """A digest of the processor's features, in which machines of one cluster may differ."""
    features = []
    with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        # The first processor is enough; on a large machine the whole file takes long.
        first = file.read(16384).partition(b"\n\n")[0].decode("ascii", "replace")
        relevant = ("flags", "Features", "vendor_id", "cpu family", "model\t", "CPU part")
        features = [line for line in first.splitlines() if line.startswith(relevant)]
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:12]
