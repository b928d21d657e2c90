"""The rules of the recipe."""

import math
from dataclasses import replace

import pytest

from scaling.accounting import Shape
from scaling.errors import SweepError
from sweeps.recipe import Recipe, batch_for, branch_step, heads_for, resolve, schedule_factor, steps_trained, warmup_for

SHAPE = Shape(d_model=64, n_layers=2, n_heads=2, vocab_size=256, context=128)


def run(tokens=1_024_000, **recipe):
    return resolve(SHAPE, tokens, corpus="python", corpus_hash="x", recipe=Recipe(**recipe))


def test_warmup_is_never_above_a_tenth_of_a_run():
    assert [warmup_for(steps) for steps in (1, 9, 10, 100, 399, 400, 10**6)] == [0, 0, 1, 10, 39, 40, 40]
    for tokens in (1024, 5120, 51_200, 5_120_000):
        config = run(tokens)
        assert config.warmup_steps <= 0.1 * config.steps


@pytest.mark.parametrize("schedule", ["wsd", "cosine"])
def test_a_schedule_warms_up_peaks_and_ends_with_the_run(schedule):
    config = run(schedule=schedule)
    rates = [schedule_factor(step, config) for step in range(config.steps)]
    assert rates[:40] == pytest.approx([(k + 1) / 40 for k in range(40)])
    assert max(rates) == 1.0
    tail = rates[config.steps // 2 :]
    assert tail == sorted(tail, reverse=True)
    assert 0 < rates[-1] < (0.002 if schedule == "wsd" else 0.1001)  # the step after it would have the floor


def test_the_constant_part_is_constant_and_the_cooldown_has_its_share_and_shape():
    config = run(cooldown_fraction=0.25)
    start = branch_step(config)
    assert start == 3000
    assert {schedule_factor(step, config) for step in range(40, start + 1)} == {1.0}
    assert schedule_factor(start + 250, config) == pytest.approx(1 - math.sqrt(0.25))
    assert schedule_factor(start + 250, replace(config, cooldown_shape="linear")) == pytest.approx(0.75)


def test_runs_that_differ_in_tokens_share_their_trunk():
    short, long = run(512_000), run(1_024_000)
    assert short.trunk_key == long.trunk_key and short.run_id != long.run_id
    shared = min(branch_step(short), branch_step(long))
    assert all(schedule_factor(k, short) == schedule_factor(k, long) for k in range(shared))
    assert run(512_000, schedule="cosine").trunk_key != run(1_024_000, schedule="cosine").trunk_key


def test_six_token_counts_cost_at_most_three_fifths_of_separate_runs():
    column = [run(1_024_000 * 2**k) for k in range(6)]
    assert steps_trained(column) / sum(config.steps for config in column) <= 0.60
    apart = [run(1_024_000 * 2**k, schedule="cosine") for k in range(6)]
    assert sum(steps_trained([config]) for config in apart) == sum(config.steps for config in apart)


def test_heads_are_about_thirty_two_wide():
    assert [heads_for(d) for d in (8, 16, 32, 48, 64, 96, 128, 256)] == [2, 2, 2, 2, 2, 3, 4, 8]
    assert all(d % heads_for(d) == 0 for d in range(8, 600, 8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "steps"}, 'unknown schedule "steps". Known: wsd, cosine'),
        ({"cooldown_shape": "square"}, 'unknown cooldown_shape "square"'),
        ({"learning_rate": 0.0}, "learning_rate = 0.0 must be above zero"),
        ({"warmup_steps": -1}, "warmup_steps = -1 must be zero or more"),
        ({"beta2": 1.0}, r"beta2 = 1.0 must be in \[0, 1\)"),
        ({"cooldown_fraction": 1.5}, "cooldown_fraction = 1.5 must be in"),
        ({"batch_tokens": 200}, "batch_tokens = 200 is not a multiple of the context 128"),
    ],
)
def test_impossible_recipes_are_named(changes, message):
    with pytest.raises(SweepError, match=message):
        run(**changes)


def test_a_run_below_one_batch_is_refused():
    with pytest.raises(SweepError, match="tokens = 200 is less than one batch of 256"):
        run(200)


def test_the_batch_and_its_rate_go_by_tokens_in_steps_of_four():
    counts = (1e4, 24e6, 26e6, 9e8, 1e9, 30e9)
    assert [batch_for(tokens, 128) for tokens in counts] == [256, 256, 1024, 1024, 4096, 4096]
    assert batch_for(1e6, 1024) == 1024 and batch_for(1e6, 96) == 288  # whole contexts
    small, large = run(10_000_000), run(100_000_000)
    assert (small.batch_tokens, large.batch_tokens) == (256, 1024)
    assert large.learning_rate == pytest.approx(2 * small.learning_rate)
    assert run(100_000_000, batch_tokens=512).learning_rate == Recipe.learning_rate  # given: as given
    for tokens in (1e6, 1e8, 1e10):  # never further than a factor two from D^0.38
        assert 0.49 < batch_for(tokens, 1) / (512 * (tokens / 25e6) ** 0.38) < 2.05 or tokens < 25e6
