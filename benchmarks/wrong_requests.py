"""Wrong requests of every kind, for benchmarks/fuzz_serve.py and tests/serve."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

VALUES: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, 2**64, 10**400, 1e308, -0.0, "", "x", "FP32", "\ud800", [],
    {}, [[]], [[[[[[[[[1]]]]]]]]], [1, "2"], [1, [2]], {"a": {"b": []}}, "9" * 500, [1.5, 2, 3, 4],
    [1] * 65, [0, 10**30], [0], 10**30, 1e39, -1e39,
]  # fmt: skip
PATHS = [b"/v2/models/pair/infer", b"/models/pair", b"/v2/models/pair/versions/1/infer"]
ODD_PATHS = [b"/", b"*", b"//", b"/v2/models//infer", b"/v2/models/%00/infer", b"/models/\xff",
             b"/v2/health/x", b"/v2/models/pair/versions", b"http://h/models/pair"]  # fmt: skip
HEADERS = [
    b"inference-header-content-length: %d", b"firstlight-timeout: %d", b"content-encoding: x%d",
    b"firstlight-canary: %d", b"authorization: Bearer %d", b"expect: 100-continue%d",
    b"transfer-encoding: chunked, x%d", b"connection: %d", b"x-\xff: %d", b"accept: %d",
]  # fmt: skip


def valid() -> dict[str, Any]:
    return {
        "id": "1",
        "inputs": [
            {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1.0, 2, 3, 4]},
            {"name": "n", "shape": [2], "datatype": "INT32", "data": [1, 2]},
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
        "parameters": {"timeout": 1000000},
    }


def spoiled(draw: random.Random, tree: Any) -> Any:
    """Return a tree with one place changed, removed or doubled."""
    if draw.random() < 0.2 or not isinstance(tree, (dict, list)) or not tree:
        return draw.choice(VALUES)
    key = draw.choice(list(tree)) if isinstance(tree, dict) else draw.randrange(len(tree))
    changed = dict(tree) if isinstance(tree, dict) else list(tree)
    if draw.random() < 0.1:
        changed.pop(key)
    elif isinstance(changed, list) and draw.random() < 0.1:
        changed.append(tree[key])
    else:
        changed[key] = spoiled(draw, tree[key])
    return changed


def body_of(draw: random.Random) -> bytes:
    kind = draw.randrange(8)
    if kind == 0:
        return bytes(draw.getrandbits(8) for _ in range(draw.randrange(60)))
    if kind == 1:
        return draw.choice([b"[", b'{"x":[', b'{"inputs":[']) * draw.randrange(1, 5000)
    tree: Any = valid() if kind < 5 else {"x": [[1.0, 2], [3, 4]], "n": [1, 2]}
    for _ in range(draw.randrange(3)):
        tree = spoiled(draw, tree)
    body = json.dumps(tree).encode("utf-8", "surrogatepass")
    if kind == 4:
        body += np.ones(draw.randrange(5), np.float32).tobytes()
    if draw.random() < 0.1:
        at = draw.randrange(len(body) + 1)
        body = body[:at] + bytes([draw.getrandbits(8)]) + body[at + 1 :]
    return body


def request_of(draw: random.Random) -> bytes:
    body = body_of(draw)
    path = draw.choice(PATHS) if draw.random() < 0.9 else draw.choice(ODD_PATHS)
    method = draw.choice([b"POST"] * 40 + [b"GET", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT"])
    length = len(body) if draw.random() < 0.95 else draw.choice([0, 5, 10**5, 10**30])
    lines = [b"%s %s HTTP/1.1" % (method, path), b"host: h", b"content-length: %d" % length]
    for _ in range(draw.randrange(3)):
        lines.append(draw.choice(HEADERS) % draw.choice([0, 1, 7, len(body), -3, 10**20]))
    data = b"\r\n".join(lines) + b"\r\n\r\n" + body
    if draw.random() < 0.03:
        data = data[: draw.randrange(len(data))]  # cut off
    elif draw.random() < 0.03:
        at = draw.randrange(len(data))
        data = data[:at] + bytes([draw.getrandbits(8)]) + data[at + 1 :]
    return data
