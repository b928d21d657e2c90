"""The cost of attention in the number of tokens n: n^2 d against the n d^2 of everything else in a block.

Counted in multiply-adds of one layer over one sequence of n tokens, forward; a training step costs three times each.

    attention     2 n^2 d      scores Q K^T and the mixing of values, n^2 d each
    projections   4 n d^2      queries, keys, values and the output map (fewer with grouped keys and values)
    MLP           2 n d d_ff   8 n d^2 at d_ff = 4 d; 3 n d d_ff when gated
    recurrent     2 n d^2      h_t = f(W h_{t-1} + U x_t): n steps, one after another, two d x d matrices each

So attention is the larger one beyond n = 2 d against the projections, d_ff against the MLP, 2 d + d_ff = 6 d against
both, and d against a recurrent layer. Softmax and norms, which multiply no matrices, are left out.
"""

import math
from dataclasses import dataclass

from scaling.accounting import Shape
from scaling.errors import InputError


@dataclass(frozen=True)
class LayerCost:
    """Multiply-adds of one layer at one n."""

    tokens: int
    attention: float
    projections: float
    mlp: float
    recurrent: float

    @property
    def linear(self) -> float:
        """What grows as n: projections and MLP."""
        return self.projections + self.mlp


@dataclass(frozen=True)
class Crossover:
    """The n beyond which attention costs more than `against`: `exact` solves the equation, `first` is the first whole
    number of tokens at which it is strictly larger, `formula` says it in d."""

    against: str
    formula: str
    exact: float
    first: int


def layer_cost(shape: Shape, tokens: int, *, causal: bool = False) -> LayerCost:
    """Multiply-adds of one layer of a shape over n = `tokens`.

    `causal` counts only the n (n + 1) / 2 pairs that the mask leaves, which is what a kernel that skips the others
    does; one that masks the full score matrix, as the lecture's formula does, spends all n^2.
    Raises InputError for fewer than one token.
    """
    if tokens < 1:
        raise InputError(f"tokens = {tokens} must be at least 1.")
    n, d = float(tokens), shape.d_model
    pairs = n * (n + 1) / 2 if causal else n * n
    return LayerCost(
        tokens=tokens,
        attention=2.0 * pairs * shape.attention_width,
        projections=n * _projection_weights(shape),
        mlp=n * _mlp_weights(shape),
        recurrent=2.0 * n * d * d,
    )


def crossovers(shape: Shape, *, causal: bool = False) -> list[Crossover]:
    """Where attention overtakes the projections, the MLP, both, and a recurrent layer of the same width.

    2 n w = weights gives n = weights / (2 w), with w = h d_h (d unless heads have a width of their own); with the
    causal half (n + 1) w = weights gives n = weights / w - 1.
    """
    d, gate = shape.d_model, 3 if shape.gated_mlp else 2
    projections, mlp = _projection_weights(shape), _mlp_weights(shape)
    parts = [
        ("projections", projections),
        ("MLP", mlp),
        ("projections + MLP", projections + mlp),
        ("recurrent layer", 2.0 * d * d),
    ]
    plain = shape.attention_width == d == shape.kv_width
    words = {
        "projections": "4 n d^2",
        "MLP": f"{gate} n d d_ff",
        "projections + MLP": f"4 n d^2 + {gate} n d d_ff",
        "recurrent layer": "2 n d^2",
    }
    if not plain:
        words["projections"] = "2 n d (h + h_kv) d_h"
        words["projections + MLP"] = f"2 n d (h + h_kv) d_h + {gate} n d d_ff"
    return [_crossover(name, words[name], weights, shape.attention_width, causal) for name, weights in parts]


def default_lengths(shape: Shape, *, points: int = 49) -> list[int]:
    """Sequence lengths, log-spaced, that hold every crossover of the shape: from d/16 to 64 d."""
    low, high = max(1.0, shape.d_model / 16), 64.0 * shape.d_model
    step = math.log(high / low) / (points - 1)
    return sorted({max(1, round(low * math.exp(step * i))) for i in range(points)})


def crossing(lengths: list[int], first: list[float], second: list[float]) -> float | None:
    """n at which the measured `first` overtakes `second` for good, by straight lines in log-log; None if it never does
    within `lengths`, or is already larger at the first."""
    for i in range(len(lengths) - 1, 0, -1):
        below, above = math.log(first[i - 1] / second[i - 1]), math.log(first[i] / second[i])
        if below <= 0 < above:
            share = below / (below - above)
            return math.exp(math.log(lengths[i - 1]) * (1 - share) + math.log(lengths[i]) * share)
        if above <= 0:
            return None
    return None


def _crossover(name: str, formula: str, weights: float, width: int, causal: bool) -> Crossover:
    exact = weights / width - 1 if causal else weights / (2 * width)
    attention = "n (n + 1) d" if causal else "2 n^2 d"
    return Crossover(name, f"{attention} = {formula}", exact, max(1, math.floor(exact) + 1))


def _projection_weights(shape: Shape) -> float:
    return 2.0 * shape.d_model * (shape.attention_width + shape.kv_width)


def _mlp_weights(shape: Shape) -> float:
    return (3.0 if shape.gated_mlp else 2.0) * shape.d_model * shape.ff_width
