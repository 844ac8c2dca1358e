"""Where compiled programs are kept: one folder per user, and in it one per kind of machine."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress

from firstlight.errors import FirstlightError

#: The layout below the folder; another number begins an empty cache.
LAYOUT = "compiled-2"
_WHAT_TO_DO = (
    "Name a folder of your own with FIRSTLIGHT_CACHE_DIR (firstlight exec --cache), or turn the "
    "cache off with FIRSTLIGHT_CACHE=off."
)


class CacheFolderError(FirstlightError):
    """A folder that cannot hold the cache."""


class ForeignFolderError(CacheFolderError):
    """A folder into which others could put programs, which would run with this user's rights."""


def is_off() -> bool:
    return os.environ.get("FIRSTLIGHT_CACHE", "").lower() in ("off", "0", "no", "false")


def of_user() -> str:
    """$XDG_CACHE_HOME/firstlight, or ~/.cache/firstlight."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # to be ignored, says the specification
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "firstlight")


def in_front() -> str:
    """The folder of this machine in front of a URL: a hit there needs no network."""
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
    """Whether only this user, or root, can have written it: whoever writes an entry runs code."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def opened(path: str) -> str:
    """Where the entries are in the folder at `path`, which is made if there is none."""
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


def compatible(jax_version: str, jaxlib_version: str) -> str:
    """A name that is the same only where an executable can be loaded.

    The device, its driver and the flags of XLA are part of JAX's keys.
    """
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    system = os.uname()
    machine = f"{system.sysname}-{system.machine}".lower()
    return f"jax{jax_version}-jaxlib{jaxlib_version}-{python}-{machine}-{_processor()}"


def _processor() -> str:
    """A digest of what the processor can do: machines of one cluster differ in that."""
    features = []
    with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        # The first processor is enough, and on a large machine the whole file takes long.
        first = file.read(16384).partition(b"\n\n")[0].decode("ascii", "replace")
        relevant = ("flags", "Features", "vendor_id", "cpu family", "model\t", "CPU part")
        features = [line for line in first.splitlines() if line.startswith(relevant)]
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:12]
