"""The autoscaling policy: how many replicas the queues need; runs in Ray Serve's controller."""

from __future__ import annotations

import math
from typing import Any

#: Batches running and waiting per replica; above it, more replicas are needed.
TARGET_LOAD = 0.8


def replicas_for_queues(context: Any) -> tuple[int, dict[str, Any]]:
    """The wanted number of replicas, as a Ray Serve policy returns it.

    The configuration says how long a number must be wanted before replicas start or stop.

    context: Ray's `AutoscalingContext`, with the values of `Replica.record_autoscaling_stats`.
    """
    found = context.aggregated_metrics or {}
    load = sum(sum(found.get(name, {}).values()) for name in ("waiting_batches", "busy_share"))
    wanted = math.ceil(load / TARGET_LOAD - 1e-9)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return min(max(wanted, least), most), {}
