"""The same words counted differently: published ratios, slopes under three conventions, training and inference."""

import pytest

from scaling.accounting import Shape, count_parameters, flops_per_token
from scaling.conventions import (
    check_conventions,
    flops_conventions,
    hoffmann_flops,
    hoffmann_parameters,
    kaplan_forward_flops,
    params_conventions,
    training_utilisation,
)
from scaling.errors import InputError
from scaling.presets import preset

BUDGETS = [1e18, 2e18, 5e18, 1e19]
OPTIMA = {  # nanochat's log of 27-28 January 2026: one experiment, three ways to count N
    "matmul": (
        [110678115, 167797457, 250650865, 381758347],
        [1241505403, 1785336422, 2642234152, 3806871243],
    ),
    "all": ([416320605, 560239841, 741495903, 988644331], [1232157011, 1763669281, 2629909368, 3884841895]),
    "blocks": ([80259665, 131488566, 220985474, 401213504], [1315639547, 1864134141, 2595328843, 3328704512]),
}


@pytest.mark.parametrize(
    ("layers", "d", "heads", "ratio"),
    [
        (10, 640, 10, 1.025),
        (20, 1024, 16, 1.101),
        (24, 1280, 10, 1.083),
        (26, 1792, 14, 1.044),
        (28, 2048, 16, 1.033),
        (40, 3584, 28, 0.994),
    ],
)
def test_chinchilla_flops_over_6nd(layers, d, heads, ratio):
    shape = Shape(d, layers, heads, 32000, 2048)
    exact = hoffmann_flops(shape, embedding_and_logits=False)
    assert exact / (6 * hoffmann_parameters(shape) * 2048) == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize(
    ("layers", "d", "heads", "published"), [(10, 640, 10, 74e6), (26, 1792, 14, 1143e6), (40, 3584, 28, 6796e6)]
)
def test_chinchilla_parameters(layers, d, heads, published):
    """Table A9 of the paper, in whole millions."""
    assert hoffmann_parameters(Shape(d, layers, heads, 32000, 2048)) == pytest.approx(published, abs=0.6e6)


def test_slopes_under_three_conventions():
    checks = {check.name: check for check in check_conventions(BUDGETS, OPTIMA)}
    slopes = {name: (round(c.N_exponent, 2), round(c.D_exponent, 2)) for name, c in checks.items()}
    assert slopes == {"matmul": (0.52, 0.48), "all": (0.37, 0.49), "blocks": (0.68, 0.40)}
    assert {n: round(c.exponent_sum, 2) for n, c in checks.items()} == {"matmul": 1.00, "all": 0.86, "blocks": 1.08}
    ranges = {"matmul": (0.79, 0.90), "all": (2.30, 3.08), "blocks": (0.63, 0.81)}
    for name, (low, high) in ranges.items():
        assert all(low <= ratio <= high for ratio in checks[name].flops_ratio), name
    assert [name for name, check in checks.items() if check.consistent] == ["matmul"]


def test_exact_power_laws_give_exact_slopes():
    C = [1e18, 1e19, 1e20]
    (check,) = check_conventions(C, {"made": ([0.3 * c**0.6 for c in C], [c**0.4 / 1.8 for c in C])})
    assert check.N_exponent == pytest.approx(0.6, abs=1e-12)
    assert check.D_exponent == pytest.approx(0.4, abs=1e-12)
    assert check.flops_ratio == pytest.approx([1.0] * 3)
    assert check.consistent


@pytest.mark.parametrize(
    ("budgets", "N", "D", "message"),
    [
        ([1e18], [1e8], [1e9], "two distinct budgets"),
        ([1e18, 1e18], [1e8, 1e8], [1e9, 1e9], "two distinct budgets"),
        ([1e18, 1e19], [1e8], [1e9, 1e9], "2 budgets, 1 N and 2 D"),
        ([1e18, 1e19], [1e8, 0], [1e9, 1e9], "N = 0"),
    ],
)
def test_slopes_that_cannot_be_fitted(budgets, N, D, message):
    with pytest.raises(InputError, match=message):
        check_conventions(budgets, {"x": (N, D)})


def test_utilisation_is_of_training_and_inference_is_labelled():
    used = training_utilisation(37e9, 14.8e12, gpu_hours=2.79e6, peak=1.513e15)
    assert used.training == pytest.approx(3.29e24, rel=2e-3)
    assert used.mfu == pytest.approx(0.216, abs=5e-4)
    assert used.forward_share == pytest.approx(0.072, abs=5e-4)
    assert used.forward * 3 == pytest.approx(used.training)
    with pytest.raises(InputError, match="gpu_hours = 0"):
        training_utilisation(37e9, 14.8e12, gpu_hours=0, peak=1e15)


def test_every_convention_has_its_own_label():
    shape = preset("gpt2").shape
    params, flops = params_conventions(shape), flops_conventions(shape)
    assert {row.name: row.params for row in params} == {
        "total": 124439808,
        "without positions": 123653376,
        "non-embedding": 85056000,
        "block matmul": 84934656,
        "matmul-active": 123532032,
    }
    assert len({row.name for row in flops}) == len(flops) == 8
    assert all(row.training == pytest.approx(3 * row.forward) for row in flops)
    by_name = {row.name: row.training for row in flops}
    assert by_name["6N"] == 6 * 124439808
    assert by_name["matmul + attention"] - by_name["matmul + causal attention"] == pytest.approx(6 * 12 * 1024 * 768)


def test_kaplans_count_is_the_exact_one_without_head_and_with_causal_attention():
    shape = preset("gpt3").shape
    exact = flops_per_token(shape)
    assert 3 * kaplan_forward_flops(shape) == pytest.approx(exact.matmul + exact.attention_causal)
    assert kaplan_forward_flops(shape) == 2 * count_parameters(shape).block_matmul + 2 * 96 * 2048 * 12288
