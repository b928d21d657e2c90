"""Beside the one answer: its intervals, a choice of the user's, a robust choice, the same question under other laws."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scaling.allocation.comparison import compare, robust_across
from scaling.allocation.cost import Cost
from scaling.allocation.law_choice import LawChoice, choose_law
from scaling.allocation.question import Question
from scaling.allocation.remarks import ROUNDED, extrapolation
from scaling.allocation.result import Allocation
from scaling.allocation.solver import solve
from scaling.allocation.spend import Point
from scaling.allocation.surface import Surface, make_surface
from scaling.errors import AllocationError


def compare_choice(q: Question, choice: tuple[float, float | None]) -> dict:
    budget = q.flops
    if budget is None and q.constraints.free:
        point = solve(q.surface, q.cost, None, q.constraints)
        budget = q.cost.total(point.N, point.D)
    return compare(q.surface, q.cost, budget, choice)


def with_uncertainty(answer: Allocation, q: Question, level: float) -> Allocation:
    from scaling.allocation import uncertainty

    draws = uncertainty.stack_draws(q.law, q.surface)
    reference = q.reference["params"] if q.reference else None
    found = uncertainty.intervals(draws, q.cost, q.flops, q.constraints, level, reference=reference)
    notes = [
        f"{count:,} of the draws were left out: {why}."
        for count, why in (
            (draws.dropped, "their constants are impossible"),
            (found["unsolved"], "they have no answer under these constraints"),
        )
        if count
    ]
    robust = None
    if q.constraints.free:
        budget = q.cost.total(answer.params, answer.tokens)
        free = replace(q.constraints, target_loss=None)
        robust = uncertainty.robust_choice(draws, q.cost, budget, free, answer.params, level)
    return replace(
        answer,
        intervals=found,
        robust=robust,
        comparisons=tuple(_with_interval(c, draws, q.cost, level) for c in answer.comparisons),
        warnings=(*answer.warnings, *notes),
    )


def _with_interval(comparison: dict, draws, cost: Cost, level: float) -> dict:
    from scaling.allocation import uncertainty

    factors = uncertainty.wasted_factors(draws, cost, comparison["params"], comparison["tokens"])
    found = uncertainty.interval(factors, level)
    return comparison | {"intervals": {"level": level, "wasted_compute_factor": found}}


def with_other_laws(answer: Allocation, q: Question, others: Sequence[Any]) -> Allocation:
    """The same question under every law; the choice with the least worst waste among them (rounded printings aside)."""
    choices = [q.law]
    for other in others:
        choice = choose_law(other)
        if all(choice.name != known.name for known in choices):
            choices.append(choice)
    rows, usable, notes = [], [], []
    for choice in choices:
        try:
            surface, _ = make_surface(choice.law, q.surface.unique_tokens)
            point = solve(surface, q.cost, q.flops, q.constraints)
        except AllocationError as error:
            notes.append(f"{choice.name}: {error}")
            continue
        rows.append(_row(choice, surface, q.cost, point))
        if choice.name != ROUNDED:
            usable.append((choice.name, surface))
    robust = None
    limited = q.constraints.max_params is not None or q.constraints.max_tokens is not None
    if q.flops is not None and q.constraints.free and not limited and len(usable) > 1:
        robust = robust_across(usable, q.cost, q.flops)
    return replace(answer, laws=tuple(rows), robust_across_laws=robust, warnings=(*answer.warnings, *notes))


def _row(choice: LawChoice, surface: Surface, cost: Cost, point: Point) -> dict:
    flops = cost.training(point.N, point.D)
    return {
        "name": choice.name,
        "params": point.N,
        "tokens": point.D,
        "tokens_per_param": point.D / point.N,
        "flops": flops,
        "loss": surface.loss(point.N, point.D),
        "extrapolation_factor": extrapolation(choice, flops)[0],
        "source": choice.source,
    }
