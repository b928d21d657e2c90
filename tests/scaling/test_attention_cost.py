"""Where attention overtakes the rest of a layer: the closed form against a search over every n."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.accounting import Shape
from scaling.attention_cost import crossing, crossovers, default_lengths, layer_cost
from scaling.errors import InputError
from scaling.presets import preset

ATTRIBUTE = {"projections": "projections", "MLP": "mlp", "projections + MLP": "linear", "recurrent layer": "recurrent"}


def first_n_by_search(shape, attribute, causal):
    n = 1
    while True:
        cost = layer_cost(shape, n, causal=causal)
        if cost.attention > getattr(cost, attribute):
            return n
        n += 1


@given(
    heads=st.sampled_from([1, 2, 4]),
    width=st.integers(1, 8),
    ff=st.none() | st.integers(1, 200),
    gated=st.booleans(),
    grouped=st.booleans(),
    causal=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_crossovers_are_where_a_search_finds_them(heads, width, ff, gated, grouped, causal):
    shape = Shape(heads * width, 1, heads, 10, 10, d_ff=ff, gated_mlp=gated, n_kv_heads=1 if grouped else None)
    for found in crossovers(shape, causal=causal):
        assert found.first == first_n_by_search(shape, ATTRIBUTE[found.against], causal), found


def test_the_lectures_crossovers():
    """2 n^2 d passes 4 n d^2 at 2 d, 8 n d^2 at 4 d, both at 6 d, and the recurrent 2 n d^2 at d."""
    for d in (64, 768, 12288):
        found = {c.against: c.exact for c in crossovers(Shape(d, 1, 1, 10, 10))}
        assert found == {"projections": 2 * d, "MLP": 4 * d, "projections + MLP": 6 * d, "recurrent layer": d}
    causal = {c.against: c.exact for c in crossovers(Shape(64, 1, 1, 10, 10), causal=True)}
    assert causal["projections + MLP"] == 12 * 64 - 1


def test_attention_grows_as_n_squared_and_the_rest_as_n():
    shape = preset("gpt2").shape
    once, twice = layer_cost(shape, 512), layer_cost(shape, 1024)
    assert twice.attention == 4 * once.attention == 2 * 1024**2 * 768
    assert (twice.projections, twice.mlp, twice.recurrent) == (2 * once.projections, 2 * once.mlp, 2 * once.recurrent)
    assert once.projections == 512 * 4 * 768**2
    assert once.mlp == 512 * 8 * 768**2


def test_default_lengths_hold_every_crossover():
    shape = preset("lecture").shape
    lengths = default_lengths(shape)
    assert lengths == sorted(set(lengths))
    for found in crossovers(shape):
        assert lengths[0] < found.exact < lengths[-1]


def test_crossing_of_measured_lines():
    n = [1, 2, 4, 8, 16, 32]
    quadratic, linear = [x**2 * 1e-3 for x in n], [x * 6e-3 for x in n]
    assert crossing(n, quadratic, linear) == pytest.approx(6, rel=1e-12)
    assert crossing(n, linear, quadratic) is None  # larger at first, overtaken later
    assert crossing(n, quadratic, [1e9] * 6) is None
    assert math.isclose(crossing([1, 2], [1, 4], [2, 2]), math.sqrt(2))


def test_no_tokens_cost_nothing_to_refuse():
    with pytest.raises(InputError, match="tokens = 0"):
        layer_cost(preset("lecture").shape, 0)
