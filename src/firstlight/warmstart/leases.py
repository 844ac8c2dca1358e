"""The right to compile one program, held by one process as long as it makes progress.

A lease is a file that only one process can create. A thread renews its modification time while the
process does any work; a process that was killed, was stopped or hangs renews nothing. A waiter only
looks for changes of that time, and measures their absence by its own clock, because the clocks of
two hosts may differ. There are no locks: they are unreliable on network file systems. Correctness
does not depend on leases: if two processes hold the same one, the program is compiled twice.
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

from firstlight.warmstart.entries import create

LEASE_SECONDS = 5.0
#: For one compile, however alive its process looks.
MAX_WAIT_SECONDS = 600.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.1
#: Less than this between two renewals, in the whole process, is no work.
MIN_WORK_SECONDS = 0.0005
_AFTER_EXPIRY = " after expiry"


class Waited(Enum):
    """How the wait for a lease ended."""

    RELEASED = auto()
    EXPIRED = auto()  # and the lease is gone: it can be taken
    IN_VAIN = auto()  # it is still there


@dataclass(frozen=True)
class _Seen:
    """A lease, as a waiter sees it."""

    holder: str = ""  # empty: not written yet, or not readable
    after_expiry: bool = False  # whether the lease before it expired instead of being released
    renewed_ns: int = 0


@dataclass(frozen=True)
class _Lease:
    path: str
    descriptor: int  # open as long as it is held, so that no other file can be taken for it
    holder: threading.Thread

    def release(self) -> None:
        with suppress(OSError):
            # After it had expired, the file is another one, of the process that took over.
            if os.path.samestat(os.stat(self.path), os.fstat(self.descriptor)):
                os.unlink(self.path)
        os.close(self.descriptor)


class Leases:
    """The leases of this process; a thread compiles one program at a time.

    seconds: how long a lease lasts without being renewed. clock, sleep: of a waiter.
    """

    def __init__(
        self,
        seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin without leases; those of a process that forks remain its own."""
        self._held: dict[int, _Lease] = {}
        self._lock = threading.Lock()
        self._is_renewing = False

    def take(self, path: str, after_expiry: bool = False) -> bool:
        """Whether this thread holds the lease now."""
        self.release()
        try:
            descriptor = create(path)
        except FileExistsError:
            return False
        with suppress(OSError):  # a full disk: others have to wait for it to expire
            holder = f"{_process_name(os.getpid())} {os.urandom(4).hex()}"
            os.write(descriptor, f"{holder}{_AFTER_EXPIRY if after_expiry else ''}".encode())
        with self._lock:
            self._held[threading.get_ident()] = _Lease(path, descriptor, threading.current_thread())
            if not self._is_renewing:
                with suppress(RuntimeError):  # Python is about to end: there are no new threads
                    threading.Thread(target=self._renew, daemon=True).start()
                    self._is_renewing = True
        return True

    def release(self) -> None:
        """Give up what this thread holds: it has compiled, or failed, or does something else."""
        with self._lock:
            lease = self._held.pop(threading.get_ident(), None)
        if lease is not None:
            lease.release()

    def renew(self) -> None:
        """What this thread waits for elsewhere makes progress, though the process does no work."""
        with self._lock:
            lease = self._held.get(threading.get_ident())
        if lease is not None:
            with suppress(OSError):
                os.utime(lease.descriptor)

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
            if now - since > self.seconds or _has_ended(found.holder):
                return _removed(path, found)
            if now - begin > MAX_WAIT_SECONDS:
                return Waited.IN_VAIN
            self._sleep(pause)
            pause = min(1.3 * pause, _LONGEST_PAUSE_SECONDS)
        return Waited.RELEASED

    def _renew(self) -> None:
        """Renew what is held, until nothing is."""
        worked = work_seconds()
        while True:
            time.sleep(self.seconds / 5)
            is_working = work_seconds() - worked >= MIN_WORK_SECONDS
            with self._lock:
                for ident, lease in list(self._held.items()):
                    if not lease.holder.is_alive():
                        self._held.pop(ident).release()
                    elif is_working:
                        with suppress(OSError):
                            os.utime(lease.descriptor)
                if not self._held:
                    self._is_renewing = False
                    return
            worked = work_seconds()


def work_seconds() -> float:
    """Processor time of all threads but this one."""
    return time.process_time() - time.thread_time()


def _look(path: str) -> _Seen | None:
    """The lease as it is now; None: there is none.

    The file is opened, because a network file system may answer a mere stat from its cache for a
    minute.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:  # of another user: it can only expire
        return _Seen()
    try:
        holder = os.read(descriptor, 200).decode("ascii", "replace")
        after_expiry = holder.endswith(_AFTER_EXPIRY)
        renewed_ns = os.fstat(descriptor).st_mtime_ns
        return _Seen(holder.removesuffix(_AFTER_EXPIRY), after_expiry, renewed_ns)
    except OSError:  # no file
        return _Seen()
    finally:
        os.close(descriptor)


def _removed(path: str, expired: _Seen) -> Waited:
    """Remove a lease, unless it is another one by now."""
    try:
        if _look(path) == expired:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        return Waited.IN_VAIN
    return Waited.EXPIRED


@cache
def _machine_name() -> str:
    """Names this boot of the kernel and this namespace of process ids; "-" where it cannot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "-"


def _process_name(pid: int) -> str:
    """A name that no other process ever has; it ends with "-" if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # State and start time come after the name of the program, which may hold anything.
            fields = file.read().rpartition(b")")[2].split()
        began = "-" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        began = "-"
    return f"{_machine_name()} {pid} {began}"


def _has_ended(holder: str) -> bool:
    """Whether the holder is known to have ended; only processes of this machine can be known."""
    machine, pid, began, *_ = [*holder.split(" "), "", ""]
    if machine != _machine_name() or machine == "-" or not pid.isdecimal() or began in ("", "-"):
        return False
    return _process_name(int(pid)) != f"{machine} {pid} {began}"
