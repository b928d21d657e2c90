"""Temperature, top-k and top-p: the limits as the lecture proves them, and no overflow anywhere."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scaling.errors import InputError
from sweeps.decoding import Decoding, draw, entropy, probabilities, softmax

LOGITS = np.array([2.0, -1.0, 0.5, 2.0, 0.0])
finite = arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e4, 1e4))


def test_temperature_one_is_the_softmax_itself():
    expected = [math.exp(z) / sum(math.exp(v) for v in LOGITS) for z in LOGITS]
    assert probabilities(LOGITS, Decoding()) == pytest.approx(expected, rel=1e-15)


def test_temperature_to_zero_is_one_hot_at_a_unique_maximum():
    z = np.array([1.0, 3.0, 2.999])
    for T in (1e-4, 1e-8, 1e-300, 5e-324):
        assert probabilities(z, Decoding(temperature=T)) == pytest.approx([0, 1, 0], abs=1e-4)
    assert probabilities(z, Decoding(temperature=1e-8)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_temperature_to_zero_is_uniform_over_tied_maxima(k):
    z = np.array([7.0] * k + [6.9, -3.0])
    for T in (1e-3, 1e-8, 5e-324):
        assert probabilities(z, Decoding(temperature=T)) == pytest.approx([1 / k] * k + [0, 0], abs=1e-15)


def test_temperature_to_infinity_is_uniform():
    assert probabilities(LOGITS, Decoding(temperature=1e12)) == pytest.approx([0.2] * 5, abs=1e-11)
    assert probabilities(LOGITS, Decoding(temperature=math.inf)).tolist() == [0.2] * 5
    gaps = [np.ptp(probabilities(LOGITS, Decoding(temperature=T))) for T in (1, 10, 100, 1000)]
    assert all(a / b == pytest.approx(10, rel=0.3) for a, b in zip(gaps[1:], gaps[2:], strict=False))  # as 1/T


def test_temperature_zero_is_greedy():
    assert probabilities(LOGITS, Decoding(temperature=0)).tolist() == [1, 0, 0, 0, 0]  # the first of the two largest
    assert draw(probabilities(LOGITS, Decoding(temperature=0)), np.random.default_rng(3)) == 0


@pytest.mark.parametrize("T", [1e-8, 1e-3, 1.0, 1e8])
@pytest.mark.parametrize("scale", [1e4, -1e4, 1e300])
def test_nothing_overflows(scale, T):
    with np.errstate(all="raise", under="ignore"):
        p = probabilities(np.array([scale, -scale, 0.0, scale - 1]), Decoding(temperature=T))
    assert np.isfinite(p).all()
    assert p.sum() == pytest.approx(1)


@given(finite, st.floats(1e-8, 1e8))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_distribution_that_keeps_the_order_of_the_logits(z, T):
    p = softmax(z, T)
    assert p.sum() == pytest.approx(1)
    assert (p >= 0).all()
    order = np.argsort(z, kind="stable")
    assert (np.diff(p[order]) >= -1e-15).all()
    assert softmax(z + 123.0, T) == pytest.approx(p, rel=1e-3, abs=1e-6)  # only differences count


@given(finite, st.lists(st.floats(0.05, 50), min_size=2, max_size=6, unique=True))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_entropy_rises_with_temperature(z, temperatures):
    entropies = [entropy(softmax(z, T)) for T in sorted(temperatures)]
    assert all(b >= a - 1e-9 for a, b in zip(entropies, entropies[1:], strict=False))
    assert entropies[-1] <= math.log(len(z)) + 1e-12


def test_top_k_keeps_the_k_likeliest_in_proportion():
    p = probabilities(LOGITS, Decoding(top_k=3))
    full = softmax(LOGITS)
    assert np.flatnonzero(p).tolist() == [0, 2, 3]
    assert p[[0, 2, 3]] == pytest.approx(full[[0, 2, 3]] / full[[0, 2, 3]].sum())
    assert probabilities(LOGITS, Decoding(top_k=1)).tolist() == [1, 0, 0, 0, 0]
    assert probabilities(LOGITS, Decoding(top_k=99)) == pytest.approx(full)


def test_top_p_keeps_the_fewest_that_reach_p():
    z = np.log([0.5, 0.3, 0.15, 0.05])
    for p, kept in ((0.3, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.9, 3), (0.96, 4), (1.0, 4)):
        assert np.count_nonzero(probabilities(z, Decoding(top_p=p))) == kept, p
    assert probabilities(z, Decoding(top_p=0.8)) == pytest.approx([0.625, 0.375, 0, 0])


def test_top_p_counts_among_the_top_k():
    z = np.log([0.4, 0.3, 0.2, 0.1])
    assert np.count_nonzero(probabilities(z, Decoding(top_k=2, top_p=0.57))) == 1  # 0.4 of 0.7 is 0.571
    assert np.count_nonzero(probabilities(z, Decoding(top_k=2, top_p=0.58))) == 2


def test_draws_follow_the_distribution():
    p = probabilities(LOGITS, Decoding(temperature=1.5, top_k=4))
    generator, n = np.random.default_rng(0), 20000
    counts = np.bincount([draw(p, generator) for _ in range(n)], minlength=5)
    assert counts[p == 0].sum() == 0
    assert (np.abs(counts / n - p) < 4 * np.sqrt(p * (1 - p) / n) + 1e-12).all()


def test_a_draw_never_lands_on_an_impossible_token():
    class Last:  # the largest number that a generator can give
        def random(self):
            return 1 - 2**-53

    assert draw(np.array([0.1, 0.9, 0.0, 0.0]), Last()) == 1
    assert draw(np.array([0.1] * 9 + [0.1, 0.0]), Last()) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature = -1"),
        ({"temperature": math.nan}, "temperature = nan"),
        ({"top_k": 0}, "top-k = 0"),
        ({"top_p": 0.0}, "top-p = 0.0"),
        ({"top_p": 1.1}, "top-p = 1.1"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Decoding(**options)


def test_a_diverged_model_is_named():
    with pytest.raises(InputError, match="logits hold a NaN"):
        probabilities(np.array([0.0, np.nan]), Decoding())
