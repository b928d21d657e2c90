"""Which law an answer rests on: a published name, a fit.json, or a law object, with what is known about its trust."""

import json
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from scaling.errors import LawError
from scaling.laws import DEFAULT_LAW, PUBLISHED, PublishedLaw, law_to_dict, published_law

COVARIANCES = Path(__file__).parents[1] / "data" / "covariances.json"


@dataclass(frozen=True)
class Covariance:
    """Joint covariance of a law's constants; a variable `log_A` is the logarithm of the constant A."""

    variables: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]
    source: str


@dataclass(frozen=True)
class LawChoice:
    """A law, where it comes from, the compute it was fitted on (FLOP) and its joint draws, if any."""

    law: Any
    name: str
    source: str
    flops_range: tuple[float, float] | None = None
    status: str | None = None  # of the fit; None for published constants
    draws: Any | None = None  # (resamples, constants)
    draw_names: tuple[str, ...] = ()
    covariance: Covariance | None = None  # of published constants, where it could be computed
    warnings: tuple[str, ...] = ()

    def thinned(self, most: int) -> "LawChoice":
        """The same with at most that many draws, evenly taken."""
        if self.draws is None or len(self.draws) <= most:
            return self
        return replace(self, draws=self.draws[:: -(-len(self.draws) // most)])

    def to_dict(self) -> dict:
        """The law for JSON: form, constants, name, source, fitted range."""
        return {
            **law_to_dict(self.law),
            "name": self.name,
            "source": self.source,
            "equation": self.law.equation,
            "status": self.status,
            "flops_range": list(self.flops_range) if self.flops_range else None,
        }


def choose_law(law: Any = None) -> LawChoice:
    """Resolve `law`: None (the default law), a published name, the path of a fit.json, a read fit or a law object.

    Raises LawError for an unknown name (it lists the known), for a fit whose constants are missing, and for one whose
    status is `unidentifiable`; InputError for a file that cannot be read.
    """
    if isinstance(law, LawChoice):
        return law
    if law is None:
        return _from_published(published_law(DEFAULT_LAW))
    if isinstance(law, PublishedLaw):
        return _from_published(law)
    if isinstance(law, str | os.PathLike):
        return _from_text(law)
    if hasattr(law, "loss") and hasattr(law, "constants"):
        return LawChoice(law, getattr(law, "form", type(law).__name__), "given as constants")
    return _from_fit(law)


def _from_text(law: str | os.PathLike) -> LawChoice:
    if isinstance(law, str) and law in PUBLISHED:
        return _from_published(PUBLISHED[law])
    if not str(law).strip():
        raise LawError("law: the name is empty. Give a published law (scale allocate --list-laws) or a fit.json.")
    path = Path(law)
    looks_like_a_file = path.suffix != "" or os.sep in str(law) or path.exists()
    if not looks_like_a_file:
        return _from_published(published_law(str(law)))  # raises, naming the known laws
    from scaling.fit_file import read_fit

    return _from_fit(read_fit(law))


def _from_published(entry: PublishedLaw) -> LawChoice:
    return LawChoice(entry.law, entry.name, entry.source, entry.flops_range, covariance=_covariances().get(entry.name))


@cache
def _covariances() -> dict[str, Covariance]:
    entries = json.loads(COVARIANCES.read_text(encoding="utf-8"))["laws"]
    return {
        name: Covariance(tuple(entry["variables"]), tuple(map(tuple, entry["covariance"])), entry["source"])
        for name, entry in entries.items()
    }


def _from_fit(fit: Any) -> LawChoice:
    """From a FitFile, or a fit result in memory: anything with a law and a status."""
    if not hasattr(fit, "law") or not hasattr(fit, "status"):
        raise LawError(f"law: cannot use {type(fit).__name__}; give a name, a fit.json, or a law.")
    path = str(getattr(fit, "path", "fit"))
    status = str(getattr(fit.status, "value", fit.status))
    message = getattr(fit, "data", {}).get("message") or getattr(fit, "message", "") or ""
    if status == "unidentifiable":
        raise LawError(
            f"{path}: the fit's status is unidentifiable: its runs do not determine the constants, so no allocation "
            f"rests on them. {message}".rstrip()
        )
    warnings = () if status == "converged" else (_status_warning(path, status, message),)
    verdict = getattr(fit, "data", {}).get("verdict") or {}
    if status == "converged" and verdict.get("level") == "not_identified":
        warnings = (f"The fit in {path} converged and says: {verdict.get('line', 'not identified')} Do not spend on this "
                    "answer.",)  # fmt: skip
    return LawChoice(
        law=fit.law,
        name=path,
        source=f"fit in {path}",
        flops_range=getattr(fit, "flops_range", None),
        status=status,
        draws=getattr(fit, "draws", None),
        draw_names=tuple(getattr(fit, "draw_names", ())),
        warnings=warnings,
    )


def _status_warning(path: str, status: str, message: str) -> str:
    meaning = {
        "at_bound": "AT A BOUND: a constant stopped at the edge of its allowed range, so the law is not a free fit",
        "not_converged": "NOT CONVERGED: the optimiser had not reached the minimum",
    }.get(status, f'of status "{status}", which is not "converged"')
    return f"The fit in {path} is {meaning}. Do not spend on this answer; fit again first. {message}".rstrip()
