"""Named models against a law: were N and D in proportion, and what did the disproportion cost.

Losses are on the scale of the law's own data, so only the gap, the waste and the verdict mean anything here. 6ND is
used throughout: what a model truly cost depends on its shape, its context and its recipe.
"""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scaling.allocation.comparison import compare
from scaling.allocation.cost import Cost
from scaling.allocation.law_choice import LawChoice, choose_law
from scaling.allocation.remarks import extrapolation
from scaling.allocation.surface import Surface, make_surface
from scaling.errors import InputError
from scaling.quantities import format_quantity, parse_positive

CATALOGUE = Path(__file__).parent / "data" / "models.json"
BALANCED = 1.10  # compute factor up to which a split counts as balanced
NAME_COLUMNS = ("name", "model")
PARAMS_COLUMNS = ("params", "parameters", "n", "n_params")
TOKENS_COLUMNS = ("tokens", "d", "n_tokens")


@dataclass(frozen=True)
class NamedModel:
    """A trained model: N parameters, D tokens, and where the two numbers come from."""

    name: str
    params: float
    tokens: float
    date: str | None = None
    source: str = "given by the user"
    certain: bool = True
    note: str | None = None


@dataclass(frozen=True)
class Audited:
    """A model beside the optimum of its own compute under a law."""

    model: NamedModel
    flops: float
    params_optimal: float
    tokens_optimal: float
    loss: float
    loss_gap: float
    wasted_compute_factor: float
    verdict: str
    inference_tokens: float | None  # served tokens for which this split would be the cheapest over its life
    extrapolation_factor: float | None
    intervals: dict | None = None

    @property
    def tokens_per_param(self) -> float:
        return self.model.tokens / self.model.params

    def to_dict(self) -> dict[str, Any]:
        """As JSON, units in the names: counts, FLOP, nats per token."""
        model = self.model
        return {
            "name": model.name,
            "params": model.params,
            "tokens": model.tokens,
            "flops": self.flops,
            "tokens_per_param": self.tokens_per_param,
            "params_optimal": self.params_optimal,
            "tokens_optimal": self.tokens_optimal,
            "tokens_per_param_optimal": self.tokens_optimal / self.params_optimal,
            "loss": self.loss,
            "loss_gap": self.loss_gap,
            "wasted_compute_factor": self.wasted_compute_factor,
            "verdict": self.verdict,
            "inference_tokens_that_justify_it": self.inference_tokens,
            "extrapolation_factor": self.extrapolation_factor,
            "intervals": self.intervals,
            "date": model.date,
            "source": model.source,
            "certain": model.certain,
            "note": model.note,
        }

    def sentence(self, law: str) -> str:
        """The finding in words: the ratio used is a fact about the model, not an optimum."""
        ratio = self.tokens_optimal / self.params_optimal
        text = (
            f"{self.model.name}: {format_quantity(self.model.params)} on {format_quantity(self.model.tokens)} tokens, "
            f"D/N {self.tokens_per_param:.3g}. That is the ratio it used, not an optimum: under {law} the same "
            f"{format_quantity(self.flops)} FLOP are best spent on {format_quantity(self.params_optimal)} and "
            f"{format_quantity(self.tokens_optimal)} tokens (D/N {ratio:.3g}), "
            f"for a loss lower by {self.loss_gap:.4f}; "
            f"its loss could be had for {1 / self.wasted_compute_factor:.0%} of the compute. Verdict: {self.verdict}."
        )
        if self.inference_tokens:
            served = format_quantity(self.inference_tokens, digits=2)
            text += f" Serving {served} tokens would make its split the cheapest over its life."
        return text


@dataclass(frozen=True)
class Audit:
    """All models against one law."""

    law: LawChoice
    models: tuple[Audited, ...]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "law": self.law.to_dict(),
            "conventions": {"flops": "C = 6 N D", "balanced": f"compute factor at most {BALANCED:g}"},
            "models": [model.to_dict() for model in self.models],
            "warnings": list(self.warnings),
        }


def audit(models: Iterable[NamedModel] | None = None, *, law: Any = None, level: float = 0.95) -> Audit:
    """Set models (None: the catalogue) against a law (as `allocate` takes it), by 6ND.

    Verdicts: balanced where the same loss needs at most 10 % less compute; undertrained where N is too large for D;
    over-trained where N is too small for D, which pays when enough tokens are served. Raises InputError for an empty
    list and LawError for a law that cannot be used.
    """
    choice = choose_law(law)
    chosen = tuple(known_models() if models is None else models)
    if not chosen:
        raise InputError("audit: no models. Name one with --model NAME=N,D, or give a CSV.")
    surface, _ = make_surface(choice.law, None)
    rows = tuple(_audit_one(model, choice, surface, level) for model in chosen)
    return Audit(choice, rows, (*choice.warnings, *_warnings(choice, rows)))


def _audit_one(model: NamedModel, choice: LawChoice, surface: Surface, level: float) -> Audited:
    found = compare(surface, Cost(), None, (model.params, model.tokens))
    factor = found["wasted_compute_factor"]
    over_trained = model.params < found["params_optimal"] and factor > BALANCED
    return Audited(
        model=model,
        flops=found["flops"],
        params_optimal=found["params_optimal"],
        tokens_optimal=found["tokens_optimal"],
        loss=found["loss"],
        loss_gap=found["loss_gap"],
        wasted_compute_factor=factor,
        verdict=_verdict(model.params, found["params_optimal"], factor),
        inference_tokens=justifying_inference(surface, model.params, model.tokens) if over_trained else None,
        extrapolation_factor=extrapolation(choice, found["flops"])[0],
        intervals=_intervals(choice, surface, model, level),
    )


def _verdict(params: float, optimal: float, factor: float) -> str:
    if factor <= BALANCED:
        return "balanced"
    return "undertrained" if params > optimal else "over-trained, as for inference"


def justifying_inference(surface: Surface, N: float, D: float) -> float | None:
    """Tokens served over its life for which (N, D) is the cheapest way to its loss, by 6ND + 2N D_inf.

    From the Lagrange condition dL/dlog N * D / (D + D_inf / 3) = dL/dlog D; None where N is not below the optimum.
    """
    in_N, in_D = surface.slopes(N, D)
    served = 3 * D * (in_N / in_D - 1)
    return served if served > 0 else None


def _intervals(choice: LawChoice, surface: Surface, model: NamedModel, level: float) -> dict | None:
    """Percentile intervals of N* and of the compute factor over the draws of a fit."""
    if choice.draws is None:
        return None
    from scaling.allocation import uncertainty
    from scaling.allocation.spend import optimal_params

    draws = uncertainty.stack_draws(choice, surface)
    best = optimal_params(draws.surface, Cost(), 6 * model.params * model.tokens)
    factors = uncertainty.wasted_factors(draws, Cost(), model.params, model.tokens)
    return {
        "level": level,
        "params_optimal": uncertainty.interval(best, level),
        "wasted_compute_factor": uncertainty.interval(factors, level),
    }


def _warnings(choice: LawChoice, rows: Sequence[Audited]) -> list[str]:
    notes = [f"{row.model.name}: N or D is not certain: {row.model.note}." for row in rows if not row.model.certain]
    far = [row for row in rows if (row.extrapolation_factor or 1) > 10]
    if far:
        worst = max(row.extrapolation_factor or 1 for row in far)
        notes.append(
            f"{len(far)} of {len(rows)} models lie more than 10 times outside the compute behind {choice.name}, "
            f"up to {worst:.3g} times: extrapolations."
        )
    return notes


# --- where models come from -------------------------------------------------------------------------------------------


@cache
def known_models() -> tuple[NamedModel, ...]:
    """The catalogue of public models, oldest first."""
    return tuple(NamedModel(**entry) for entry in json.loads(CATALOGUE.read_text(encoding="utf-8"))["models"])


def select_models(names: Sequence[str]) -> tuple[NamedModel, ...]:
    """Models of the catalogue whose name is, or begins with the words of, one of `names`, case aside.

    Raises InputError, listing the known, for no match.
    """
    chosen: list[NamedModel] = []
    for name in names:
        start = name.strip().lower()
        found = [model for model in known_models() if f"{model.name} ".lower().startswith((f"{start} ", f"{start}."))]
        if not found:
            known = ", ".join(model.name for model in known_models())
            raise InputError(f'unknown model "{name}". Known: {known}. Give your own as --model NAME=N,D.')
        chosen += [model for model in found if model not in chosen]
    return tuple(chosen)


def parse_model(text: str) -> NamedModel:
    """ "NAME=70B,1.4T". Raises InputError that shows the form."""
    name, separator, numbers = text.partition("=")
    parts = numbers.split(",")
    if not name.strip() or not separator or len(parts) != 2:
        raise InputError(f'model "{text}": write NAME=N,D, for example mine=70B,1.4T.')
    params, tokens = (parse_positive(part, name=f"model {name.strip()}") for part in parts)
    return NamedModel(name.strip(), params, tokens)


def read_models(path: str | os.PathLike) -> tuple[NamedModel, ...]:
    """Models from a CSV with columns name, params and tokens (or model, N, D). Raises InputError, with the line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = "is a folder; give a file" if Path(path).is_dir() else f"cannot be read ({error})"
        raise InputError(f"{path}: {what}.") from error
    reader = csv.DictReader(text.splitlines())
    header = reader.fieldnames or []
    columns = [_column(path, header, wanted) for wanted in (NAME_COLUMNS, PARAMS_COLUMNS, TOKENS_COLUMNS)]
    models = tuple(_read_row(path, reader.line_num, row, columns) for row in reader)
    if not models:
        raise InputError(f"{path}: no rows below the header.")
    return models


def _column(path, header: Sequence[str], wanted: Sequence[str]) -> str:
    for name in header:
        if name and name.strip().lower() in wanted:
            return name
    found = ", ".join(header) or "nothing"
    raise InputError(f"{path}: no column {wanted[0]} (or {', '.join(wanted[1:])}); found {found}.")


def _read_row(path, line: int, row: dict, columns: Sequence[str]) -> NamedModel:
    name, params, tokens = ((row[column] or "").strip() for column in columns)
    where = f"{path} line {line}"
    if not name:
        raise InputError(f"{where}: the name is empty.")
    return NamedModel(
        name,
        parse_positive(params, name=f"{where}: params"),
        parse_positive(tokens, name=f"{where}: tokens"),
        source=str(path),
    )
