"""A real Chromium for the tests of pages; the fixture `chromium` finds it."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)


def browse(
    chromium: str, profile: Path, *arguments: str, seconds: int = 5
) -> subprocess.CompletedProcess[str]:
    """Open what the arguments say; scripts of the page have so many seconds of its own time."""
    time = f"--virtual-time-budget={1000 * seconds}"
    command = [chromium, *FLAGS, time, f"--user-data-dir={profile}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def framed(page: str, width: int, height: int, script: str = "") -> str:
    """A page in a frame of that size: a window cannot be as narrow as a phone."""
    return (
        f"<!DOCTYPE html><body style='margin:0'>{script}<iframe style='border:0;width:{width}px;"
        f'height:{height}px\' srcdoc="{html.escape(page)}"></iframe>'
    )


def seen_in(dom: str) -> dict[str, Any]:
    """What a page left in `data-seen` of its body."""
    found = re.search(r'data-seen="([^"]*)"', dom)
    assert found, "the page reported nothing"
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen


def witness(chromium: str, folder: Path, page: str, width: int, script: str) -> dict[str, Any]:
    """What the script, within the page, posted to the page around it."""
    listen = (
        "<script>addEventListener('message', (event) => {"
        "document.body.dataset.seen = JSON.stringify(event.data); });</script>"
    )
    path = folder / "framed.html"
    path.write_text(framed(page.replace("<head>", f"<head>{script}"), width, 900, listen))
    arguments = ("--window-size=1400,1000", "--dump-dom", path.as_uri())
    return seen_in(browse(chromium, folder / "profile", *arguments).stdout)
