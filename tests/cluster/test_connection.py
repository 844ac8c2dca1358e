"""Which cluster `--on` names, and what is said when there is none."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import pytest

from firstlight.cli import main
from firstlight.cluster import connection
from firstlight.cluster.connection import Where, connected, parse
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
def test_an_address_is_taken_as_ray_takes_it(
    text: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert parse(text) == Where(address)


def test_ray_without_an_address_means_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert parse("ray") == Where("ray://head:10001")


@pytest.mark.parametrize("text", ["", "dask", "ray://", "ray:head", "ray://head:0", "ray:h:99999"])
def test_what_is_no_address_is_refused_with_the_forms_there_are(text: str) -> None:
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
