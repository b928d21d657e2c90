"""The question as asked, checked and resolved: law, cost, constraints, budget, machine, and what had to be assumed."""

from dataclasses import dataclass, replace
from typing import Any

from scaling.allocation.budget import Budget, Machine
from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost, Family, without_inference
from scaling.allocation.law_choice import LawChoice
from scaling.allocation.spend import optimal_params, optimal_tokens_for
from scaling.allocation.surface import Surface

ATTENTION_MATTERS = 0.10  # as a share of 6N: above it 6ND is no longer a fair count


@dataclass(frozen=True)
class Question:
    """Everything `solve` needs, and what the answer reports about how it was put."""

    law: LawChoice
    surface: Surface
    cost: Cost
    budget: Budget | None
    constraints: Constraints
    machine: Machine
    notes: tuple[str, ...] = ()
    reference: dict[str, Any] | None = None
    attention: dict[str, Any] | None = None

    @property
    def flops(self) -> float | None:
        return self.budget.flops if self.budget else None


def with_attention(question: Question, family: Family, context: int) -> Question:
    """Count the attention term when it exceeds 10 % of 6N at the answer under 6ND; report the share either way."""
    N = _rough_params(question)
    if N is None:
        return question
    share = family.attention_share(N)
    matters = share > ATTENTION_MATTERS
    cost = _counting(question.cost, family) if matters and question.cost.convention == "6nd" else question.cost
    counted = cost.convention in ("6nd+attention", "exact")
    attention = {
        "context": context,
        "share_of_6N": share,
        "counted": counted,
        "aspect_ratio": family.aspect,
        "layers": family.layers(N),
        "d_model": family.width(N),
    }
    if not matters:
        return replace(question, attention=attention)
    note = (
        f"Attention at context {context:,} is {share:.0%} of 6N: it is {'counted' if counted else 'NOT counted'}, "
        f"{cost.equation}, judged on shapes of d/L = {family.aspect:.3g}."
    )
    return replace(question, cost=cost, attention=attention, notes=(*question.notes, note))


def _counting(cost: Cost, family: Family) -> Cost:
    return Cost("6nd+attention", family, cost.inference_tokens)


def _rough_params(question: Question) -> float | None:
    """N at which the share of attention is judged: the answer under 6ND, without serving and limits."""
    c = question.constraints
    if c.params is not None:
        return c.params
    if question.flops is not None:
        N = optimal_params(question.surface, Cost(), question.flops)
        return N if c.max_params is None else min(N, c.max_params)
    if question.reference is not None:
        return question.reference["params"]
    return None if c.tokens is None else optimal_params_for_tokens(question.surface, c.tokens)


def optimal_params_for_tokens(surface: Surface, D: float) -> float:
    """N whose compute-optimal D, under 6ND, is that many tokens."""
    from scaling.allocation.either import LOG_MAX, exp
    from scaling.roots import bisect

    return exp(bisect(lambda x: optimal_tokens_for(surface, Cost(), exp(x)) - D, 0.0, LOG_MAX))


def refer_to(question: Question, N: float) -> Question:
    """Make the loss of a compute-optimal model of N parameters, training alone, the target."""
    training = without_inference(question.cost)
    D = optimal_tokens_for(question.surface, training, N)
    loss = question.surface.loss(N, D)
    reference = {
        "params": N,
        "tokens": D,
        "flops": training.training(N, D),
        "lifetime_flops": question.cost.total(N, D),
        "loss": loss,
    }
    return replace(
        question,
        constraints=replace(question.constraints, target_loss=loss),
        reference=reference,
    )
