"""Trunks and branches: bit for bit what separate runs give, whatever interrupts them."""

import io
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scaling.accounting import Shape
from scaling.errors import SweepError
from sweeps.batches import Batches
from sweeps.corpus import load_corpus
from sweeps.evaluation import Evaluator
from sweeps.numerics import choose_numerics, matmul_ceiling, measure_speed
from sweeps.recipe import Recipe, resolve
from sweeps.steps import make_step
from sweeps.training import Interrupted, train_trunk

sys.path.insert(0, str(Path(__file__).parent))
from text_for_tests import write_files  # noqa: E402

SHAPE = Shape(d_model=16, n_layers=1, n_heads=2, vocab_size=256, context=32)
TOKENS = (4096, 8192, 16384)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    return load_corpus(f"text:{write_files(folder / 'texts')}", cache_dir=folder / "cache")


def column(corpus, tokens=TOKENS, *, attention="explicit", dtype="float32", seed=0, data_seed=None, **recipe):
    defaults = {"batch_tokens": 128, "warmup_steps": 3, "learning_rate": 1e-2, "cooldown_fraction": 0.2}
    recipe = Recipe(**{**defaults, **recipe})
    return [
        resolve(
            SHAPE, count, corpus=corpus.name, corpus_hash=corpus.hash, recipe=recipe, attention=attention, dtype=dtype,
            seed=seed, data_seed=data_seed,
        )
        for count in tokens
    ]  # fmt: skip


def essence(outcome):
    """All of an outcome that must not depend on how it came about."""
    times = {"wall_seconds", "cpu_seconds", "evaluation_seconds", "tokens_per_second", "mfu", "started_at"}
    free = times | {"peak_memory_bytes", "trained_tokens"}
    row = {name: value for name, value in outcome.row.items() if name not in free}
    return outcome.config, outcome.status, outcome.reason, outcome.loss, outcome.loss_se, row, outcome.curve


class Memory:
    """A checkpoint kept as bytes: what a file would hold, loaded as a file must be."""

    def __init__(self):
        self.content, self.saves = None, 0

    def save(self, state):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.content, self.saves = buffer.getvalue(), self.saves + 1

    def load(self):
        return None if self.content is None else torch.load(io.BytesIO(self.content), weights_only=True)


def train_with_stops(configs, corpus, every):
    """Stop after every so many steps, and start again from the checkpoint in a new call."""
    memory, outcomes, attempts = Memory(), {}, 0
    while len(outcomes) < len(configs):
        attempts += 1
        count = iter(range(every))
        stream = train_trunk(configs, corpus, checkpoint=memory, should_stop=lambda c=count: next(c, None) is None)
        try:
            for outcome in stream:
                outcomes[outcome.config.tokens] = outcome
        except Interrupted:
            continue
    return [outcomes[tokens] for tokens in sorted(outcomes)], attempts


@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_branches_are_bit_identical_to_separate_runs(corpus, attention):
    configs = column(corpus, attention=attention)
    together = list(train_trunk(configs, corpus))
    assert [outcome.config.tokens for outcome in together] == list(TOKENS)
    for config, outcome in zip(configs, together, strict=True):
        (alone,) = train_trunk([config], corpus)
        assert essence(alone) == essence(outcome)
    assert together[0].loss > together[1].loss > together[2].loss  # it learns


@pytest.mark.parametrize("every", [1, 7, 50])
def test_a_stopped_and_resumed_column_ends_with_the_same_bits(corpus, every):
    configs = column(corpus, TOKENS[:2] if every == 1 else TOKENS)
    undisturbed = list(train_trunk(configs, corpus))
    resumed, attempts = train_with_stops(configs, corpus, every)
    assert attempts > 2
    assert [essence(o) for o in resumed] == [essence(o) for o in undisturbed]


def test_bfloat16_resumes_to_the_same_bits(corpus):
    configs = column(corpus, TOKENS[:2], dtype="bfloat16")
    assert [essence(o) for o in train_with_stops(configs, corpus, 13)[0]] == [
        essence(o) for o in train_trunk(configs, corpus)
    ]


def test_a_checkpoint_serves_whoever_is_left(corpus):
    configs = column(corpus)
    memory, undisturbed = Memory(), list(train_trunk(configs, corpus))
    for outcome in train_trunk(configs, corpus, checkpoint=memory):
        if outcome.config.tokens == TOKENS[1]:
            break
    last = list(train_trunk(configs[2:], corpus, checkpoint=memory))
    assert [essence(o) for o in last] == [essence(undisturbed[2])]
    again = list(train_trunk(configs, corpus, checkpoint=memory))  # finished ones come from the state
    assert [essence(o) for o in again] == [essence(o) for o in undisturbed]
    earlier = column(corpus, (6144,))  # its branch point has passed: the trunk starts again
    assert essence(next(train_trunk(earlier, corpus, checkpoint=memory))) == essence(next(train_trunk(earlier, corpus)))


def test_a_cosine_run_is_its_own_and_resumes(corpus):
    (config,) = column(corpus, TOKENS[:1], schedule="cosine")
    (outcome,) = train_trunk([config], corpus)
    assert outcome.status == "done" and outcome.row["trained_tokens"] == 4096
    assert essence(train_with_stops([config], corpus, 9)[0][0]) == essence(outcome)


def test_the_row_says_what_was_trained(corpus):
    outcomes = list(train_trunk(column(corpus), corpus))
    row = outcomes[1].row
    assert (row["tokens"], row["steps"], row["batch_tokens"]) == (8192, 64, 128)
    assert row["flops"] == 6.0 * row["params"] * 8192
    assert row["bits_per_byte"] == pytest.approx(outcomes[1].loss / math.log(2))
    assert row["warmup_tokens"] == 3 * 128 and row["unique_tokens"] == 8192
    assert sum(outcome.row["trained_tokens"] for outcome in outcomes) == 128 * (102 + 6 + 13 + 26)
    assert 0 < row["mfu"] < 1.5 and row["tokens_per_second"] > 0 and row["peak_memory_bytes"] > 1e6
    assert outcomes[1].loss_se < 0.1
    counts = [point["tokens"] for point in outcomes[1].curve]
    assert counts == sorted(counts)
    assert outcomes[1].curve[-1] == {"tokens": 8192, "loss": outcomes[1].loss, "part": "end"}


def test_the_curve_has_log_spaced_points_of_the_trunk(corpus, monkeypatch):
    monkeypatch.setattr("sweeps.training._CURVE_START", 16)
    first, second = train_trunk(column(corpus, TOKENS[1:]), corpus)
    assert [point["tokens"] // 128 for point in second.curve] == [16, 23, 32, 45, 64, 91, 128]
    assert [point["part"] for point in second.curve] == ["trunk"] * 6 + ["end"]
    assert first.curve[:4] == second.curve[:4] and first.curve[4]["tokens"] == 8192


def test_a_lost_loss_ends_the_trunk_and_every_branch_as_diverged(corpus):
    outcomes = list(train_trunk(column(corpus, learning_rate=100.0), corpus))
    assert [outcome.status for outcome in outcomes] == ["diverged"] * 3
    for outcome in outcomes:
        assert outcome.loss is None and outcome.loss_se is None and outcome.row["bits_per_byte"] is None
        assert "training loss rose to" in outcome.reason or "training loss is nan" in outcome.reason
        assert 0 < outcome.row["tokens"] <= outcome.config.tokens
    resumed, _ = train_with_stops(column(corpus, learning_rate=100.0), corpus, 4)
    assert [essence(o) for o in resumed] == [essence(o) for o in outcomes]


def test_a_branch_that_diverges_leaves_the_trunk_alone(corpus, monkeypatch):
    from sweeps import training

    def factor(step, config, plain=training.schedule_factor):
        return math.nan if config.tokens == TOKENS[0] and step == 30 else plain(step, config)

    sound = list(train_trunk(column(corpus), corpus))
    monkeypatch.setattr(training, "schedule_factor", factor)
    outcomes = list(train_trunk(column(corpus), corpus))
    assert [outcome.status for outcome in outcomes] == ["diverged", "done", "done"]
    assert "is nan at step" in outcomes[0].reason
    assert [essence(o) for o in outcomes[1:]] == [essence(o) for o in sound[1:]]


def test_progress_is_told_in_tokens_of_the_whole_column(corpus, monkeypatch):
    monkeypatch.setattr("sweeps.training._PROGRESS_SECONDS", 0.0)
    told = []
    list(train_trunk(column(corpus), corpus, on_progress=told.append))
    done = [progress.tokens_done for progress in told]
    assert done == sorted(done) and done[-1] == told[-1].tokens_total == 128 * (102 + 6 + 13 + 26)


def test_a_checkpoint_is_saved_in_time_and_at_branch_points(corpus):
    memory = Memory()
    list(train_trunk(column(corpus), corpus, checkpoint=memory))
    assert memory.saves == 6  # before and after each branch
    often = Memory()
    list(train_trunk(column(corpus), corpus, checkpoint=often, checkpoint_seconds=0.0))
    assert often.saves > 100


def test_what_does_not_fit_together_is_refused(corpus):
    configs = column(corpus)
    with pytest.raises(SweepError, match="do not share a trunk"):
        list(train_trunk([configs[0], column(corpus, seed=1)[1]], corpus))
    with pytest.raises(SweepError, match="but that corpus now has hash"):
        list(train_trunk([replace(configs[0], corpus_hash="other")], corpus))
    memory = Memory()
    list(train_trunk(configs[:1], corpus, checkpoint=memory))
    with pytest.raises(SweepError, match="checkpoint: it belongs to"):
        list(train_trunk(column(corpus, seed=1), corpus, checkpoint=memory))


def test_repetition_is_told(corpus):
    (config,) = column(corpus, (1_024_000,))
    with pytest.warns(UserWarning, match="repeat the .* unique_tokens records it"):
        stream = train_trunk([config], corpus, should_stop=lambda: True)
        with pytest.raises(Interrupted):
            next(stream)


def test_seeds_of_data_and_of_weights_are_separate(corpus):
    def loss(**seeds):
        return next(train_trunk(column(corpus, TOKENS[:1], **seeds), corpus)).loss

    losses = [loss(seed=a, data_seed=b) for a in (0, 1) for b in (0, 1)]
    assert len(set(losses)) == 4 and losses[0] == loss(seed=0, data_seed=0)
    assert max(losses) - min(losses) < 0.2


def test_every_window_is_read_once_a_pass_and_in_another_order_the_next():
    text = np.arange(1000, dtype=np.uint16)
    batches = Batches(text, context=10, batch_tokens=30, seed=1)
    assert (batches.per_pass, batches.unique_tokens) == (99, 990)
    passes = []
    for number in range(2):
        starts = []
        for step in range(33 * number, 33 * (number + 1)):
            inputs, targets = batches.at(step)
            assert torch.equal(inputs[:, 1:], targets[:, :-1]) and torch.equal(targets, inputs + 1)
            starts += inputs[:, 0].tolist()
        assert len(set(starts)) == 99 and len({start % 10 for start in starts}) == 1  # each once, on one lattice
        passes.append(starts)
    assert passes[0] != passes[1]
    again = Batches(text, context=10, batch_tokens=30, seed=1)
    assert again.at(40)[0][:, 0].tolist() == passes[1][21:24]  # any step can be asked for


def test_held_out_windows_are_fixed_and_their_error_is_honest(corpus):
    (config,) = column(corpus, TOKENS[:1])
    step = make_step(config)
    torch.manual_seed(0)
    step.flat.values.add_(torch.randn(step.flat.values.shape) * 0.1)
    everything = Evaluator(corpus, context=32, windows=10**6)
    truth = everything.evaluate(step)
    assert truth.tokens == (len(corpus.validation) - 1) // 32 * 32
    samples = [Evaluator(corpus, context=32, windows=n).evaluate(step) for n in (24, 48, 96)]
    for sample in samples:
        assert abs(sample.loss - truth.loss) < 4 * sample.loss_se
    assert samples[0].loss_se > samples[2].loss_se > 0
    assert everything.evaluate(step, windows=48).tokens == 48 * 32


def test_numerics_are_timed_unless_given(corpus):
    assert choose_numerics(SHAPE, dtype="bfloat16", attention="fused") == ("bfloat16", "fused")
    chosen = choose_numerics(SHAPE, attention="explicit", seconds=0.05, batch_tokens=128)
    assert chosen in {("float32", "explicit"), ("bfloat16", "explicit")}
    (config,) = column(corpus, TOKENS[:1])
    assert 1e3 < measure_speed(config, corpus, seconds=0.05) < 1e8
    assert matmul_ceiling("cpu", "float32") > 1e8
