"""Runbooks: one for each alert and each failure, whose commands exist."""

from __future__ import annotations

import re
import shlex

import pytest

from firstlight.cli import COMMANDS, build_parser
from firstlight.ops import runbooks
from firstlight.ops.chaos import FAILURES, MODES, Mode
from firstlight.ops.rules import Settings, groups

TEXTS = runbooks.texts()
RULES = [rule for group in groups(Settings())["groups"] for rule in group["rules"]]


def commands() -> list[str]:
    found = [
        line.strip().partition("  #")[0].strip()
        for text in TEXTS.values()
        for block in re.findall(r"```sh\n(.*?)```", text, re.S)
        for line in block.splitlines()
    ]
    found += [c for text in TEXTS.values() for c in re.findall(r"`(firstlight [^`…]+)`", text)]
    return [
        part
        for line in found
        for part in re.split(r"; ", line)
        if re.search(r"(^| )firstlight ", part)
    ]


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_the_commands_of_runbooks_are_commands_of_this_project(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command[command.index("firstlight ") :])[1:]
    assert words[0] in COMMANDS
    named = (["ops", "build"], ["incident", "collect"])
    if words[-1] in ("…", "--help") or len(words) == 1 or words in named:
        return  # only named
    _, unknown = build_parser(words[0]).parse_known_args(words)
    assert not unknown


def test_every_alert_has_a_runbook_that_names_it() -> None:
    for rule in RULES:
        if "alert" not in rule:
            continue
        text = TEXTS[rule["labels"]["runbook"]]
        named = re.findall(r"`(Firstlight\w+)…?`", text)
        assert any(rule["alert"].startswith(name) for name in named), rule["alert"]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_failure_has_a_program_an_alert_and_a_runbook_to_practise_with(
    mode: Mode,
) -> None:
    assert (FAILURES / f"{mode.program}.py").is_file()
    assert mode.alert in {rule.get("alert") for rule in RULES}
    assert f"firstlight chaos {mode.name}" in TEXTS[mode.name]
    assert mode.broken != mode.mended


def test_runbooks_are_short() -> None:
    assert max(len(text.splitlines()) for name, text in TEXTS.items() if name != "postmortem") < 45


def test_every_alert_and_failure_is_in_the_guide() -> None:
    guide = (runbooks.folder().parent / "operate.md").read_text()
    assert all(f"`{rule['alert']}`" in guide for rule in RULES if "alert" in rule)
    assert all(f"| `{mode.name}` | {mode.about} |" in guide for mode in MODES)
