"""What a reader asks of the recorded description of a machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Of the CPU, taken by others when a run begins: from here on its numbers are noisier for it.
NOISY_SHARE = 0.1
#: What is recorded is published: a variable of such a name never is.
SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|PASS$|CREDENTIAL|AUTH(?!OR(?!I))|COOKIE|PRIVATE|DSN$|CONN\w*STR",
    re.IGNORECASE,
)


def noisy_share(host: Mapping[str, Any]) -> float | None:
    """Share of the CPU used by other programs when a run began; None if too small to mention."""
    busy = host.get("cpu_busy_ratio")
    if isinstance(busy, bool) or not isinstance(busy, (int, float)) or not busy > NOISY_SHARE:
        return None
    return float(busy)
