"""`scale generate`: streams, repeats, obeys its options, and leaves the terminal unharmed."""

import json

import pytest
import torch
from click.testing import CliRunner

from scaling.accounting import Shape
from scaling.cli import cli
from scaling.errors import ScalingError
from sweeps.model import Transformer
from sweeps.model_file import save_model


@pytest.fixture
def checkpoint(tmp_path):
    """A model that knows nothing, and prefers printable letters."""
    model = Transformer(Shape(16, 1, 2, 256, 32))
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(3))
    save_model(tmp_path / "model.pt", model, about={"mask": True})
    return str(tmp_path / "model.pt")


def run(*arguments):
    return CliRunner().invoke(cli, ["generate", *arguments])


def test_the_same_seed_writes_the_same_text(checkpoint):
    first, again, other = (run(checkpoint, "--prompt", "The ", "--seed", seed).stdout for seed in "112")
    assert first == again != other
    assert first.startswith("The ")


def test_options_reach_the_decoding(checkpoint):
    def text(*options):
        return json.loads(run(checkpoint, "--tokens", "40", "--json", *options).stdout)["text"]

    greedy = text("--temperature", "0")
    assert greedy == text("--temperature", "0", "--seed", "5") == text("--top-k", "1") == text("--top-p", "1e-9")
    assert greedy == text("--temperature", "1e-8")
    assert text("--seed", "1") == text("--seed", "1", "--no-cache")
    assert text("--seed", "1", "--temperature", "inf") != text("--seed", "1")


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    model = Transformer(Shape(8, 1, 1, 256, 16))
    with torch.no_grad():  # always the escape character
        model.norm.weight.zero_()
        model.norm.bias.fill_(1.0)
        model.head.weight[27] = 10.0
    save_model(tmp_path / "evil.pt", model)
    arguments = [str(tmp_path / "evil.pt"), "--prompt", "a", "--tokens", "5"]
    assert run(*arguments).stdout == "a" + "\ufffd" * 5 + "\n"
    assert json.loads(run(*arguments, "--json").stdout)["text"] == "\x1b" * 5


def test_a_model_without_a_mask_is_announced(tmp_path):
    save_model(tmp_path / "m.pt", Transformer(Shape(8, 1, 1, 256, 16)), about={"mask": False})
    assert "without the causal mask" in run(str(tmp_path / "m.pt"), "--tokens", "3").stderr


def test_mistakes_have_one_message(checkpoint, tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    for arguments, message in (
        ([str(tmp_path / "none.pt")], "none.pt: cannot be read"),
        ([str(tmp_path)], "is a folder"),
        ([str(tmp_path / "text.pt")], "not a model"),
        ([checkpoint, "--prompt", ""], "the prompt is empty"),
    ):
        done = run(*arguments)
        assert isinstance(done.exception, ScalingError), arguments
        assert message in str(done.exception)


@pytest.mark.parametrize(
    "options",
    [["--temperature", "-1"], ["--temperature", "nan"], ["--temperature", "x"], ["--top-k", "0"], ["--top-p", "1.5"],
     ["--tokens", "0"]],
)  # fmt: skip
def test_misuse_is_exit_status_2(checkpoint, options):
    assert run(checkpoint, *options).exit_code == 2
