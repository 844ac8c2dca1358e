"""Every alert and every failure has a runbook whose commands exist."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from runbook_steps import Where, blocks

from firstlight.cli import COMMANDS, build_parser
from firstlight.ops import manifests, runbooks
from firstlight.ops.chaos import FAILURES, MODES, Mode
from firstlight.ops.dashboards import DASHBOARDS
from firstlight.ops.doctor import CHECKS
from firstlight.ops.rules import Settings, groups

TEXTS = runbooks.texts()
RULES = [rule for group in groups(Settings())["groups"] for rule in group["rules"]]


BLOCKS = [(name, block) for name, text in TEXTS.items() for block in blocks(text)]
#: Tools that need a cluster or a GPU, with the subcommands that runbooks may use.
CLUSTER_TOOLS = {"kubectl": {"cordon", "get", "logs", "rollout", "scale"}, "nvidia-smi": set()}


def commands() -> list[str]:
    found = [line for _, block in BLOCKS for line in block.lines]
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
    if words[-1] == "--help" or (len(words) <= 2 and not words[-1].startswith("-")):
        return  # only named
    _, unknown = build_parser(words[0]).parse_known_args(words)
    assert not unknown


def test_the_panels_checks_and_dashboards_that_runbooks_name_exist() -> None:
    known = {panel.title for board in DASHBOARDS for panel in board.panels}
    known |= {board.name for board in DASHBOARDS} | {check.name for check in CHECKS}
    named = {
        name for text in TEXTS.values() for name in re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", text)
    }
    assert named - known == set()


def test_every_placeholder_of_the_runbooks_is_explained_in_the_playbook() -> None:
    explained = set(re.findall(r"`([A-Z_]+)`", TEXTS["playbook"].partition("What no runbook")[0]))
    named = {
        word
        for _, block in BLOCKS
        for line in block.lines
        for word in re.findall(r"(?<![\w$-])[A-Z][A-Z_]+\b(?!=)", line)
    }
    variables = {"XLA_FLAGS"}  # an environment variable, not a placeholder
    assert named - variables == explained


def test_commands_for_a_cluster_or_gpu_are_marked_and_name_deployed_resources() -> None:
    deployed = {
        f"{manifest['kind'].lower()}/{manifest['metadata']['name']}"
        for manifest in manifests.documents().values()
        if "metadata" in manifest
    }
    for name, block in BLOCKS:
        for line in block.lines:
            words = shlex.split(line)
            assert (words[0] in CLUSTER_TOOLS) == (block.where is not Where.HERE), (name, line)
            if words[0] == "kubectl":
                assert words[1] in CLUSTER_TOOLS["kubectl"], line
                assert {word for word in words if "/" in word} <= deployed, line


def test_every_block_is_valid_shell() -> None:
    for name, block in BLOCKS:
        done = subprocess.run(["bash", "-n", "-c", "\n".join(block.lines)], check=False)
        assert done.returncode == 0, (name, block)


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
    assert max(len(text.splitlines()) for name, text in TEXTS.items() if name != "postmortem") <= 50


def test_every_alert_and_failure_is_in_the_guide() -> None:
    guide = (runbooks.folder().parent / "operate.md").read_text()
    assert all(f"`{rule['alert']}`" in guide for rule in RULES if "alert" in rule)
    assert all(f"| `{mode.name}` | {mode.about} |" in guide for mode in MODES)
