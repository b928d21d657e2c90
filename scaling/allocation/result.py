"""Allocation: the answer, with everything needed to judge it, and its JSON."""

from dataclasses import dataclass, field
from typing import Any

from scaling.allocation.budget import Budget
from scaling.allocation.cost import Cost
from scaling.allocation.law_choice import LawChoice
from scaling.allocation.surface import Surface
from scaling.shape_plan import ShapePlan


@dataclass(frozen=True)
class NearOptimal:
    """The sizes N that are nearly as good: loss within a share at the same C, or equal loss for a share more C."""

    within: float
    kind: str  # "loss" or "compute"
    params: tuple[float, float]
    tokens: tuple[float, float]  # at the two ends, in the order of params

    def to_dict(self) -> dict:
        return {f"{self.kind}_within": self.within, "params": list(self.params), "tokens": list(self.tokens)}


@dataclass(frozen=True)
class Marginal:
    """The Lagrange multiplier as what it means."""

    loss_per_doubling: float  # nats per token won by twice the compute, everything re-solved
    loss_at_double: float
    multiplier: float  # -dL/dC at the answer, nats per token per FLOP

    def to_dict(self) -> dict:
        return {
            "loss_per_doubling": self.loss_per_doubling,
            "loss_at_double": self.loss_at_double,
            "lagrange_multiplier": self.multiplier,
        }


@dataclass(frozen=True)
class Allocation:
    """N parameters on D tokens: the best answer to the budget and the constraints under one law.

    `params` and `tokens` are counts, `flops` the training compute under `convention`, `loss` nats per token on the
    scale of the law's own data. Whatever could not be computed is None and `warnings` says why.
    """

    params: float
    tokens: float
    flops: float
    loss: float
    budget: Budget | None
    law: LawChoice
    convention: str  # C as a formula
    constraints: tuple[str, ...] = ()
    binding: tuple[str, ...] = ()
    closed_form: bool = False
    intervals: dict | None = None
    near_optimal: tuple[NearOptimal, ...] = ()
    marginal: Marginal | None = None
    extrapolation_factor: float | None = None
    inference: dict | None = None
    data: dict | None = None
    attention: dict | None = None
    comparisons: tuple[dict, ...] = ()
    robust: dict | None = None
    laws: tuple[dict, ...] = ()
    robust_across_laws: dict | None = None
    reference: dict | None = None
    shape: dict | None = None
    cost: dict | None = None
    warnings: tuple[str, ...] = ()
    # the objects behind the numbers, for pictures and grids; not in the JSON
    plan: ShapePlan | None = field(default=None, repr=False)
    surface: Surface | None = field(default=None, repr=False)
    costing: Cost | None = field(default=None, repr=False)

    @property
    def tokens_per_param(self) -> float:
        return self.tokens / self.params

    def to_dict(self) -> dict:
        """The JSON of `scale allocate --json`. Keys that do not apply are left out."""
        data: dict[str, Any] = {
            "budget": self.budget.to_dict() if self.budget else None,
            "law": self.law.to_dict(),
            "params": self.params,
            "tokens": self.tokens,
            "flops": self.flops,
            "tokens_per_param": self.tokens_per_param,
            "loss": self.loss,
            "intervals": self.intervals,
            "near_optimal": self._near_optimal(),
            "extrapolation_factor": self.extrapolation_factor,
            "marginal": self.marginal.to_dict() if self.marginal else None,
            "shape": self.shape,
            "cost": self.cost,
            "conventions": {
                "params": "as counted by the runs behind the law; all parameters, unless its source says otherwise",
                "flops": self.convention,
                "loss": "nats per token, on the data and tokenizer of the law's own runs",
                "solved": "closed form" if self.closed_form else "numerically",
            },
        }
        optional = {
            "constraints": list(self.constraints),
            "binding": [b for b in self.binding if b],
            "inference": self.inference,
            "data": self.data,
            "attention": self.attention,
            "comparisons": list(self.comparisons),
            "robust": self.robust,
            "laws": list(self.laws),
            "robust_across_laws": self.robust_across_laws,
            "reference": self.reference,
        }
        data |= {key: value for key, value in optional.items() if value}
        data["warnings"] = list(self.warnings)
        return data

    def _near_optimal(self) -> dict | None:
        """The first range at the top level, the one most asked for; the others under "ranges"."""
        if not self.near_optimal:
            return None
        return {**self.near_optimal[0].to_dict(), "ranges": [r.to_dict() for r in self.near_optimal]}
