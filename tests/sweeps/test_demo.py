"""The class demo on texts small enough to say beforehand what each model can and cannot learn."""

import math

import numpy as np
import pytest
import torch

from scaling.accounting import Shape
from scaling.errors import InputError
from sweeps.demo import DemoConfig, count, demo_text, evaluate, temperature_sweep, train_demo, view_head
from sweeps.model import Transformer, attention_weights

SMALL = Shape(d_model=32, n_layers=1, n_heads=2, vocab_size=256, context=8)
LETTERS = b"abcdefgh"


@pytest.fixture
def noise(tmp_path, monkeypatch):
    """A text of independent letters: no model that sees only the past can do better than ln 8 a byte."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "noise.txt"
    letters = np.frombuffer(LETTERS, np.uint8)
    lines = np.random.default_rng(0).choice(letters, size=(600, 60))
    path.write_bytes(b"\n".join(line.tobytes() for line in lines))
    return f"text:{path}"


def small_run(corpus, **options):
    settings = {"shape": SMALL, "corpus": corpus, "tokens": 200_000, "batch_tokens": 512, "learning_rate": 1e-2}
    return train_demo(DemoConfig(**{**settings, **options}))


@pytest.mark.slow
def test_without_the_mask_training_is_easy_and_generation_hopeless(noise):
    """The cheat: the loss falls to that of the one byte in a window still unseen, and that one is guessed by chance."""
    honest, cheat = small_run(noise), small_run(noise, mask=False)
    chance = math.log(8) * 60 / 61  # one byte in 61 is a line end
    assert honest.held_out_loss > chance - 0.02
    assert honest.training_loss == pytest.approx(chance, abs=0.15)
    assert cheat.training_loss == pytest.approx(chance / SMALL.context, abs=0.04)
    assert cheat.held_out_loss == pytest.approx(chance / SMALL.context, abs=0.04)  # it sees these answers too
    assert cheat.next_byte_loss > chance - 0.1  # and here it does not
    assert honest.next_byte_loss == pytest.approx(honest.held_out_loss, abs=0.2)


def test_a_run_reports_a_falling_curve_and_repeats_itself(noise):
    seen = []
    config = DemoConfig(shape=SMALL, corpus=noise, tokens=60_000, learning_rate=2e-2)
    run = train_demo(config, report=lambda current: seen.append(len(current.curve)))
    assert seen == list(range(1, len(run.curve) + 1))
    assert run.curve[-1][0] == 117 * 512  # steps x batch, not the plan
    assert run.curve[0][1] > run.curve[-1][1]
    again = train_demo(config)
    assert (again.curve, again.held_out_loss) == (run.curve, run.held_out_loss)
    assert train_demo(DemoConfig(shape=SMALL, corpus=noise, tokens=60_000, seed=1)).curve != run.curve


def test_summary_counts_the_lectures_parameters():
    run = train_demo(DemoConfig(tokens=512))
    summary = run.summary()
    assert (summary["block_params"], summary["params"]) == (49408, 139904)
    assert sum(p.numel() for p in run.model.blocks[0].parameters()) == 49408
    assert count(run.model) == 139904
    assert summary["corpus"] == "manual"
    assert run.training_loss == pytest.approx(math.log(256), abs=1e-5)  # one step, from a head of zeros


def test_the_manual_is_split_by_chapter():
    train, held_out = demo_text("manual", least=130)
    assert len(train) > 300_000 and len(held_out) > 30_000
    assert train.dtype == torch.uint8
    text, windows = bytes(train.tolist()), [bytes(held_out[i : i + 60].tolist()) for i in range(0, len(held_out), 97)]
    assert sum(window in text for window in windows) <= 0.02 * len(windows)  # the manual prints much of itself twice


def test_a_text_too_short_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = np.random.default_rng(0).integers(97, 123, size=(900, 60), dtype=np.uint8)
    (tmp_path / "a.txt").write_bytes(b"\n".join(line.tobytes() for line in lines))
    with pytest.raises(InputError, match="the training text holds .* fewer than one window of 100000"):
        demo_text(f"text:{tmp_path / 'a.txt'}", least=100_000)


def random_model(positions="learned"):
    model = Transformer(Shape(16, 2, 2, 256, 32, positions=positions), attention="explicit")
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(2))
    return model


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_the_three_panels_of_the_mask_are_the_models_own_attention(positions):
    model, tokens = random_model(positions), list(b"a causal mask")
    for layer, weights in enumerate(attention_weights(model, torch.tensor([tokens]))):
        for head in (0, 1):
            view = view_head(model, tokens, layer=layer, head=head)
            shown = np.exp(view.scores + view.mask)
            shown /= shown.sum(axis=1, keepdims=True)
            assert shown == pytest.approx(view.weights, abs=1e-6)
            assert view.weights == pytest.approx(weights[0, head].numpy(), abs=1e-6)
            assert np.isneginf(view.mask[np.triu_indices(13, 1)]).all()
            assert (view.mask[np.tril_indices(13)] == 0).all()


def test_a_temperature_sweep_goes_from_certain_to_uniform():
    rows = temperature_sweep(random_model(), b"x", [0.0, 0.5, 1.0, 4.0, math.inf], n_tokens=10)
    entropies = [row["entropy"] for row in rows]
    assert entropies == sorted(entropies)
    assert entropies[0] == 0 and entropies[-1] == pytest.approx(math.log(256))
    assert all(row["p"].sum() == pytest.approx(1) for row in rows)


def test_evaluation_agrees_with_a_loop_over_windows():
    model, text = random_model(), torch.randint(256, (400,), generator=torch.Generator().manual_seed(0)).byte()
    mean, last = evaluate(model, text, mask=True)
    losses, unseen = [], {n: [] for n in (4, 8, 12, 16, 20, 24, 28, 32)}
    for start in torch.linspace(0, 400 - 33, 256).long().tolist():
        window = text[start : start + 33].long()
        with torch.no_grad():
            log_p = torch.log_softmax(model(window[None, :-1])[0], dim=-1)
        each = [-log_p[t, window[t + 1]].item() for t in range(32)]
        losses += each
        for n, found in unseen.items():
            found.append(each[n - 1])
    assert mean == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert last == pytest.approx(sum(sum(found) for found in unseen.values()) / (8 * 256), rel=1e-5)
