"""`scale cost`: the crossovers in text and JSON, the measurement beside them, the plot."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from scaling.accounting import Shape
from scaling.cli import cli
from scaling.errors import ScalingError


def run(*arguments):
    return CliRunner().invoke(cli, ["cost", *arguments], catch_exceptions=True)


def as_json(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_exact_n_is_in_the_output():
    data = as_json("--preset", "lecture")
    assert {row["against"]: row["exact"] for row in data["crossovers"]} == {
        "projections": 128.0, "MLP": 256.0, "projections + MLP": 384.0, "recurrent layer": 64.0,
    }  # fmt: skip
    text = run("--preset", "lecture").stdout
    for words in ("2 n^2 d = 4 n d^2", "384", "385", "n / d"):
        assert words in text


def test_the_table_follows_the_lengths_asked_for():
    data = as_json("--preset", "gpt2", "--tokens", "1K", "--tokens", "8192", "--causal")
    assert [row["tokens"] for row in data["costs"]] == [1000, 8192]
    assert data["costs"][1]["attention"] == 8192 * 8193 * 768
    assert data["costs"][0]["memory_bytes_float32"]["scores"] == 12 * 1000**2 * 4


def test_measured_beside_the_theory(tmp_path):
    pytest.importorskip("torch")
    from sweeps.attention_timing import time_layer

    picture = tmp_path / "cost.png"
    flags = ["--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--vocab-size", "9", "--context", "9"]
    data = as_json(*flags, "--measure", "--plot", str(picture))
    rows = data["measured"]["timings"]
    assert [row["tokens"] for row in rows] == sorted({row["tokens"] for row in rows})
    for name in ("fused_attention", "projections", "mlp", "recurrent"):
        assert all(row[name] > 0 for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")
    short, long = time_layer(Shape(16, 1, 2, 9, 9), [64, 1024], repeats=2)
    assert long.explicit_attention > 16 * short.explicit_attention  # n^2: 256 times the work
    assert long.mlp < 100 * short.mlp  # n: 16 times


def test_measuring_without_torch_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from scaling.cli import main; sys.argv = ['scale', 'cost', '--preset', 'lecture', '--measure']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "Error: --measure needs torch, which is not installed: pip install 'isoflop[train]'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--d-model"),
        (["--preset", "lecture", "--tokens", "none"], 'cannot read "none"'),
        (["--preset", "lecture", "--plot", "cost.bmp"], '".bmp" file'),
    ],
)
def test_mistakes_have_one_message(arguments, message):
    done = run(*arguments)
    assert isinstance(done.exception, ScalingError)
    assert message in str(done.exception)
