"""One compiles, the others wait for it; nobody waits for a process that makes no progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from firstlight.warmstart import leases as module
from firstlight.warmstart.entries import LEASE, Entries
from firstlight.warmstart.leases import MAX_WAIT_SECONDS, Leases, Waited
from firstlight.warmstart.store import Store

TAKE_AND_DIE = """
import os, sys
from firstlight.warmstart.leases import Leases
Leases().take(sys.argv[1])
os.kill(os.getpid(), 9)
"""
ELSEWHERE = "another-machine/1 77 1234 abcd"


class Waiting:
    """A clock that goes on only while somebody sleeps, and something that happens meanwhile."""

    def __init__(self, meanwhile: Callable[[float], None] = lambda now: None) -> None:
        self.seconds = 0.0
        self._meanwhile = meanwhile

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self._meanwhile(self.seconds)

    def leases(self) -> Leases:
        return Leases(5.0, clock=lambda: self.seconds, sleep=self.sleep)


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    path = tmp_path / "entry.lease"
    path.write_text(ELSEWHERE)
    return path


@pytest.mark.parametrize("year", [1975, 2026, 2099])  # the clock of its host may be wrong
def test_a_lease_that_is_not_renewed_expires_by_the_waiters_clock(year: int, lease: Path) -> None:
    seconds = (year - 1970) * 365 * 86_400
    os.utime(lease, (seconds, seconds))
    waiting = Waiting()
    assert waiting.leases().wait(str(lease)) is Waited.EXPIRED
    assert 5.0 < waiting.seconds < 5.2
    assert not lease.exists()


def test_a_renewed_lease_is_waited_for_even_if_its_host_has_a_wrong_clock(lease: Path) -> None:
    def renew(now: float) -> None:
        os.utime(lease, (1e9 - 1000 * now, 1e9 - 1000 * now))  # a clock that runs backwards
        if now > 100:
            lease.unlink()

    waiting = Waiting(renew)
    assert waiting.leases().wait(str(lease)) is Waited.RELEASED
    assert waiting.seconds > 100


def test_the_wait_for_a_compile_is_bounded(lease: Path) -> None:
    waiting = Waiting(lambda now: os.utime(lease, (now, now)))
    assert waiting.leases().wait(str(lease)) is Waited.STILL_HELD
    assert MAX_WAIT_SECONDS < waiting.seconds < MAX_WAIT_SECONDS + 1
    assert lease.exists()


def test_a_lease_that_cannot_be_removed_is_not_waited_for_twice(
    entries: Entries, tmp_path: Path
) -> None:
    os.makedirs(entries.path("key") + LEASE)
    waiting = Waiting()
    assert Store(entries, waiting.leases()).get("key") is None
    assert waiting.seconds < 5.2


def test_a_holder_on_this_machine_that_has_ended_is_not_waited_for(lease: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TAKE_AND_DIE, str(lease) + "2"], check=False)
    assert done.returncode == -9
    waiting = Waiting()
    assert waiting.leases().wait(str(lease) + "2") is Waited.EXPIRED
    assert waiting.seconds == 0


def test_an_idle_process_renews_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hung compile: its thread lives, and the process takes no processor time."""
    path = tmp_path / "lease"
    done = {"beats": 0, "seconds": 0.0}
    held = Leases()
    monkeypatch.setattr(held.held, "_is_renewing", True)  # by this test
    assert held.take(str(path))
    renewed = []

    def beat(_: float) -> None:
        renewed.append(path.stat().st_mtime_ns)
        os.utime(path, (0, 0))
        done["beats"] += 1
        if done["beats"] in (3, 4):
            done["seconds"] += 0.5
        if done["beats"] == 6:
            held.release()

    monkeypatch.setattr(module, "work_seconds", lambda: done["seconds"])
    monkeypatch.setattr(module.time, "sleep", beat)
    held.held.renew_all()
    assert [time > 0 for time in renewed] == [True, False, False, True, True, False]


def test_a_lease_ends_with_the_thread_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, held = tmp_path / "lease", Leases()
    monkeypatch.setattr(held.held, "_is_renewing", True)
    thread = threading.Thread(target=held.take, args=(str(path),))
    thread.start()
    thread.join()
    assert path.exists()
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    held.held.renew_all()
    assert not path.exists()


def test_the_lease_of_a_thread_that_has_ended_is_not_taken_for_its_successors(
    tmp_path: Path,
) -> None:
    """A new thread may have the number of the one that has ended."""
    held, path = Leases(), tmp_path / "lease"
    assert held.take(str(path))
    ended = module._Lease(str(tmp_path / "other"), os.open(tmp_path / "other", os.O_CREAT))
    held.held.release(threading.get_ident(), ended)
    ended.release()
    assert path.exists()
    held.release()
    assert not path.exists()


def test_a_process_whose_lease_expired_does_not_release_its_successors(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lease"
    stopped, successor = Leases(), Leases()
    assert stopped.take(str(path))
    path.unlink()
    assert successor.take(str(path), after_expiry=True)
    stopped.release()
    assert path.exists()
    successor.release()
    assert not path.exists()


def test_a_program_that_is_never_stored_is_not_queued_for(entries: Entries) -> None:
    """A program with callbacks: the second one of the queue does not wait for a third."""
    first, third = Leases(), Leases()
    path = entries.path("key") + LEASE
    assert first.take(path)

    def meanwhile(now: float) -> None:
        if now > 1:
            first.release()
            third.take(path)

    waiting = Waiting(meanwhile)
    assert Store(entries, waiting.leases()).get("key") is None
    assert waiting.seconds < 1.2
    third.release()


def test_waiters_go_on_waiting_for_the_successor_of_a_killed_process(
    entries: Entries,
) -> None:
    path = Path(entries.path("key") + LEASE)
    path.parent.mkdir(parents=True)
    path.write_text(ELSEWHERE)

    def meanwhile(now: float) -> None:
        if 1 < now < 20:
            path.write_text(f"another-machine/1 78 1234 abcd{now:.2f} after expiry")
        elif now > 20:
            entries.write("key", b"program")
            path.unlink(missing_ok=True)

    waiting = Waiting(meanwhile)
    assert Store(entries, waiting.leases()).get("key") == b"program"
    assert waiting.seconds > 20


def test_a_program_stored_just_before_the_lease_was_taken_is_not_compiled_again(
    entries: Entries, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = entries.read

    def look_and_be_overtaken(key: str) -> bytes | None:
        value = really(key)
        entries.write(key, b"program")
        return value

    monkeypatch.setattr(entries, "read", look_and_be_overtaken)
    assert store.get("key") == b"program"
    assert not os.path.exists(entries.path("key") + LEASE)


def test_a_lease_is_released_by_the_put_and_by_the_next_get_of_its_thread(
    entries: Entries, store: Store
) -> None:
    def lease(key: str) -> bool:
        return os.path.exists(entries.path(key) + LEASE)

    assert store.get("failed") is None and lease("failed")
    assert store.get("stored") is None and lease("stored") and not lease("failed")
    store.put("stored", b"program")
    assert not lease("stored")


def test_processes_that_compile_together_take_no_lease_and_wait_for_none(entries: Entries) -> None:
    """Those of jax.distributed talk to each other while they compile."""
    path = Path(entries.path("key") + LEASE)
    path.parent.mkdir(parents=True)
    path.write_text(ELSEWHERE)
    waiting = Waiting()
    store = Store(entries, waiting.leases(), shares_work=lambda: False)
    assert store.get("key") is None and store.get("other") is None
    assert waiting.seconds == 0 and not os.path.exists(entries.path("other") + LEASE)
    store.put("key", b"program")
    assert store.get("key") == b"program"


def test_threads_of_one_process_compile_once(entries: Entries) -> None:
    store, together, compiled = Store(entries, Leases()), threading.Barrier(4), []

    def use() -> None:
        together.wait()
        if store.get("key") is None:
            compiled.append("key")
            store.put("key", b"program")

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled == ["key"]


FORK = """
import os, sys
from firstlight.warmstart.leases import Leases

leases = Leases()
assert leases.take(sys.argv[1])
child = os.fork()
if not child:
    leases.release()
    os._exit(not (os.path.exists(sys.argv[1]) and leases.take(sys.argv[1] + "2")))
assert os.waitpid(child, 0)[1] == 0 and os.path.exists(sys.argv[1])
leases.release()
assert not os.path.exists(sys.argv[1])
"""


def test_a_child_has_none_of_the_leases_of_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path / "lease")]
    subprocess.run(command, check=True, timeout=60)


COMPILE_ALL = """
import hashlib, os, sys
from firstlight.warmstart.entries import Entries
from firstlight.warmstart.leases import Leases
from firstlight.warmstart.store import Store

store = Store(Entries(sys.argv[1], "kind", 2**32), Leases())
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
sys.stdin.read()  # all begin at once
for number in range(12):
    key = f"key {number}"
    value = store.get(key)
    if value is None:
        os.write(log, f"{key}\\n".encode())
        value = hashlib.pbkdf2_hmac("sha256", key.encode(), b"", 50_000) * 1000
        store.put(key, value)
    print(key, hashlib.sha256(value).hexdigest())
"""


def test_eight_processes_compile_each_program_exactly_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPILE_ALL, str(tmp_path / "root"), str(tmp_path / "log")]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for process in processes:
        process.stdin.close()  # type: ignore[union-attr]
    outputs = {process.stdout.read() for process in processes}  # type: ignore[union-attr]
    for process in processes:
        process.stdout.close()  # type: ignore[union-attr]
        assert process.wait() == 0
    compiled = Counter((tmp_path / "log").read_text().splitlines())
    assert compiled == {f"key {number}": 1 for number in range(12)}
    assert len(outputs) == 1


ARENA = """
import json, os, signal, sys
from firstlight.warmstart import entries as entries_module, leases, store as store_module

OURS = {module.__file__ for module in (entries_module, leases, store_module)}
VALUE = bytes(range(256)) * 100
entries = entries_module.Entries(sys.argv[1], "kind", 2**32)

def in_child(key, lines=None, number=None):
    '''Get it or compile it in a process, which a signal hits before so many lines of the store.'''
    pid = os.fork()
    if pid:
        return pid
    code, done = 9, 0

    def at_line(frame, event, _):
        nonlocal done
        if frame.f_code.co_filename not in OURS:
            return None
        done += event == "line"
        if event == "line" and done == lines:
            os.kill(os.getpid(), number)
        return at_line

    try:
        store = store_module.Store(entries, leases.Leases(seconds=0.1))
        sys.settrace(at_line)
        found = store.get(key)
        if found is None:
            store.put(key, VALUE)
        sys.settrace(None)
        os.write(out, str(done).encode())
        code = found not in (None, VALUE)
    finally:
        os._exit(code)

pipe, out = os.pipe()
os.waitpid(in_child("all lines"), 0)
total = int(os.read(pipe, 10))
wrong = 0
found = {"lease": 0, "entry": 0, "unfinished": 0}
for round, line in enumerate(range(1, total + 1, 2)):  # the file is unfinished during four lines
    key, number = f"key {round}", (signal.SIGKILL, signal.SIGSTOP)[round % 2]
    victim = in_child(key, line, number)
    status = os.waitpid(victim, os.WUNTRACED)[1]
    folder = os.path.dirname(entries.path(key))
    files = os.listdir(folder) if os.path.exists(folder) else []
    found["lease"] += any(name.endswith(".lease") for name in files)
    found["entry"] += os.path.exists(entries.path(key))
    found["unfinished"] += any(name.endswith(".unfinished") for name in files)
    survivors = [in_child(key) for _ in range(2)]
    wrong += sum(os.waitpid(survivor, 0)[1] != 0 for survivor in survivors)
    if os.WIFSTOPPED(status):
        os.kill(victim, signal.SIGCONT)  # its put comes late, over that of the others
        wrong += os.waitpid(victim, 0)[1] != 0
    wrong += entries.read(key) != VALUE
print(json.dumps({"wrong": wrong, "lines": total, **found}))
"""


def test_a_process_killed_or_stopped_at_any_moment_blocks_nobody_and_leaves_no_torn_entry(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ARENA, str(tmp_path / "root")],
        capture_output=True,
        text=True,
        timeout=60,  # who is blocked does not end
        check=True,
    )
    found = json.loads(done.stdout)
    assert found.pop("wrong") == 0
    assert min(found.values()) >= 1, found  # the moments were of all kinds
