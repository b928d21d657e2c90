"""What an answer says of itself: constraints in words, extrapolation, rounding, unspent budget, serving, repeats."""

from dataclasses import replace

from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import without_inference
from scaling.allocation.law_choice import LawChoice
from scaling.allocation.question import Question
from scaling.allocation.reach import cheapest
from scaling.allocation.solver import solve
from scaling.allocation.spend import Point
from scaling.allocation.surface import make_surface
from scaling.errors import ScalingError
from scaling.laws import PUBLISHED, law_to_dict
from scaling.quantities import format_flops, format_quantity

ROUNDED = "hoffmann2022-rounded"
FAR = 10.0  # an extrapolation factor that deserves a warning


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
        f"{format_flops(flops)} FLOP is {factor:.3g} times {end} run behind {choice.name} "
        f"({format_flops(edge)}): an extrapolation."
    ]


def no_draws(choice: LawChoice) -> list[str]:
    if choice.draws is not None or choice.covariance is not None:
        return []
    if choice.status is None:
        return [f"No intervals: {choice.name} is published as constants, without joint draws. Fit runs to have them."]
    return [f"No intervals: {choice.name} holds no draws. Fit again with resamples."]


def rounding(q: Question, point: Point) -> list[str]:
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


def unspent(q: Question, point: Point) -> list[str]:
    if q.flops is None or q.constraints.target_loss is not None:
        return []
    share = q.cost.total(point.N, point.D) / q.flops
    if share > 1 - 1e-9:
        return []
    held = " and ".join(q.constraints.described())
    return [f"Only {share:.1%} of the budget is spent: {held} leave no use for more."]


def inference_saving(q: Question, point: Point) -> dict | None:
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


def data_use(q: Question, point: Point) -> dict | None:
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
