"""Fixtures of the sweep's tests: configurations, a small text, and a training function that takes milliseconds."""

import os
import sys
from pathlib import Path

import pytest

from scaling.accounting import Shape
from sweeps.recipe import Recipe, resolve

HERE = Path(__file__).parent
FAKE = "fake_training:train_trunk"


@pytest.fixture
def make_config():
    """A run of d_model 16 with 64 tokens a batch; keywords override tokens, seed, width and schedule."""

    def make(tokens=6400, *, seed=0, d_model=16, corpus_hash="0" * 16, corpus="text:nowhere", schedule="wsd"):
        shape = Shape(d_model=d_model, n_layers=2, n_heads=1, vocab_size=256, context=32, d_ff=4 * d_model)
        recipe = Recipe(batch_tokens=64, schedule=schedule, warmup_steps=5)
        return resolve(
            shape, tokens, corpus=corpus, corpus_hash=corpus_hash, recipe=recipe, seed=seed, attention="fused"
        )

    return make


@pytest.fixture
def fake_training(monkeypatch):
    """Makes "fake_training:train_trunk" importable here and in worker processes; returns that name."""
    monkeypatch.syspath_prepend(str(HERE))
    paths = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    yield FAKE
    sys.modules.pop("fake_training", None)


@pytest.fixture
def text_corpus(tmp_path, monkeypatch):
    """The specification of a folder of a few small texts, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(20):
        lines = (f"line {j} of document {i} says {i * j} and {j - i}" for j in range(40))
        (folder / f"{i}.txt").write_text("\n".join(lines))
    return f"text:{folder}"


@pytest.fixture
def write_grid(tmp_path, text_corpus):
    """Writes a grid.toml of two sizes, two token counts and two seeds; further lines or replacements by argument."""

    def write(extra="", *, tokens='["64K", "128K"]', seeds=2, sizes="{ d_model = 16, n_layers = 2 }"):
        path = tmp_path / "grid.toml"
        path.write_text(
            f'corpus = "{text_corpus}"\nsizes = [{sizes}, {{ d_model = 32, n_layers = 2 }}]\ntokens = {tokens}\n'
            f'seeds = {seeds}\ndevice = "cpu"\ndtype = "float32"\nattention = "fused"\n{extra}'
        )
        return path

    return write
