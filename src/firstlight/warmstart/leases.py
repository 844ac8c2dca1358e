"""The right to compile one program, held by one process as long as it makes progress.

A lease is a file that only one process can create. A thread renews its modification time while the
process does work; a process that was killed or stopped, or hangs, renews nothing. A waiter watches
for changes of that time and measures with its own clock how long there were none, because the
clocks of two hosts may differ. There are no locks: they are unreliable on network file systems.
Correctness does not depend on leases: if two processes hold the same one, both compile the program.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Generic, Protocol, TypeVar

from firstlight.warmstart.entries import create

LEASE_SECONDS = 5.0
#: For one compile, even if its process keeps working.
MAX_WAIT_SECONDS = 600.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.002, 0.1
#: Less processor time than this between two renewals, in the whole process, is not work.
_MIN_WORK_SECONDS = 0.0005
_AFTER_EXPIRY = " after expiry"


class Waited(Enum):
    """How the wait for a lease ended."""

    RELEASED = auto()
    EXPIRED = auto()  # and it was removed, so it can be taken
    STILL_HELD = auto()


class Held(Protocol):
    """A lease of this process."""

    @property
    def holder(self) -> threading.Thread | None:
        """The thread that compiles; None while the result is being sent."""
        ...

    def renew(self) -> None: ...

    def release(self) -> None: ...


L = TypeVar("L", bound=Held)


class HeldLeases(Generic[L]):
    """The leases that this process holds, by key, and the thread that renews them."""

    def __init__(self, seconds: float = LEASE_SECONDS) -> None:
        self.seconds = seconds
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Start empty: a child of fork does not have its parent's leases."""
        self._held: dict[object, L] = {}
        self._lock = threading.Lock()
        self._is_renewing = False

    def __getitem__(self, key: object) -> L | None:
        with self._lock:
            return self._held.get(key)

    def hold(self, key: object, lease: L) -> None:
        """Renew a lease from now on."""
        with self._lock:
            self._held[key] = lease
            if not self._is_renewing:
                with suppress(RuntimeError):  # Python is about to exit and starts no threads
                    threading.Thread(target=self.renew_all, daemon=True).start()
                    self._is_renewing = True

    def release(self, key: object, only: L | None = None) -> None:
        """Release a lease, if it is held; only: unless another one is held by now."""
        with self._lock:
            if only is not None and self._held.get(key) is not only:
                return
            lease = self._held.pop(key, None)
        if lease is not None:
            lease.release()

    def renew_all(self) -> None:
        """Renew leases until none is held; release those whose threads have ended."""
        worked = work_seconds()
        while True:
            time.sleep(self.seconds / 5)
            is_working = work_seconds() - worked >= _MIN_WORK_SECONDS
            with self._lock:
                if not self._held:
                    self._is_renewing = False
                    return
                every = dict(self._held)
            for key, lease in every.items():
                if lease.holder is not None and not lease.holder.is_alive():
                    self.release(key, lease)  # a new thread may have the same number
                elif is_working:
                    lease.renew()
            worked = work_seconds()


def work_seconds() -> float:
    """Processor time of all threads but this one."""
    return time.process_time() - time.thread_time()


class _Lease:
    """A lease of this thread. Its file stays open, so that no other file gets its inode."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.holder = threading.current_thread()
        self._path = path
        self._descriptor: int | None = descriptor
        self._lock = threading.Lock()  # of the descriptor, which may be another file's once closed

    def renew(self) -> None:
        with self._lock, suppress(OSError):
            if self._descriptor is not None:
                os.utime(self._descriptor)

    def release(self) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with suppress(OSError):
            # If it had expired, the file may now be that of the process that took over.
            if os.path.samestat(os.stat(self._path), os.fstat(descriptor)):
                os.unlink(self._path)
        os.close(descriptor)


class Leases:
    """Leases as files; each thread compiles one program at a time.

    seconds: how long a lease lasts without being renewed. clock, sleep: of a waiter.
    """

    def __init__(
        self,
        seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.held = HeldLeases[_Lease](seconds)
        self._clock = clock
        self._sleep = sleep

    def take(self, path: str, after_expiry: bool = False) -> bool:
        """Whether this thread holds the lease now."""
        self.release()
        try:
            descriptor = create(path)
        except FileExistsError:
            return False
        with suppress(OSError):  # if the disk is full, others have to wait for it to expire
            holder = f"{_process_name(os.getpid())} {os.urandom(4).hex()}"
            os.write(descriptor, f"{holder}{_AFTER_EXPIRY if after_expiry else ''}".encode())
        self.held.hold(threading.get_ident(), _Lease(path, descriptor))
        return True

    def release(self) -> None:
        """Give up this thread's lease after a compile, a failure, or before another program."""
        self.held.release(threading.get_ident())

    def renew(self) -> None:
        """Renew this thread's lease, without regard to the work of this process."""
        if (lease := self.held[threading.get_ident()]) is not None:
            lease.renew()

    def wait(self, path: str) -> Waited:
        """Wait until another process releases its lease, or until it expires and is removed.

        A lease that is released and taken again counts as released: the result was not stored.
        """
        begin = since = self._clock()
        seen, pause = _Seen(), _FIRST_PAUSE_SECONDS
        while (found := _look(path)) is not None:
            now = self._clock()
            if seen.holder and found.holder != seen.holder and not found.after_expiry:
                return Waited.RELEASED
            if found != seen:
                seen, since = found, now
            if now - since > self.held.seconds or _has_ended(found.holder):
                return _remove_expired(path, found)
            if now - begin > MAX_WAIT_SECONDS:
                return Waited.STILL_HELD
            self._sleep(pause)
            pause = min(1.3 * pause, _MAX_PAUSE_SECONDS)
        return Waited.RELEASED


@dataclass(frozen=True)
class _Seen:
    """A lease as a waiter sees it."""

    holder: str = ""  # empty: not written yet, or not readable
    after_expiry: bool = False  # whether the lease before it expired instead of being released
    renewed_ns: int = 0


def _look(path: str) -> _Seen | None:
    """The current lease, or None.

    The file is opened, because a network file system may answer `stat` from its cache for a minute.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:  # another user's: it can only expire
        return _Seen()
    try:
        holder = os.read(descriptor, 200).decode("ascii", "replace")
        after_expiry = holder.endswith(_AFTER_EXPIRY)
        renewed_ns = os.fstat(descriptor).st_mtime_ns
        return _Seen(holder.removesuffix(_AFTER_EXPIRY), after_expiry, renewed_ns)
    except OSError:  # not a file
        return _Seen()
    finally:
        os.close(descriptor)


def _remove_expired(path: str, expired: _Seen) -> Waited:
    """Remove an expired lease, unless another process has taken it over."""
    try:
        if _look(path) == expired:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        return Waited.STILL_HELD
    return Waited.EXPIRED


@cache
def _machine_name() -> str:
    """Identifies this boot of the kernel and this namespace of process ids; "-" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "-"


def _process_name(pid: int) -> str:
    """A name that no other process ever has; it ends with "-" if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # State and start time follow the program's name, which may contain anything.
            fields = file.read().rpartition(b")")[2].split()
        began = "-" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        began = "-"
    return f"{_machine_name()} {pid} {began}"


def _has_ended(holder: str) -> bool:
    """Whether the holder is known to have ended, which is possible on this machine only."""
    machine, pid, began, *_ = [*holder.split(" "), "", ""]
    if machine != _machine_name() or machine == "-" or not pid.isdecimal() or began in ("", "-"):
        return False
    return _process_name(int(pid)) != f"{machine} {pid} {began}"
