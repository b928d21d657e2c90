"""The lecture's numbers, published totals, and what each convention counts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.accounting import (
    BIASES,
    NORMS,
    POSITIONS,
    Shape,
    attention_memory,
    block_parameters,
    count_parameters,
    flops_per_token,
    forward_flops,
    training_flops,
)
from scaling.errors import InputError
from scaling.presets import preset

LECTURE = Shape(d_model=64, n_layers=2, n_heads=4, vocab_size=256, context=128)


@st.composite
def shapes(draw):
    heads = draw(st.integers(1, 6))
    divisors = [h for h in range(1, heads + 1) if heads % h == 0]
    return Shape(
        d_model=heads * draw(st.integers(1, 12)),
        n_layers=draw(st.integers(1, 5)),
        n_heads=heads,
        vocab_size=draw(st.integers(1, 300)),
        context=draw(st.integers(1, 64)),
        d_ff=draw(st.none() | st.integers(1, 90)),
        n_kv_heads=draw(st.sampled_from(divisors)),
        gated_mlp=draw(st.booleans()),
        tied=draw(st.booleans()),
        positions=draw(st.sampled_from(POSITIONS)),
        norm=draw(st.sampled_from(NORMS)),
        biases=draw(st.sampled_from(BIASES)),
        head_dim=draw(st.none() | st.integers(1, 12)),
    )


def counted_one_by_one(shape):
    """Every array of the model written out, its size multiplied out: the groups' formulas are not used."""
    d, hd, kv, ff = shape.d_model, shape.n_heads * shape.head_width, shape.kv_heads * shape.head_width, shape.ff_width
    arrays = {"token_embedding": [(shape.vocab_size, d)], "positions": [], "attention": [], "mlp": [], "norms": []}
    if shape.positions == "learned":
        arrays["positions"].append((shape.context, d))
    for _ in range(shape.n_layers):
        arrays["attention"] += [(d, hd), (d, kv), (d, kv), (hd, d)]
        arrays["mlp"] += [(d, ff), (ff, d)] + ([(d, ff)] if shape.gated_mlp else [])
        if shape.biases in ("qkv", "all"):
            arrays["attention"] += [(hd,), (kv,), (kv,)]
        if shape.biases == "all":
            arrays["attention"].append((d,))
            arrays["mlp"] += [(ff,), (d,)] + ([(ff,)] if shape.gated_mlp else [])
        arrays["norms"] += [(d,)] * (4 if shape.norm == "layer" else 2)
    arrays["norms"] += [(d,)] * (2 if shape.norm == "layer" else 1)
    arrays["head"] = [] if shape.tied else [(d, shape.vocab_size)]

    def size(array):
        total = 1
        for side in array:
            total *= side
        return total

    return {name: sum(map(size, group)) for name, group in arrays.items()}


@given(shapes())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_groups_are_the_arrays_written_out_and_sum_to_the_total(shape):
    counted, arrays = count_parameters(shape), counted_one_by_one(shape)
    assert counted.groups() == arrays
    assert counted.total == sum(arrays.values())


def test_the_lectures_block():
    """4 d^2 attention, 8 d^2 MLP, 4 d norms: 12 d^2 + 4 d = 49,408 at d = 64."""
    one = Shape(64, 1, 4, 256, 128)
    counted = count_parameters(one)
    assert counted.attention == 4 * 64**2 == 16384
    assert counted.mlp == 8 * 64**2 == 32768
    assert counted.norms - 2 * 64 == 4 * 64 == 256  # the final norm is outside the block
    assert block_parameters(one) == 12 * 64**2 + 4 * 64 == 49408
    assert counted.mlp / (counted.attention + counted.mlp) == pytest.approx(2 / 3, abs=0)


def test_parameters_do_not_depend_on_the_number_of_heads():
    totals = {count_parameters(Shape(64, 2, heads, 256, 128)).total for heads in (1, 2, 4, 8, 16)}
    assert totals == {139904}


def test_gpt3_by_the_lectures_formula():
    counted = count_parameters(Shape(12288, 96, 96, 50257, 2048))
    assert counted.block_matmul == 12 * 12288**2 * 96 == 173946175488
    assert f"{counted.block_matmul:.3g}" == "1.74e+11"


def test_gpt2_small_under_each_convention():
    counted = count_parameters(preset("gpt2").shape)
    assert counted.total == 124439808
    assert counted.total - counted.positions == 123653376
    assert counted.block_matmul == 84934656
    assert counted.matmul_active == 84934656 + 50257 * 768


@pytest.mark.parametrize(
    ("name", "total"),
    [  # as published with the weights
        ("gpt2-medium", 354823168),
        ("gpt2-large", 774030080),
        ("gpt2-xl", 1557611200),
        ("llama2-7b", 6738415616),
        ("llama3-8b", 8030261248),
        ("qwen1.5-72b", 72287920128),
    ],
)
def test_published_totals(name, total):
    assert count_parameters(preset(name).shape).total == total


def test_a_gated_mlp_has_three_matrices():
    gated = preset("qwen1.5-72b").shape
    assert gated.ff_width == 3 * gated.d_model
    assert count_parameters(gated).total == pytest.approx(72.3e9, rel=1e-3)
    assert count_parameters(gated).mlp == 80 * 3 * 8192 * 24576  # two matrices would make a model of about 55e9


def test_embedding_is_free_and_the_head_costs_the_same_tied_or_not():
    untied = Shape(768, 12, 12, 50257, 1024)
    tied = Shape(768, 12, 12, 50257, 1024, tied=True)
    first, second = flops_per_token(untied), flops_per_token(tied)
    assert first.total == second.total
    assert first.head == second.head == 3 * 2 * 50257 * 768  # forward 2 V d, backward twice that
    assert count_parameters(untied).total - count_parameters(tied).total == 50257 * 768
    assert first.attention == 12 * 12 * 768 * 1024
    assert first.attention_causal == 6 * 12 * 768 * 1024


@pytest.mark.parametrize(
    ("name", "context", "share"),
    [("gpt2", 1024, 0.15), ("gpt2", 8192, 1.2), ("llama2-7b", 4096, 0.16), ("llama2-7b", 131072, 5.1)],
)
def test_share_of_the_attention_term(name, context, share):
    from dataclasses import replace

    shape = replace(preset(name).shape, context=context, positions="rotary")
    assert flops_per_token(shape).attention_share == pytest.approx(share, rel=0.03)


def test_6nd_is_a_float_that_never_overflows():
    assert training_flops(3 * 10**12, 10**14) == 1.8e27  # beyond int64
    assert forward_flops(7e9, 2e12) * 3 == training_flops(7e9, 2e12)


def test_memory_of_scores_and_cache():
    memory = attention_memory(LECTURE, tokens=100, bytes_per_value=4)
    assert memory.scores == 4 * 100 * 100 * 4
    assert memory.fused == 4 * 100 * 4
    assert memory.kv_cache == 2 * 2 * 100 * 64 * 4
    grouped = preset("llama3-8b").shape
    assert attention_memory(grouped).kv_cache == 2 * 32 * 8192 * 1024 * 2  # a quarter of full heads


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 0}, "d_model = 0"),
        ({"n_layers": True}, "n_layers = True"),
        ({"context": 1.5}, "context = 1.5"),
        ({"n_heads": 5}, "not divisible by n_heads = 5"),
        ({"n_kv_heads": 3}, "not divisible by n_kv_heads = 3"),
        ({"positions": "absolute"}, 'unknown positions "absolute"'),
        ({"norm": "batch"}, 'unknown norm "batch"'),
        ({"biases": "some"}, 'unknown biases "some"'),
    ],
)
def test_an_impossible_shape_names_what_is_wrong(changes, message):
    fields = {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 256, "context": 128, **changes}
    with pytest.raises(InputError, match=message):
        Shape(**fields)
