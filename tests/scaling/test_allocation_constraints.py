"""Constraints, each alone and together: first-order conditions, random search, duality, refusals."""

import numpy as np
import pytest

from scaling.allocation import allocate
from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost
from scaling.allocation.plan import make_family
from scaling.allocation.reach import tokens_for_loss
from scaling.allocation.solver import solve
from scaling.allocation.surface import Surface
from scaling.errors import AllocationError, InputError
from scaling.laws import PUBLISHED
from scaling.shapes import ShapeRequest

BESIROGLU = PUBLISHED["besiroglu2024"].law
MUENNIGHOFF = PUBLISHED["muennighoff2023"].law
BUDGET = 1e22
FAMILY = make_family(ShapeRequest(context=16_384))
SURFACES = {"plain": Surface(BESIROGLU), "repeats": Surface(MUENNIGHOFF, 25e9), "ample": Surface(MUENNIGHOFF, 1e13)}
COSTS = {
    "6nd": Cost(),
    "kaplan": Cost("kaplan", FAMILY),
    "attention": Cost("6nd+attention", FAMILY),
    "exact": Cost("exact", FAMILY),
    "served": Cost(inference_tokens=5e11),
    "served exact": Cost("exact", FAMILY, 5e11),
}
LIMITS = {
    "none": Constraints(),
    "max params": Constraints(max_params=3e9),
    "max tokens": Constraints(max_tokens=1e11),
    "both": Constraints(max_params=3e9, max_tokens=1e11),
    "loose": Constraints(max_params=1e13, max_tokens=1e15),
}


def feasible_points(cost, limits, count=10_000):
    """N over decades and D within the budget: half of the points spend all of it, half a random share."""
    rng = np.random.default_rng(0)
    highest = limits.max_params or 1e13
    N = 10 ** rng.uniform(7, np.log10(highest), 3 * count)
    D = np.minimum(cost.tokens(N, BUDGET), limits.max_tokens or np.inf)
    N, D = N[D > 1][:count], D[D > 1][:count]
    assert len(N) == count
    return N, D * np.where(rng.random(count) < 0.5, 1.0, rng.random(count))


def reaching_points(surface, limits, target, count=10_000):
    """N over decades and D at least what the target needs: half of the points need all of their tokens."""
    rng = np.random.default_rng(1)
    N = 10 ** rng.uniform(9.2, np.log10(limits.max_params or 1e12), 4 * count)
    D = tokens_for_loss(surface, N, target) * (1 + 1e-12)
    good = np.isfinite(D) & ((limits.max_tokens or 1e20) > D)
    N, D = N[good][:count], D[good][:count]
    assert len(N) == count
    more = D * np.where(rng.random(count) < 0.5, 1.0, 1 + rng.random(count))
    return N, np.minimum(more, limits.max_tokens or np.inf)


def residual(surface, cost, point) -> float:
    """The Lagrange condition, relative."""
    in_N, in_D = surface.slopes(point.N, point.D)
    cost_N, cost_D = cost.slopes(point.N, point.D)
    return abs(in_N * cost_D - in_D * cost_N) / abs(in_N * cost_D)


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("limits", LIMITS)
def test_no_random_point_within_the_budget_is_better(surface, cost, limits):
    surface, cost, limits = SURFACES[surface], COSTS[cost], LIMITS[limits]
    point = solve(surface, cost, BUDGET, limits)
    assert cost.total(point.N, point.D) <= BUDGET * (1 + 1e-12)
    N, D = feasible_points(cost, limits)
    assert (cost.total(N, D) <= BUDGET * (1 + 1e-12)).all()
    assert surface.loss(point.N, point.D) <= surface.loss(N, D).min() * (1 + 1e-14)
    if not point.binding:
        assert residual(surface, cost, point) < 1e-8
        assert cost.total(point.N, point.D) == pytest.approx(BUDGET, rel=1e-12)


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("limits", ["none", "max params", "max tokens"])
def test_no_random_point_of_that_loss_is_cheaper(surface, cost, limits):
    surface, cost, limits = SURFACES[surface], COSTS[cost], LIMITS[limits]
    target = 2.25
    wanted = Constraints(max_params=limits.max_params, max_tokens=limits.max_tokens, target_loss=target)
    point = solve(surface, cost, None, wanted)
    assert surface.loss(point.N, point.D) == pytest.approx(target, rel=1e-12)
    N, D = reaching_points(surface, limits, target)
    assert (surface.loss(N, D) <= target * (1 + 1e-12)).all()
    assert cost.total(point.N, point.D) <= cost.total(N, D).min() * (1 + 1e-11)
    if not point.binding:
        assert residual(surface, cost, point) < 1e-8


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("cost", COSTS)
def test_budget_and_target_are_dual(surface, cost):
    surface, cost = SURFACES[surface], COSTS[cost]
    best = solve(surface, cost, BUDGET, Constraints())
    back = solve(surface, cost, None, Constraints(target_loss=surface.loss(best.N, best.D)))
    assert cost.total(back.N, back.D) == pytest.approx(BUDGET, rel=1e-9)
    assert back.N == pytest.approx(best.N, rel=1e-6)


@pytest.mark.parametrize("cost", COSTS)
def test_one_fixed_variable_leaves_the_other_to_the_budget(cost):
    cost = COSTS[cost]
    for fixed in (Constraints(params=2e9), Constraints(tokens=2e11), Constraints(ratio=20)):
        point = solve(SURFACES["plain"], cost, BUDGET, fixed)
        assert cost.total(point.N, point.D) == pytest.approx(BUDGET, rel=1e-12)
        assert fixed.params in (None, point.N) and fixed.tokens in (None, point.D)
        assert fixed.ratio is None or point.D / point.N == pytest.approx(20, rel=1e-12)


@pytest.mark.parametrize("surface", SURFACES)
def test_one_fixed_variable_leaves_the_other_to_the_target(surface):
    surface = SURFACES[surface]
    for fixed in ({"params": 8e9}, {"tokens": 4e11}, {"ratio": 30}):
        point = solve(surface, Cost(), None, Constraints(target_loss=2.25, **fixed))
        assert surface.loss(point.N, point.D) == pytest.approx(2.25, rel=1e-12)


def test_a_limit_that_binds_is_named():
    assert allocate(BUDGET, max_params="3B").binding == ("max params",)
    answer = allocate(BUDGET, max_params="3B", max_tokens="100B")
    assert answer.binding == ("max tokens", "max params")
    assert any("Only 18.0% of the budget is spent: N at most 3B and D at most 100B" in w for w in answer.warnings)
    assert answer.marginal.multiplier == 0.0 and answer.marginal.loss_per_doubling == 0.0


@pytest.mark.parametrize("fixed", [{"params": "3B"}, {"tokens": "100B"}, {"ratio": 40}, {"max_params": "3B"}])
def test_the_multiplier_is_the_slope_under_constraints_too(fixed):
    at, step = allocate(BUDGET, **fixed), 1e-4
    below, above = (allocate(BUDGET * (1 + s), **fixed).loss for s in (-step, step))
    assert at.marginal.multiplier == pytest.approx((below - above) / (2 * step * BUDGET), rel=1e-5)


def test_the_near_optimal_range_keeps_within_the_limits():
    answer = allocate(BUDGET, max_params="10B", max_tokens="300B")
    for near in answer.near_optimal:
        assert near.params[1] <= 10e9 * (1 + 1e-12) and max(near.tokens) <= 300e9 * (1 + 1e-9)


def test_both_fixed_is_an_evaluation():
    answer = allocate(params="70B", tokens="1.4T", gpu_hours_used="1M")
    assert answer.flops == pytest.approx(5.88e23) and answer.budget is None
    assert answer.cost["implied_mfu"] == pytest.approx(5.88e23 / (1e6 * 3600 * 989e12))


def test_target_within_a_budget_spends_only_what_it_needs():
    answer = allocate(1e24, target_loss=2.1)
    assert answer.loss == pytest.approx(2.1) and answer.flops < 1e23


# --- refusals: which constraint, and why ------------------------------------------------------------------------------

REFUSALS = [
    ({"target_loss": 1.8}, "target loss 1.8 is at or below the irreducible loss E = 1.8172"),
    ({"target_loss": 1.8172}, "no model reaches it"),
    ({"target_loss": 2.0, "params": "1B"}, "with N fixed at 1B the loss stays above 2.1"),
    ({"target_loss": 2.0, "max_params": "1B"}, "with N at most 1B the loss stays above"),
    ({"target_loss": 2.0, "max_tokens": "1B", "max_params": "1B"}, "N at most 1B and D at most 1B"),
    ({"target_loss": 2.0, "tokens": "1B"}, "with D fixed at 1B"),
    ({"target_loss": 1.9, "unique_tokens": "1B"}, "with repeated tokens the loss stays above"),
    ({"budget": 1e21, "target_loss": 1.9}, "above the budget of 1.000e21"),
    ({"budget": 1e21, "params": "1B", "tokens": "1T"}, "this needs 6.000e21 FLOP.*above the budget"),
    ({"params": "1B", "tokens": "10B", "target_loss": 2.0}, "gives loss 2.* above the target 2"),
    ({"budget": 1e21, "params": "1B", "tokens": "10B", "ratio": 20}, "so D/N is 10; it cannot be set to 20"),
    ({"budget": 1e21, "params": "2B", "max_params": "1B"}, "params fixed at 2B but max params is 1B"),
    ({"budget": 1e21, "tokens": "2B", "max_tokens": "1B"}, "tokens fixed at 2B but max tokens is 1B"),
    ({"budget": 1e21, "params": "1B", "ratio": 20, "max_tokens": "1B"}, "tokens fixed at 20B but max tokens is 1B"),
    ({"budget": 1e21, "max_tokens": 1000, "context": 2048}, r"max tokens 1K is below one step \(one sequence"),
    (
        {"budget": 1e21, "max_tokens": 4000, "shape": ShapeRequest(context=128, batch_tokens=4096)},
        "max tokens 4K is below one step .one batch, 4.096K tokens",
    ),
    ({"budget": 1e12, "params": "1B", "context": 2048}, "below one step"),
    ({"budget": 1e21, "params": "1B", "inference_tokens": "1e15"}, "leaves nothing of the budget"),
    ({"target_loss": 2.0, "reference": "1B"}, "both set the loss to reach"),
]


@pytest.mark.parametrize(("question", "message"), REFUSALS)
def test_impossible_constraints_say_which_and_why(question, message):
    with pytest.raises(AllocationError, match=message):
        allocate(**question)


QUANTITIES = ["params", "tokens", "ratio", "max_params", "max_tokens", "target_loss", "unique_tokens"]


@pytest.mark.parametrize("name", QUANTITIES)
@pytest.mark.parametrize("value", [0, -1, float("nan"), "many"])
def test_a_constraint_that_is_no_quantity_is_named(name, value):
    with pytest.raises(InputError, match=name.replace("_", " ")):
        allocate(1e21, **{name: value})
