"""`scale count`: flags, presets and configs; text for people, JSON for scripts, one message for each mistake."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from scaling.cli import cli
from scaling.errors import ScalingError

LECTURE = "count --d-model 64 --n-layers 2 --n-heads 4 --vocab-size 256 --context 128"


def run(command):
    return CliRunner().invoke(cli, command.split())


def as_json(command):
    done = CliRunner().invoke(cli, [*command.split(), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_lectures_model_by_flags_and_by_name():
    data = as_json(LECTURE)
    assert data["params"]["per_block"] == 49408
    assert data["params"]["total"] == 139904
    assert data == as_json("count --preset lecture")
    assert "49,408" in run(LECTURE).stdout


def test_gpt2_small_by_preset_and_by_config(tmp_path):
    data = as_json("count --preset gpt2")
    assert data["params"]["total"] == 124439808
    assert {row["name"]: row["params"] for row in data["params_conventions"]}["without positions"] == 123653376
    assert data["params"]["block_matmul"] == 84934656
    path = tmp_path / "config.json"
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_ctx": 1024}
    path.write_text(json.dumps(config))
    assert as_json(f"count --config {path}")["params"] == data["params"]


def test_every_number_has_its_convention():
    done = run("count --preset gpt2 --tokens 300B")
    for label in ("6N", "kaplan2020", "hoffmann2022", "causal", "Head 2Vd forward, tied or not", "Input embedding: 0"):
        assert label in done.stdout
    assert "attention is 15% of 6N" in done.stderr
    data = as_json("count --preset gpt2 --tokens 300B")
    assert data["training"]["flops"] == 6 * 124439808 * 300e9
    parts = data["parts_per_token"]
    assert parts["attention_training"] == 2 * parts["attention_training_causal"] == 12 * 12 * 1024 * 768
    assert data["memory_bytes"]["scores"] == 12 * 1024**2 * 2


def test_flags_change_a_preset():
    tied, untied = (as_json(f"count --preset gpt2 {flag}") for flag in ("--tied", "--untied"))
    assert untied["params"]["total"] - tied["params"]["total"] == 50257 * 768
    assert untied["parts_per_token"] | {"attention_share_of_6N": 0} == tied["parts_per_token"] | {
        "attention_share_of_6N": 0
    }
    assert as_json("count --preset lecture --expansion 3.5")["shape"]["d_ff"] == 224
    grouped = as_json("count --preset lecture --n-kv-heads 1 --gated --positions rotary --norm rms --biases qkv")
    assert grouped["params"]["groups"]["positions"] == 0
    assert grouped["params"]["groups"]["mlp"] == 2 * 3 * 64 * 256


def test_a_gated_mlp_of_three_times_the_width():
    data = as_json("count --preset qwen1.5-72b")
    assert data["params"]["total"] == 72287920128


def test_a_run_from_its_hours_labels_inference():
    done = run("count --params 37B --tokens 14.8T --gpu-hours 2.79M --peak 1.513e15")
    assert "Training 6ND: 3.286e+24" in done.stdout
    assert "(MFU, by 6ND): 21.6%" in done.stdout
    assert "Forward pass only, 2ND (inference, not training): 1.095e+24 FLOP, 7.2%" in done.stdout
    data = as_json("count --params 37B --tokens 14.8T --gpu-hours 2.79M --peak 1.513e15")
    assert data["training_flops_6ND"] == pytest.approx(3.29e24, rel=2e-3)
    assert data["mfu"] == pytest.approx(0.216, abs=5e-4)
    assert as_json("count --params 7B --tokens 2T") == {
        "params": 7e9, "tokens": 2e12, "training_flops_6ND": 8.4e22, "inference_flops_2ND": 2.8e22,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("count", "--d-model, --n-layers, --n-heads, --vocab-size, --context missing"),
        ("count --preset gpt9", 'unknown preset "gpt9"'),
        ("count --config nowhere.json", "nowhere.json"),
        ("count --config .", "is a folder"),
        ("count --preset lecture --n-heads 7", "not divisible by n_heads = 7"),
        ("count --preset lecture --d-model 0", "d_model = 0"),
        ("count --preset lecture --tokens many", 'cannot read "many"'),
        ("count --preset lecture --tokens -5", "must be above zero"),
        ("count --expansion 2", "--expansion needs --d-model"),
        ("count --params 7B", "give --tokens as well"),
    ],
)
def test_mistakes_in_the_input_have_one_message(command, message):
    done = run(command)
    assert isinstance(done.exception, ScalingError)
    assert message in str(done.exception)


@pytest.mark.parametrize(
    "command",
    [
        "count --preset lecture --config a.json",
        "count --preset lecture --d-ff 8 --expansion 2",
        "count --params 7B --tokens 1T --preset lecture",
        "count --preset lecture --peak 1e15",
        "count --params 7B --tokens 1T --peak 1e15",
        "count --preset lecture --positions absolute",
        "count --unknown",
    ],
)
def test_misuse_is_exit_status_2(command):
    assert run(command).exit_code == 2


def test_exit_status_and_message_from_the_shell():
    code = "import sys; from scaling.cli import main; sys.argv = ['scale', 'count']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: shape: --d-model")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [["count", "--preset", "gpt2"], ["cost", "--preset", "gpt2"], ["--help"]])
def test_counting_loads_no_heavy_library(arguments):
    code = (
        "import sys; from click.testing import CliRunner; from scaling.cli import cli\n"
        f"done = CliRunner().invoke(cli, {arguments!r}, catch_exceptions=False)\n"
        "assert done.exit_code == 0\n"
        "print([m for m in ('torch', 'numpy', 'scipy', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
