"""How many replicas: decided in Ray Serve's controller, from the queues of the replicas."""

from __future__ import annotations

import math
from typing import Any

#: Batches computed and waiting per replica; above it, more replicas are wanted.
TARGET_LOAD = 0.8


def replicas_for_queues(context: Any) -> tuple[int, dict[str, Any]]:
    """The number of replicas that should be, as a policy of Ray Serve says it.

    How long it has to be so before there are more or fewer is in the configuration.

    context: Ray's `AutoscalingContext`, with what `Replica.record_autoscaling_stats` said.
    """
    found = context.aggregated_metrics or {}
    load = sum(sum(found.get(name, {}).values()) for name in ("waiting_batches", "busy_share"))
    wanted = math.ceil(load / TARGET_LOAD - 1e-9)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return min(max(wanted, least), most), {}
