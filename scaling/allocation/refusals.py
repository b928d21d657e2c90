"""What has no answer, said with the constraint that stands in the way."""

import math

from scaling.allocation.constraints import Constraints
from scaling.allocation.either import LOG_MAX
from scaling.allocation.spend import Point
from scaling.errors import AllocationError
from scaling.quantities import format_flops, format_quantity


def check_reachable(surface, c: Constraints) -> None:
    far, target = math.exp(LOG_MAX), c.target_loss
    limits = [
        f"{name} {format_quantity(value)}"
        for name, value in (
            ("N fixed at", c.params),
            ("N at most", c.max_params),
            ("D fixed at", c.tokens),
            ("D at most", c.max_tokens),
        )
        if value is not None
    ]
    floor = surface.law.constants().get("E")
    if floor is not None and target <= floor:
        raise AllocationError(
            f"target loss {target:g} is at or below the irreducible loss E = {floor:.6g} of this law: "
            "no model reaches it. Ask for a higher loss."
        )
    best = surface.loss(c.params or c.max_params or far, c.tokens or c.max_tokens or far)
    if best >= target:
        limited = " and ".join(limits) or "repeated tokens"
        raise AllocationError(
            f"target loss {target:g} cannot be reached: with {limited} the loss stays above {best:.6g}. "
            "Relax the limit or ask for a higher loss."
        )


def verify(point: Point, surface, cost, budget, c: Constraints) -> None:
    N, D = point.N, point.D
    if not (math.isfinite(N) and math.isfinite(D)) or N > 1e29 or D > 1e29:
        raise AllocationError("no finite N and D answer this; relax a constraint or check the law's constants.")
    if D <= 0:
        raise AllocationError(
            f"serving {format_quantity(cost.inference_tokens)} tokens with N = {format_quantity(N)} costs "
            f"{format_flops(cost.inference(N))} FLOP and leaves nothing of the budget {format_flops(budget)} "
            "for training. Raise the budget, or lower N or the inference tokens."
        )
    if N < 1:
        raise AllocationError(
            f"the answer would have {N:.3g} parameters, which is less than one. Raise the budget or check the law."
        )
    if D < c.min_tokens * (1 - 1e-12):
        raise AllocationError(
            f"the answer would train on {D:.4g} tokens, below one step ({c.min_tokens_reason}, "
            f"{format_quantity(c.min_tokens)} tokens). Raise the budget, or take a smaller batch or context."
        )
    for value, limit, name in ((N, c.max_params, "params"), (D, c.max_tokens, "tokens")):
        if limit is not None and value > limit * (1 + 1e-9):
            raise AllocationError(
                f"reaching this needs {format_quantity(value)} {name}, above max {name} {format_quantity(limit)}."
            )
    if c.target_loss is not None and surface.loss(N, D) > c.target_loss * (1 + 1e-9):
        raise AllocationError(
            f"N = {format_quantity(N)} on D = {format_quantity(D)} gives loss {surface.loss(N, D):.6g}, "
            f"above the target {c.target_loss:g}."
        )
    if budget is not None and cost.total(N, D) > budget * (1 + 1e-9):
        raise AllocationError(
            f"this needs {format_flops(cost.total(N, D))} FLOP (N = {format_quantity(N)}, "
            f"D = {format_quantity(D)}), above the budget of {format_quantity(budget)}. "
            "Raise the budget or relax a constraint."
        )
