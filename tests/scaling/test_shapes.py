"""Buildable shapes: near in N, the same compute, sizes that hardware likes, and a grid that the sweep reads."""

import itertools

import pytest

from scaling.accounting import Shape, count_parameters
from scaling.allocation import allocate
from scaling.errors import AllocationError, InputError
from scaling.memory import training_memory
from scaling.shape_plan import FLOPS_TOLERANCE, choose_batch, grid_toml, whole_steps
from scaling.shapes import ShapeRequest, nearest_shape

BYTES = ShapeRequest(vocab_size=256, context=128)
BUDGETS = [10.0**p * f for p, f in itertools.product(range(18, 27), (1, 3))]
REQUESTS = {
    "plain": ShapeRequest(),
    "modern": ShapeRequest(128_256, 8192, gated_mlp=True, kv_groups=8, positions="rotary", norm="rms"),
    "tied": ShapeRequest(vocab_size=50_257, tied=True, multiple_of=64),
    "128": ShapeRequest(multiple_of=128, aspect=(64, 128)),
}


CASES = [(name, C) for name in REQUESTS for C in BUDGETS if C >= 1e20 or name != "modern"]  # small: all embeddings


@pytest.mark.parametrize(("name", "budget"), CASES)
def test_rounding_keeps_the_compute_and_costs_almost_nothing(name, budget):
    request = REQUESTS[name]
    answer = allocate(budget, shape=request)
    shape = answer.shape
    assert abs(shape["flops_change"]) <= FLOPS_TOLERANCE
    assert 6 * shape["params"] * shape["tokens"] == pytest.approx(budget, rel=FLOPS_TOLERANCE)
    assert shape["tokens"] == shape["steps"] * shape["batch_tokens"]
    assert shape["batch_tokens"] % shape["context"] == 0
    assert shape["params"] == pytest.approx(answer.params, rel=0.1)
    assert abs(shape["loss_penalty"]) < 1e-3 * answer.loss
    low, high = request.aspect_range(answer.params)
    assert low <= shape["d_model"] / shape["n_layers"] <= high
    assert shape["d_model"] % request.multiple(answer.params) == 0 and shape["d_model"] % shape["n_heads"] == 0
    assert shape["params"] == sum(shape["params_by_group"].values())


@pytest.mark.parametrize("convention", ["kaplan", "6nd+attention", "exact"])
def test_the_compute_is_kept_under_every_convention(convention):
    shape = allocate(1e21, flops_convention=convention, shape=ShapeRequest()).shape
    assert shape["flops"] == pytest.approx(1e21, rel=FLOPS_TOLERANCE)


def test_the_lifetime_compute_is_kept_when_serving():
    answer = allocate(1e22, inference_tokens="500B", shape=ShapeRequest())
    lifetime = answer.shape["flops"] + 2 * answer.shape["params"] * 5e11
    assert lifetime == pytest.approx(1e22, rel=FLOPS_TOLERANCE)
    assert abs(answer.shape["loss_penalty"]) < 1e-4


def test_limits_hold_for_the_shape_too():
    answer = allocate(1e22, max_params="7B", max_tokens="200B", shape=ShapeRequest())
    assert answer.shape["params"] <= 7e9 and answer.shape["tokens"] <= 200e9


def test_large_models_have_heads_that_split_over_eight_devices():
    for params in (7e9, 13e9, 70e9, 400e9, 1e12):
        shape = nearest_shape(params, ShapeRequest())
        assert shape.n_heads % 8 == 0 and shape.d_model % 128 == 0 and shape.head_width == 128
        assert count_parameters(shape).total == pytest.approx(params, rel=0.02)


def test_what_was_asked_for_is_what_comes():
    request = ShapeRequest(50_000, 1024, gated_mlp=True, expansion=3.5, kv_groups=4, tied=True, head_width=64)
    shape = nearest_shape(3e9, request)
    assert (shape.vocab_size, shape.context, shape.gated_mlp, shape.tied) == (50_000, 1024, True, True)
    assert shape.n_heads == 4 * shape.kv_heads and shape.head_width == 64
    assert shape.ff_width == pytest.approx(3.5 * shape.d_model, rel=0.03)


def test_a_gated_mlp_holds_the_weights_of_a_plain_one():
    assert ShapeRequest(gated_mlp=True).ff_ratio * 3 == pytest.approx(ShapeRequest().ff_ratio * 2)


def test_small_models_of_bytes():
    for params in (50e3, 200e3, 1e6, 5e6):
        shape = nearest_shape(params, BYTES)
        assert count_parameters(shape).total == pytest.approx(params, rel=0.15)


def test_no_shape_says_what_to_change():
    with pytest.raises(AllocationError, match="no shape of 100K parameters with vocabulary 32,000.*--vocab.*tie the"):
        nearest_shape(1e5, ShapeRequest())
    with pytest.raises(AllocationError, match="no shape"):
        allocate(1e13, shape=ShapeRequest())
    answer = allocate(1e13)  # nothing was asked of the shape: a warning
    assert answer.shape is None and any("No shape" in w for w in answer.warnings)


def test_a_vocabulary_too_large_for_the_model_warns():
    assert any("are embeddings and head" in w for w in allocate(1e17).warnings)
    assert not any("are embeddings and head" in w for w in allocate(1e21).warnings)


@pytest.mark.parametrize(
    "request_",
    [
        {"aspect": (100.0, 50.0)},
        {"multiple_of": 0},
        {"vocab_size": -5},
        {"kv_groups": 1.5},
        {"expansion": 0.0},
        {"batch_tokens": 0},
    ],
)
def test_impossible_requests(request_):
    with pytest.raises(InputError):
        ShapeRequest(**request_)


def test_the_batch_is_deepseek_s_rule_in_whole_sequences():
    batch, source = choose_batch(3e23, ShapeRequest(context=4096))
    assert batch == pytest.approx(0.2920 * 3e23**0.3271, rel=0.42) and batch % 4096 == 0
    assert "2401.02954" in source
    assert choose_batch(1e21, ShapeRequest(batch_tokens=2**20)) == (2**20, "as given")
    with pytest.raises(InputError, match="whole number of contexts"):
        choose_batch(1e21, ShapeRequest(batch_tokens=3000))


@pytest.mark.parametrize("tokens", [1e6, 3.3e6, 1e7, 1e9, 1e12])
def test_steps_are_whole_and_the_batch_shrinks_only_as_far_as_needed(tokens):
    batch, steps = whole_steps(tokens, 2**16, 128, fixed=False)
    assert abs(batch * steps / tokens - 1) <= FLOPS_TOLERANCE
    assert batch % 128 == 0 and batch <= 2**16
    assert whole_steps(tokens, 4096, 128, fixed=True)[0] == 4096


def test_a_fixed_batch_that_is_too_large_warns():
    answer = allocate(1e15, shape=ShapeRequest(vocab_size=256, context=128, batch_tokens=2**24))
    assert abs(answer.shape["flops_change"]) > FLOPS_TOLERANCE
    assert any("whole steps of 16,777,216 tokens moves the compute" in w for w in answer.warnings)


def test_memory_of_states_is_sixteen_bytes_a_parameter():
    shape = Shape(4096, 32, 32, 32_000, 2048)
    memory = training_memory(shape)
    assert memory.states == 16 * count_parameters(shape).total
    per_block = 2048 * (4 * 4096 + 4 * 4096 + 2 * 16384) * 2  # norms and inputs; q, k, v, mixed; hidden twice
    assert memory.activations_per_sequence == 32 * per_block
    assert memory.activations_recomputed == 32 * 2048 * 4096 * 2 + per_block
    assert memory.devices(80e9) * 80e9 > memory.states and memory.devices(1e9) == 0


def test_the_grid_trains_this_very_run():
    grid_module = pytest.importorskip("sweeps.grid")
    answer = allocate(1e14, law="besiroglu2024", shape=BYTES)
    grid = grid_module.parse_grid(grid_toml(answer.plan))
    (shape,) = grid.shapes
    assert count_parameters(shape).total == answer.shape["params"]
    assert grid.tokens == (answer.shape["tokens"],) and grid.batch_tokens == answer.shape["batch_tokens"]
    assert grid.context == 128 and grid.seeds == (0,)


def test_a_shape_the_sweep_cannot_train_is_refused():
    answer = allocate(1e21, shape=ShapeRequest(gated_mlp=True, kv_groups=2, tied=True, norm="rms", positions="rotary"))
    with pytest.raises(AllocationError, match="vocabulary 32,000.*gated MLP.*grouped-query.*tied.*rms norms.*rotary"):
        grid_toml(answer.plan)
