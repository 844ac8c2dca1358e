"""How many replicas: decided in Ray Serve's controller, from the queues of the replicas."""

from __future__ import annotations

import math
from typing import Any

#: Batches computed and waiting per replica; above it, more replicas are wanted.
TARGET_LOAD = 0.8
#: For how long fewer replicas must have been enough before some are let go.
PATIENCE_SECONDS = 60.0


def replicas_for_queues(context: Any) -> tuple[int, dict[str, Any]]:
    """The number of replicas that should be, and what to remember (Ray's form of a policy).

    context: Ray's `AutoscalingContext`, with what `Replica.record_autoscaling_stats` said.
    """
    found = context.aggregated_metrics or {}
    load = sum(sum(found.get(name, {}).values()) for name in ("waiting_batches", "busy_share"))
    now, wanted = context.current_time or 0.0, math.ceil(load / TARGET_LOAD - 1e-9)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    wanted = min(max(wanted, least), most)
    current = min(max(context.target_num_replicas, least), most)
    state = dict(context.policy_state or {})
    if wanted >= current:
        state.pop("enough_since", None)
        return wanted, state
    since = state.setdefault("enough_since", now)
    return (wanted if now - since >= PATIENCE_SECONDS else current), state
