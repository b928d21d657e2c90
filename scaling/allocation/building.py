"""From the answer to a shape that can be built, under the answer's own convention and limits."""

from dataclasses import replace

from scaling.accounting import Shape, count_parameters, flops_per_token
from scaling.allocation.question import Question
from scaling.allocation.result import Allocation
from scaling.errors import AllocationError
from scaling.shape_plan import ShapePlan, plan_shape
from scaling.shapes import ShapeRequest


def with_shape(answer: Allocation, q: Question, request: ShapeRequest, *, asked: bool) -> Allocation:
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
