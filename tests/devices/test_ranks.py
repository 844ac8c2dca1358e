"""Claims about trainings with DistributedDataParallel: the gradient is that of all events."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from firstlight.losses import LossError
from firstlight.torch import SoftHistogram, sum_over_ranks

RANKS = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two real processes."""
    file = tmp_path_factory.mktemp("ranks") / "meeting"
    script = Path(__file__).with_name("on_ranks.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(RANKS), str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate(timeout=600) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, outputs
    result: dict[str, Any] = json.loads(outputs[0][0])
    return result


@pytest.mark.slow
@pytest.mark.parametrize("case", ["uneven", "none on one rank", "a group of one of two ranks"])
def test_the_averaged_gradient_is_that_of_all_events_of_the_group_in_one_process(
    found: dict[str, Any], case: str
) -> None:
    assert found[case]["size"] > 0.1
    assert found[case]["histogram"] < 1e-12
    assert case == "none on one rank" or found[case]["sum"] < 1e-12


@pytest.mark.slow
def test_all_ranks_refuse_no_events_and_a_nan_score_of_one_together(found: dict[str, Any]) -> None:
    """One alone would leave the others waiting."""
    assert found["refused by"] == [RANKS] * 4


def test_without_a_process_group_a_sum_over_ranks_says_what_to_call() -> None:
    with pytest.raises(LossError, match="init_process_group"):
        sum_over_ranks(torch.ones(3))
    with pytest.raises(LossError, match="init_process_group"):
        SoftHistogram([0.0, 1.0], group="world")(torch.ones(3))
