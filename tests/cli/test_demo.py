"""`scale demo` in miniature: what it prints, what it writes, what it refuses."""

import json

import matplotlib.pyplot as plt
import pytest
from click.testing import CliRunner

from scaling.cli import cli
from scaling.cli.text_chart import line_chart
from scaling.errors import ScalingError
from sweeps.model_file import load_model

PICTURES = ("loss.png", "mask.png", "heads.png", "temperature.png")


def run(*arguments):
    return CliRunner().invoke(cli, ["demo", *arguments])


def test_a_short_demo_prints_and_writes_everything(tmp_path):
    out = tmp_path / "demo"
    done = run("--out", str(out), "--tokens", "20K", "--cheat")
    assert done.exit_code == 0, done.output
    assert "2 blocks of 49,408 parameters" in done.stdout
    assert "49,408 per block, 139,904 in all" in done.stdout
    for name in PICTURES:
        assert (out / name).read_bytes().startswith(b"\x89PNG"), name
    saved, cheat = load_model(out / "model.pt"), load_model(out / "model-without-mask.pt")
    assert saved.masked and not cheat.masked
    assert saved.about["tokens"] == 20_000
    data = json.loads((out / "demo.json").read_text())
    assert set(data["runs"]) == {"causal mask", "without the mask"}
    assert [row["temperature"] for row in data["temperatures"]] == [0.1, 0.5, 1.0, 2.0, 10.0]


def test_json_alone_is_printed_for_scripts(tmp_path, monkeypatch):
    monkeypatch.setattr("sweeps.cli.demo.save_figure", lambda figure, path: plt.close(figure))
    done = run("--out", str(tmp_path), "--tokens", "2K", "--positions", "rotary", "--json")
    data = json.loads(done.stdout)
    assert data["runs"]["causal mask"]["params"] == 139904 - 128 * 64
    assert len(data["files"]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "0"], "must be above zero"),
        (["--tokens", "10"], "less than one batch"),
        (["--corpus", "web"], 'unknown corpus "web"'),
        (["--prompt", ""], "--prompt is empty"),
    ],
)
def test_mistakes_have_one_message(tmp_path, arguments, message):
    done = run("--out", str(tmp_path / "demo"), *arguments)
    assert isinstance(done.exception, ScalingError), done.output
    assert message in str(done.exception)


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "demo").write_text("")
    assert "is a file; give a folder" in str(run("--out", str(tmp_path / "demo")).exception)


def test_a_chart_in_the_terminal_falls_with_its_values():
    lines = line_chart([4.0, 3.0, 2.0, 1.0], width=8, height=4).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("4.00 ┤") and lines[-1].startswith("1.00 ┤")
    drawn = [[i for i, c in enumerate(line.partition("┤")[2]) if c != "\u2800"] for line in lines]
    assert all(drawn) and drawn[0][0] == 0 and drawn[-1][-1] == 7
    assert [row[0] for row in drawn] == sorted(row[0] for row in drawn)
    assert line_chart([]) == ""
    assert len(line_chart([2.0, 2.0], width=5, height=2).splitlines()) == 2
