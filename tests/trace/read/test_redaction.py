"""Redacted logs have no value, key or rank of the user, and no hash that could be guessed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firstlight.trace.read.recompiles import is_number
from firstlight.trace.read.redaction import file, redacted

CALL: dict[str, Any] = {"event": "call", "call": 1, "function": {"name": "f"}, "object": 1}


def shown(**about: Any) -> Any:
    return json.loads(redacted(json.dumps({**CALL, **about})))


@pytest.mark.parametrize(
    "key",
    ["'John Smith'", '"O\'Brien"', "'a\\'b'", "948271", "('ward', 'Ann Lee')", "'/home/alice'"],
)
def test_keys_that_cannot_be_names_are_hashed_in_tree_and_path(key: str) -> None:
    told = shown(
        tree=f"PyTreeDef({{'patients': {{{key}: *}}}})",
        arrays=[[f"patients[{key}]", "float32", [3], False, None]],
    )
    for secret in ("John", "Brien", "a\\'b", "948271", "Ann Lee", "alice"):
        assert secret not in json.dumps(told)
    assert "patients" in told["tree"]  # a name stays


def test_names_indices_and_fields_of_a_path_stay() -> None:
    path = "state['layers'][12].kernel"
    told = shown(tree="PyTreeDef({'state': [*, *]})", arrays=[[path, "float32", [3], False, None]])
    assert told["arrays"][0][0] == path
    assert told["tree"] == "PyTreeDef({'state': [*, *]})"


@pytest.mark.parametrize(
    "tree",
    [
        "PyTreeDef({'x': CustomNode(Patient[('Smith', 47)], [*])})",
        "PyTreeDef({'x': *, 'John Smi… 1a2b3c4d",
    ],
)
def test_a_structure_is_shown_only_up_to_the_first_node_that_may_hold_values(tree: str) -> None:
    told, again, other = (shown(tree=t)["tree"] for t in (tree, tree, tree + " "))
    assert told == again != other  # equal structures stay equal
    assert "'x'" in told
    for secret in ("Smi", " 47", "1a2b3c4d"):  # a hash may have any two digits in it
        assert secret not in told


def test_numbers_given_as_static_values_are_values() -> None:
    told = shown(static={"pin": "948271", "rate": "0.125", "deep": "True"})["static"]
    assert told["deep"] == "True"
    assert "948271" not in json.dumps(told) and "0.125" not in json.dumps(told)
    # Numbers and objects have different remedies.
    assert is_number(told["pin"]) and is_number(told["rate"])
    assert not is_number(shown(static={"mode": "'fast'"})["static"]["mode"])


def test_a_checksum_of_code_is_replaced() -> None:
    told = [shown(function={"name": "f", "made_of": n})["function"] for n in (5, 5, 6, None)]
    assert told[0] == told[1] != told[2]
    assert told[0]["made_of"] != 5 and told[3]["made_of"] is None


def test_a_rank_is_kept_if_it_is_a_number() -> None:
    ranks = [shown(rank=rank).get("rank") for rank in ("7", "mynode-7", None)]
    assert ranks[0] == "7" and ranks[2] is None
    assert "mynode" not in ranks[1]


def test_hashes_cannot_be_looked_up_nor_compared_between_redactions() -> None:
    path = "/home/alice/x.py"
    assert file(path) == file(path)
    assert hashlib.sha256(path.encode()).hexdigest()[:8] not in file(path)
    source = f"from firstlight.trace.read.redaction import file; print(file({path!r}))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() != file(path)


def test_secrets_in_keys_and_numbers_are_removed(tmp_path: Path) -> None:
    program = """
import firstlight.trace.startup, jax, numpy as np
g = jax.jit(lambda d, pin: d["John Smith"] * 2, static_argnames="pin")
print(g({"John Smith": np.ones(3, np.float32)}, pin=948271))
"""
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FIRSTLIGHT_TRACE": str(tmp_path), "RANK": "mynode-7"},
        capture_output=True,
        timeout=200,
        check=True,
    )
    (log,) = tmp_path.glob("*.jsonl")
    plain = log.read_text()
    assert all(secret in plain for secret in ("John Smith", "948271", "mynode-7"))
    text = redacted(plain)
    assert not any(secret in text for secret in ("John Smith", "948271", "mynode-7"))
