"""docs/tutorial.md says what its commands print: the Python in it is run, and so is every command that only counts."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaling.cli import cli

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "tutorial.md").read_text(encoding="utf-8")
COUNTING = ("count", "cost", "law")  # the same on every machine; what is timed or trained is not


def console_blocks():
    for block in re.findall(r"```console\n\$ scale (.*?)```", TEXT, flags=re.DOTALL):
        command, _, output = block.partition("\n")
        if command.split()[0] in COUNTING and "--measure" not in command:
            yield command, output


@pytest.mark.parametrize(("command", "output"), list(console_blocks()))
def test_commands_print_what_the_tutorial_shows(command, output):
    done = CliRunner().invoke(cli, shlex.split(command))
    assert done.exit_code == 0, done.output
    assert [line.rstrip() for line in done.stdout.splitlines()] == output.rstrip("\n").splitlines()


def test_there_are_commands_to_check():
    assert {command.split()[0] for command, _ in console_blocks()} == set(COUNTING)


def test_the_python_of_the_tutorial_runs():
    blocks = "".join(re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, {}, "tutorial.md", "tutorial.md", 0)
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert results.attempted >= 15
    assert results.failed == 0, "".join(report)


@pytest.mark.parametrize("page", ["tutorial.md", "method.md"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", (DOCS / page).read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = DOCS / path if path else DOCS / page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, target
