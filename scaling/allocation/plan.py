"""`allocate`: from a budget, a target or a reference to an Allocation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scaling.accounting import Shape, count_parameters, flops_per_token
from scaling.allocation.budget import Budget, Machine, make_budget, make_machine
from scaling.allocation.comparison import compare, parse_choice, robust_across
from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost, Family, without_inference
from scaling.allocation.delta import delta_intervals
from scaling.allocation.law_choice import LawChoice, choose_law
from scaling.allocation.nearness import marginal, near_optimal
from scaling.allocation.question import Question, refer_to, with_attention
from scaling.allocation.result import Allocation
from scaling.allocation.solver import Point, cheapest, closed_form, solve
from scaling.allocation.surface import Surface, make_surface
from scaling.errors import AllocationError, ScalingError
from scaling.hardware import implied_mfu
from scaling.laws import PUBLISHED, law_to_dict
from scaling.quantities import format_quantity, parse_positive
from scaling.shapes import ShapePlan, ShapeRequest, plan_shape

ROUNDED = "hoffmann2022-rounded"
FAR = 10.0  # an extrapolation factor that deserves a warning


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
    answer = replace(answer, comparisons=tuple(_compare(question, parse_choice(c)) for c in comparisons))
    if question.law.draws is not None:
        answer = _with_uncertainty(answer, question, level)
    elif question.law.covariance is not None:
        answer = replace(answer, intervals=delta_intervals(question, level))
    if other_laws:
        answer = _with_other_laws(answer, question, other_laws)
    return _with_shape(answer, question, request, asked=shape is not None)


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
        inference=_inference(q, point),
        data=_data(q, point),
        attention=q.attention,
        reference=q.reference,
        surface=q.surface,
        costing=q.cost,
        warnings=(*q.law.warnings, *far, *_no_draws(q.law), *_rounding(q, point), *_unspent(q, point), *q.notes),
    )


def described(q: Question) -> list[str]:
    """The constraints in words."""
    texts = q.constraints.described()
    if q.reference:
        N, D = (format_quantity(q.reference[key]) for key in ("params", "tokens"))
        texts.append(f"that loss being the one of a compute-optimal {N} on {D} tokens")
    if q.surface.unique_tokens is not None:
        texts.append(f"{format_quantity(q.surface.unique_tokens)} distinct tokens")
    if q.cost.inference_tokens:
        texts.append(f"{format_quantity(q.cost.inference_tokens)} tokens served, their compute counted")
    return texts


def extrapolation(choice: LawChoice, flops: float) -> tuple[float | None, list[str]]:
    """How far C lies outside the compute the law was fitted on, as a factor of at least 1, and what to say of it."""
    if choice.flops_range is None:
        return None, [f"{choice.name} does not say what compute it was fitted on: no extrapolation factor."]
    low, high = choice.flops_range
    factor = max(1.0, flops / high, low / flops)
    if factor <= FAR:
        return factor, []
    end, edge = ("above the largest", high) if flops > high else ("below the smallest", low)
    return factor, [
        f"{format_quantity(flops)} FLOP is {factor:.3g} times {end} run behind {choice.name} "
        f"({format_quantity(edge)}): an extrapolation."
    ]


def _no_draws(choice: LawChoice) -> list[str]:
    if choice.draws is not None or choice.covariance is not None:
        return []
    if choice.status is None:
        return [f"No intervals: {choice.name} is published as constants, without joint draws. Fit runs to have them."]
    return [f"No intervals: {choice.name} holds no draws. Fit again with resamples."]


def _rounding(q: Question, point: Point) -> list[str]:
    """What the printed digits of Hoffmann's constants do to the answer."""
    if q.law.name != ROUNDED:
        return []
    exact, _ = make_surface(PUBLISHED["hoffmann2022"].law, q.surface.unique_tokens)
    try:
        other = solve(exact, q.cost, q.cost.total(point.N, point.D), replace(q.constraints, target_loss=None))
    except ScalingError:
        return []
    return [
        f"These are the constants as printed, to two digits. At the same compute the unrounded ones (hoffmann2022) "
        f"give N = {format_quantity(other.N)} on D = {format_quantity(other.D)}: rounding alone moves N by "
        f"{point.N / other.N - 1:+.0%}."
    ]


def _unspent(q: Question, point: Point) -> list[str]:
    if q.flops is None or q.constraints.target_loss is not None:
        return []
    share = q.cost.total(point.N, point.D) / q.flops
    if share > 1 - 1e-9:
        return []
    held = " and ".join(q.constraints.described())
    return [f"Only {share:.1%} of the budget is spent: {held} leave no use for more."]


def _inference(q: Question, point: Point) -> dict | None:
    """Lifetime compute, against the model that is optimal for training alone at the same loss."""
    if not q.cost.inference_tokens:
        return None
    training = without_inference(q.cost)
    loss = q.surface.loss(point.N, point.D)
    alone = cheapest(q.surface, training, loss, Constraints())
    lifetime, other = q.cost.total(point.N, point.D), q.cost.total(alone.N, alone.D)
    return {
        "inference_tokens": q.cost.inference_tokens,
        "inference_flops": q.cost.inference(point.N),
        "lifetime_flops": lifetime,
        "training_only": {
            "params": alone.N,
            "tokens": alone.D,
            "flops": training.training(alone.N, alone.D),
            "lifetime_flops": other,
        },
        "saved_flops": other - lifetime,
        "saved_share": 1 - lifetime / other,
        "convention": "6 N D + 2 N D_inf" if q.cost.convention == "6nd" else "c(N) (D + D_inf / 3)",
        "constants": law_to_dict(q.law.law),
    }


def _data(q: Question, point: Point) -> dict | None:
    """Epochs, and what the repeats cost."""
    unique = q.surface.unique_tokens
    if unique is None:
        return None
    fresh = replace(q.surface, unique_tokens=None)
    law = q.surface.law
    return {
        "unique_tokens": unique,
        "epochs": point.D / unique,
        "loss_if_all_fresh": fresh.loss(point.N, point.D),
        "R_D_star": law.R_D_star,
        "R_N_star": law.R_N_star,
        "note": "Absolute losses need not match observed runs; the law ranks choices of N and epochs.",
    }


def _with_cost(answer: Allocation, q: Question, used: float | None) -> Allocation:
    cost = q.machine.cost(answer.flops)
    if used is not None:
        mfu = implied_mfu(answer.flops, used, q.machine.peak_flops)
        cost |= {"gpu_hours_used": used, "implied_mfu": mfu}
        if mfu > 1:
            note = f"Implied MFU {mfu:.2f} is above 1: the hours, the peak or the FLOP count must be wrong."
            answer = replace(answer, warnings=(*answer.warnings, note))
    return replace(answer, cost=cost)


def _compare(q: Question, choice: tuple[float, float | None]) -> dict:
    budget = q.flops
    if budget is None and q.constraints.free:
        point = solve(q.surface, q.cost, None, q.constraints)
        budget = q.cost.total(point.N, point.D)
    return compare(q.surface, q.cost, budget, choice)


# --- uncertainty, other laws, shape -----------------------------------------------------------------------------------


def _with_uncertainty(answer: Allocation, q: Question, level: float) -> Allocation:
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


def _with_other_laws(answer: Allocation, q: Question, others: Sequence[Any]) -> Allocation:
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


def _with_shape(answer: Allocation, q: Question, request: ShapeRequest, *, asked: bool) -> Allocation:
    """The buildable shape; where none fits and none was asked for, a warning says why there is none."""
    try:
        plan = make_shape(answer, q, request)
    except AllocationError as error:
        if asked:
            raise
        return replace(answer, warnings=(*answer.warnings, f"No shape: {error}"))
    shape = plan.to_dict()
    if q.machine.memory_bytes:
        from scaling.memory import training_memory

        shape["memory"]["fewest_devices"] = training_memory(plan.shape).devices(q.machine.memory_bytes)
    return replace(answer, shape=shape, plan=plan, warnings=(*answer.warnings, *plan.warnings))


def make_shape(answer: Allocation, q: Question, request: ShapeRequest) -> ShapePlan:
    """`shapes.plan_shape` with this question's convention and law."""
    return plan_shape(
        answer.params,
        request,
        flops=q.cost.total(answer.params, answer.tokens),
        served_tokens=q.cost.inference_tokens / 3,
        flops_of=lambda shape: shape_flops_per_token(shape, q.cost.convention),
        loss_of=q.surface.loss,
        best_loss=answer.loss,
        max_params=q.constraints.max_params,
        max_tokens=q.constraints.max_tokens,
    )


def shape_flops_per_token(shape: Shape, convention: str) -> float:
    """Training FLOPs per token of a concrete shape under a convention of `cost.CONVENTIONS`."""
    count, flops = count_parameters(shape), flops_per_token(shape)
    return {
        "6nd": 6.0 * count.total,
        "kaplan": 6.0 * count.non_embedding,
        "6nd+attention": 6.0 * count.total + flops.attention,
        "exact": flops.total,
    }[convention]
