"""Which cluster `--on` names, and what is said when there is none."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from firstlight.cli import main
from firstlight.cluster import connection
from firstlight.cluster.connection import connected, parse
from firstlight.cluster.errors import ClusterError, UnreachableError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ray", None),
        ("ray://head:10001", "ray://head:10001"),
        ("ray:10.0.0.7:6379", "10.0.0.7:6379"),
        ("ray:auto", "auto"),
        ("ray://[::1]:10001", "ray://[::1]:10001"),
    ],
)
def test_addresses_are_passed_on_as_ray_takes_them(
    text: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert parse(text) == address


def test_ray_without_an_address_means_that_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert parse("ray") == "ray://head:10001"


@pytest.mark.parametrize("text", ["", "dask", "ray://", "ray:head", "ray://head:0", "ray:h:99999"])
def test_an_invalid_address_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ClusterError, match=r"ray://HOST:PORT"):
        parse(text)


def test_an_address_that_does_not_answer_is_reported_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        port = free.getsockname()[1]
        with (
            pytest.raises(UnreachableError, match=f"127.0.0.1:{port}"),
            connected(f"ray://127.0.0.1:{port}"),
        ):
            pass


def test_without_ray_the_message_names_the_extra_and_the_exit_code_is_2(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(connection, "find_spec", lambda n: None if n == "ray" else found(n))
    assert main(["hf", "cls", str(workspace), "--on", "ray"]) == 2
    assert "pip install 'firstlight[ray]'" in capsys.readouterr().err


def test_ray_does_not_replace_this_processs_sigterm_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray, seen = pytest.importorskip("ray"), list[int]()
    ignored = ctypes.c_void_p(signal.SIG_IGN)

    def start(*_: Any) -> None:  # without telling Python, as Ray
        ctypes.CDLL(None).signal(signal.SIGTERM, ignored)

    monkeypatch.setattr(connection, "_start", start)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with connected("ray"):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


@pytest.mark.parametrize("address", ["ray://head", "local"])
def test_an_address_in_the_environment_need_not_have_a_port(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, started = pytest.importorskip("ray"), []
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(connection, "_start", lambda ray, given, files: started.append(given))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with connected("ray"):
        assert started == [address]


def test_an_unreachable_cluster_hints_at_the_token_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray")

    def refuse(**_: Any) -> None:
        raise ConnectionError("ray client connection timeout")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(UnreachableError, match=r"timeout.*RAY_AUTH_MODE=token"):
        connection._start(ray, "ray://head:10001", None)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(UnreachableError, match=r"timeout\.$"):
        connection._start(ray, "ray://head:10001", None)
