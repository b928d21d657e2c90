"""`allocate`: from a budget, a target or a reference to an Allocation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scaling.allocation.alternatives import compare_choice, with_other_laws, with_uncertainty
from scaling.allocation.budget import Budget, Machine, make_budget, make_machine
from scaling.allocation.building import with_shape
from scaling.allocation.comparison import parse_choice
from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost, Family
from scaling.allocation.delta import delta_intervals
from scaling.allocation.law_choice import LawChoice, choose_law
from scaling.allocation.nearness import marginal, near_optimal
from scaling.allocation.question import Question, refer_to, with_attention
from scaling.allocation.remarks import (
    data_use,
    described,
    extrapolation,
    inference_saving,
    no_draws,
    rounding,
    unspent,
)
from scaling.allocation.result import Allocation
from scaling.allocation.solver import solve
from scaling.allocation.spend import closed_form
from scaling.allocation.surface import make_surface
from scaling.errors import AllocationError
from scaling.hardware import implied_mfu
from scaling.quantities import parse_positive
from scaling.shapes import ShapeRequest


def allocate(
    budget: float | str | Budget | None = None,
    *,
    law: Any = None,
    other_laws: Sequence[Any] = (),
    params: float | str | None = None,
    tokens: float | str | None = None,
    ratio: float | str | None = None,
    max_params: float | str | None = None,
    max_tokens: float | str | None = None,
    target_loss: float | str | None = None,
    reference: float | str | None = None,
    unique_tokens: float | str | None = None,
    inference_tokens: float | str | None = None,
    context: int | None = None,
    flops_convention: str = "6nd",
    machine: Machine | None = None,
    gpu_hours_used: float | str | None = None,
    comparisons: Sequence[Any] = (),
    level: float = 0.95,
    shape: ShapeRequest | None = None,
) -> Allocation:
    """Minimise L(N, D) subject to C(N, D) = budget; with `target_loss` or `reference`, the least C that reaches it.

    budget            FLOP ("1e24" is read too), or a Budget made from dollars, GPU-hours or GPUs for days
    law               None (besiroglu2024), a published name, a fit.json, or a law; `other_laws` stand beside it
    params, tokens, ratio          N, D and D/N held fixed; max_params, max_tokens are upper bounds
    target_loss       nats per token; reference is an N whose compute-optimal loss becomes the target
    unique_tokens     distinct tokens at hand: more are repeats, worth less (Muennighoff et al. 2023)
    inference_tokens  served over the model's life; the budget, or what is minimised, becomes 6ND + 2N D_inf
    context           T: the attention term 12 L T d is counted where it exceeds 10 % of 6N
    comparisons       choices "70B" or "70B,1.4T": what they waste
    shape             what the buildable shape must look like

    Raises AllocationError when budget and constraints have no answer, LawError for a law that cannot be used and
    InputError for a quantity that cannot be read.
    """
    try:
        return _allocate(
            budget,
            choose_law(law),
            other_laws,
            context=context,
            convention=flops_convention,
            machine=machine or make_machine(),
            comparisons=comparisons,
            level=level,
            shape=shape,
            reference=_positive(reference, "reference"),
            unique_tokens=_positive(unique_tokens, "unique tokens"),
            inference_tokens=_positive(inference_tokens, "inference tokens") or 0.0,
            gpu_hours_used=_positive(gpu_hours_used, "GPU-hours used"),
            limits={
                "params": _positive(params, "params"),
                "tokens": _positive(tokens, "tokens"),
                "ratio": _positive(ratio, "ratio"),
                "max_params": _positive(max_params, "max params"),
                "max_tokens": _positive(max_tokens, "max tokens"),
                "target_loss": _positive(target_loss, "target loss"),
            },
        )
    except ArithmeticError as error:
        raise AllocationError(
            f"this leads out of the range of floating-point numbers ({error}): "
            "check the law's constants and the size of the quantities."
        ) from error


def _allocate(
    budget,
    law: LawChoice,
    other_laws: Sequence[Any],
    *,
    limits: dict[str, Any],
    context: int | None,
    convention: str,
    machine: Machine,
    comparisons: Sequence[Any],
    level: float,
    shape: ShapeRequest | None,
    reference: float | None,
    unique_tokens: float | None,
    inference_tokens: float,
    gpu_hours_used: float | None,
) -> Allocation:
    """`allocate` with every quantity read."""
    request = shape or ShapeRequest()
    if context is not None and shape is None:
        request = ShapeRequest(context=context)
    constraints = Constraints(**limits, **_smallest_run(request, context))
    if reference is not None and constraints.target_loss is not None:
        raise AllocationError("a reference model and a target loss both set the loss to reach. Give one.")
    question = _ask(
        law,
        make_budget(budget),
        constraints,
        machine,
        reference=reference,
        unique_tokens=unique_tokens,
        inference_tokens=inference_tokens,
        context=context,
        convention=convention,
        request=request,
    )
    answer = _answer(question)
    answer = _with_cost(answer, question, gpu_hours_used)
    answer = replace(answer, comparisons=tuple(compare_choice(question, parse_choice(c)) for c in comparisons))
    if question.law.draws is not None:
        answer = with_uncertainty(answer, question, level)
    elif question.law.covariance is not None:
        answer = replace(answer, intervals=delta_intervals(question, level))
    if other_laws:
        answer = with_other_laws(answer, question, other_laws)
    return with_shape(answer, question, request, asked=shape is not None)


# --- the question -----------------------------------------------------------------------------------------------------


def _positive(value, name) -> float | None:
    return None if value is None else parse_positive(value, name=name)


def _smallest_run(request: ShapeRequest, context: int | None) -> dict:
    if request.batch_tokens is not None:
        return {"min_tokens": float(request.batch_tokens), "min_tokens_reason": "one batch"}
    if context is not None:
        return {"min_tokens": float(context), "min_tokens_reason": "one sequence"}
    return {}


def _ask(
    law, budget, constraints, machine, *, reference, unique_tokens, inference_tokens, context, convention, request
) -> Question:
    surface, notes = make_surface(law.law, unique_tokens)
    family = make_family(request)
    cost = Cost(convention, family if convention != "6nd" else None, inference_tokens)
    question = Question(law, surface, cost, budget, constraints, machine, tuple(notes))
    if reference is not None:
        question = refer_to(question, reference)
    if context is None:
        return question
    question = with_attention(question, family, context)
    return question if reference is None else refer_to(question, reference)


def make_family(request: ShapeRequest) -> Family:
    """The continuous family of shapes that the conventions beyond 6ND need, at the middle of the aspect range."""
    low, high = request.aspect_range(float("inf"))
    return Family(
        vocab_size=request.vocab_size,
        context=request.context,
        aspect=(low * high) ** 0.5,
        ff_ratio=request.ff_ratio,
        gated_mlp=request.gated_mlp,
        kv_ratio=1 / request.kv_groups,
        tied=request.tied,
        learned_positions=request.positions == "learned",
        norm_width=2 if request.norm == "layer" else 1,
    )


# --- the answer -------------------------------------------------------------------------------------------------------


def _answer(q: Question) -> Allocation:
    point = solve(q.surface, q.cost, q.flops, q.constraints)
    flops = q.cost.training(point.N, point.D)
    factor, far = extrapolation(q.law, flops)
    return Allocation(
        params=point.N,
        tokens=point.D,
        flops=flops,
        loss=q.surface.loss(point.N, point.D),
        budget=q.budget,
        law=q.law,
        convention=q.cost.equation,
        constraints=tuple(described(q)),
        binding=tuple(name for name in point.binding if name),
        closed_form=closed_form(q.surface, q.cost) and q.constraints.free,
        near_optimal=near_optimal(q.surface, q.cost, point, q.constraints) if q.constraints.free else (),
        marginal=marginal(q.surface, q.cost, point, q.constraints),
        extrapolation_factor=factor,
        inference=inference_saving(q, point),
        data=data_use(q, point),
        attention=q.attention,
        reference=q.reference,
        surface=q.surface,
        costing=q.cost,
        warnings=(*q.law.warnings, *far, *no_draws(q.law), *rounding(q, point), *unspent(q, point), *q.notes),
    )


def _with_cost(answer: Allocation, q: Question, used: float | None) -> Allocation:
    cost = q.machine.cost(answer.flops)
    if used is not None:
        mfu = implied_mfu(answer.flops, used, q.machine.peak_flops)
        cost |= {"gpu_hours_used": used, "implied_mfu": mfu}
        if mfu > 1:
            note = f"Implied MFU {mfu:.2f} is above 1: the hours, the peak or the FLOP count must be wrong."
            answer = replace(answer, warnings=(*answer.warnings, note))
    return replace(answer, cost=cost)
