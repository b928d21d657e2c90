"""The README's links lead somewhere, and its commands run."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaling.cli import COMMANDS, cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = sorted((ROOT / "docs").glob("*.md"))
COMMAND_LINES = re.findall(r"^    (scale (?:fit|allocate) .*)$", README, flags=re.M)


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_command_is_named():
    for name in COMMANDS:
        assert f"scale {name}" in README, name


def test_there_are_commands_to_run():
    assert len(COMMAND_LINES) >= 4


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_commands_run(line, tmp_path, monkeypatch):
    arguments = shlex.split(line, comments=True)[1:]
    for option in ("--out", "--plot"):
        if option in arguments:
            place = arguments.index(option) + 1
            arguments[place] = str(tmp_path / Path(arguments[place]).name)
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output


def test_the_output_shown_is_that_of_the_shipped_run(monkeypatch):
    if (ROOT / "results/quickstart/runs.shipped.csv").exists():
        pytest.skip("make quickstart has put this machine's own run in the place of the shipped one")
    monkeypatch.chdir(ROOT)
    line = next(line for line in COMMAND_LINES if "--vocab" in line)
    shown = README.split(line)[1].split("```text\n")[1].split("...")[0].strip().splitlines()
    printed = CliRunner().invoke(cli, shlex.split(line)[1:]).stdout.splitlines()
    assert printed[: len(shown)] == shown
