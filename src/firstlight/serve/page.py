"""The page at `/`: the models, their latencies, and a form to try a request."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from itertools import accumulate

from firstlight.present.document import document, masthead, packaged, text_table
from firstlight.present.plain_text import escaped
from firstlight.present.quantities import ABSENT, count, counted, seconds, size
from firstlight.present.svg import canvas, rectangle, text, title
from firstlight.serve.compiled_models import example_rows
from firstlight.serve.models import Models, Served
from firstlight.telemetry.values import Histogram

_WIDTH, _HEIGHT, _FLOOR = 520.0, 130.0, 104.0
_STYLE = """
.bar { fill: var(--p-first_execute); }
textarea { width: 100%; min-height: 7rem; padding: .5rem; color: inherit;
  font: .8125rem/1.45 ui-monospace, monospace; }
textarea, button, input[type=password], select { background: var(--raised);
  border: 1px solid var(--rule); border-radius: 4px; }
button, input[type=password], select { font: inherit; color: inherit; padding: .3rem .8rem; }
"""


def render(models: Models, ready: bool, compiles: int, startup_seconds: float) -> str:
    """The current page; its script refreshes it."""
    state = "Ready" if ready else "Not ready"
    badge = f'<span class="badge{" fine" if ready else ""}">{state}</span>'
    met = f"{counted(compiles, 'compile') if compiles else 'No compiles'} during requests"
    lead = f"<p>{badge} after {seconds(startup_seconds)}. {met}.</p>"
    body = "".join(_model(role, s) for n in models.names.values() for role, s in n.versions())
    links = (
        '<p class="hint"><a href="/openapi.json">OpenAPI</a> · <a href="/metrics">Metrics</a> · '
        '<a href="/v2">Open Inference Protocol</a></p>'
    )
    return _page(f'<div id="live">{lead}{links}{body}</div>', _try(models))


def render_locked() -> str:
    """The page for a browser without the token."""
    ask = (
        '<div id="live"><p>This server asks for a token.</p><form id="unlock">'
        '<label>Token <input type="password" id="token" autocomplete="off"></label> '
        "<button>Show</button></form></div>"
    )
    return _page(ask, "")


def _page(live: str, rest: str) -> str:
    head = masthead("Models being served", "")
    script = packaged("page.js", "firstlight.serve")
    return document(
        "Firstlight: models", head + live + rest, style=_STYLE, script=script, asks_server=True
    )


def _model(role: str, served: Served) -> str:
    model, loaded = served.model, served.loaded
    name = f"{model.name} {model.version}" + ("" if role == "current" else f" ({role})")
    facts = (
        ("Answered", count(served.succeeded.value)),
        ("Waiting rows", count(sum(lane.queued_rows for lane in served.lanes.values()))),
        ("p50", _quantile(served.warm, 0.5)),
        ("p99", _quantile(served.warm, 0.99)),
        ("Memory", size(loaded.memory_bytes)),
    )
    essentials = "".join(f"<span>{about} <b>{value}</b></span>" for about, value in facts)
    tensors = [
        (t.name, kind, t.datatype, "rows × " + " × ".join(map(str, t.shape)) if t.shape else "rows")
        for kind, group in (
            ("input", loaded.signature.inputs),
            ("output", loaded.signature.outputs),
        )
        for t in group
    ]
    return (
        f"<section><h2>{escaped(name)}</h2><p>{escaped(model.about)}</p>"
        f'<p class="essentials">{essentials}</p>{_latency(served.warm)}'
        f"{text_table(('Tensor', '', 'Type', 'Shape'), tensors)}"
        f'<details class="more"><summary>Buckets</summary>{_buckets(served)}</details></section>'
    )


def _buckets(served: Served) -> str:
    rows = [
        (
            str(bucket.rows),
            ", ".join(map(str, bucket.sizes)) or ABSENT,
            seconds(bucket.seconds),
            seconds(bucket.load_seconds),
            "cache" if bucket.from_cache else "compiled",
        )
        for bucket in served.loaded.buckets
    ]
    return text_table(("Rows", "Variable axes", "One batch", "Load", "From"), rows)


def _quantile(histogram: Histogram, share: float) -> str:
    """The upper bound of a quantile: that of the histogram bucket it falls into."""
    total = sum(histogram.counts)
    if not total:
        return ABSENT
    bounds: Iterable[float] = (*histogram.bounds, float("inf"))
    for bound, below in zip(bounds, accumulate(histogram.counts), strict=True):
        if below >= share * total:
            return f"≤ {seconds(bound)}" if bound < float("inf") else "longer"
    return ABSENT


def _latency(histogram: Histogram) -> str:
    """A bar chart of requests by latency, from the first to the last non-empty bucket."""
    filled = [i for i, count in enumerate(histogram.counts) if count]
    if not filled:
        return '<p class="hint">No request was answered yet.</p>'
    first, last = filled[0], filled[-1]
    most = max(histogram.counts)
    step = min(_WIDTH / (last - first + 1), 90.0)
    parts = []
    for place, i in enumerate(range(first, last + 1)):
        bound = histogram.bounds[i] if i < len(histogram.bounds) else None
        label = "longer" if bound is None else f"≤ {seconds(bound)}"
        height = (_FLOOR - 14) * histogram.counts[i] / most
        tip = title(f"{label}: {histogram.counts[i]} requests")
        parts.append(rectangle(step * place + 2, _FLOOR - height, step - 4, height, "bar", tip))
        parts.append(text(step * (place + 0.5), _FLOOR + 16, label, "tick", "middle"))
    drawn = canvas(_WIDTH, _HEIGHT, "Requests by latency", "".join(parts), "wide")
    return f"<figure>{drawn}<figcaption>Requests by latency</figcaption></figure>"


def _try(models: Models) -> str:
    examples = {name: _example(entry.current) for name, entry in models.names.items()}
    choices = "".join(f"<option>{html.escape(name)}</option>" for name in examples)
    data = html.escape(json.dumps(examples))
    return (
        f'<section id="try" data-examples="{data}"><h2>Try a request</h2>'
        f'<p><select id="model" aria-label="Model">{choices}</select> '
        '<button id="send" type="button">Send</button></p>'
        '<textarea id="request" aria-label="Request" spellcheck="false"></textarea>'
        '<pre id="answer" aria-live="polite">The answer appears here.</pre></section>'
    )


def _example(served: Served) -> str:
    signature = served.loaded.signature
    arrays = example_rows(signature, 1, signature.lanes[0])
    named = zip(signature.inputs, arrays, strict=True)
    shown = {t.name: a.tolist() for t, a in named if a.size <= 256 or t.default is None}
    return json.dumps(shown) if sum(a.size for a in arrays) <= 4096 else "{}"
