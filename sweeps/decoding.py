"""From logits to the next token: greedy, sampled, tempered, top-k, top-p. numpy only.

    p_i(T) = exp(z_i / T) / sum_j exp(z_j / T)

T = 1 is the softmax itself; T -> 0+ puts everything on the largest logit, in equal parts where k are tied;
T -> infinity is uniform. T = 0 itself is greedy: the first of the largest.
"""

from dataclasses import dataclass

import numpy as np

from scaling.errors import InputError


@dataclass(frozen=True)
class Decoding:
    """How the next token is drawn. Raises InputError for a temperature below 0, k below 1, or p outside (0, 1]."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise InputError(f"temperature = {self.temperature} must be 0 (greedy) or above.")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top-k = {self.top_k} must be at least 1.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top-p = {self.top_p} must be above 0 and at most 1.")


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Probabilities of logits (..., V) at a temperature above 0, infinity included, in float64.

    The largest logit is subtracted before the division, so that exp never sees a value above 0: nothing overflows.
    """
    z = np.asarray(logits, dtype=np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):  # -1e4 / 1e-320 is -inf, whose exp is the right 0
        weights = np.exp(z / temperature)
    return weights / weights.sum(axis=-1, keepdims=True)


def probabilities(logits: np.ndarray, decoding: Decoding) -> np.ndarray:
    """The distribution over V tokens from which the next is drawn: temperature, then top-k, then top-p.

    top-k keeps the k likeliest; top-p the fewest likeliest whose probability reaches p (Holtzman et al. 2020). Of
    equal tokens the first comes first, and at least one is always kept. Raises InputError for a NaN among the logits.
    """
    z = np.asarray(logits, dtype=np.float64)
    if np.isnan(z).any():
        raise InputError("the model's logits hold a NaN: its training diverged. Generate from another checkpoint.")
    if decoding.temperature == 0:
        p = np.zeros_like(z)
        p[int(z.argmax())] = 1.0
        return p
    p = softmax(z, decoding.temperature)
    if decoding.top_k is None and decoding.top_p is None:
        return p
    order = np.argsort(-p, kind="stable")
    kept = len(p) if decoding.top_k is None else min(decoding.top_k, len(p))
    if decoding.top_p is not None:
        reached = np.cumsum(p[order[:kept]]) / p[order[:kept]].sum()
        kept = min(kept, int(np.searchsorted(reached, decoding.top_p * (1 - 1e-12))) + 1)
    filtered = np.zeros_like(p)
    filtered[order[:kept]] = p[order[:kept]]
    return filtered / filtered.sum()


def draw(p: np.ndarray, generator: np.random.Generator) -> int:
    """One token from a distribution, by its inverse cumulative sum; one random number whatever the distribution."""
    total = np.cumsum(p)
    place = int(np.searchsorted(total, generator.random() * total[-1], side="right"))
    return min(place, int(np.flatnonzero(p)[-1]))


def entropy(p: np.ndarray) -> float:
    """In nats: 0 when one token has everything, ln V when all are alike."""
    inside = p[p > 0]
    return float(-(inside * np.log(inside)).sum())
