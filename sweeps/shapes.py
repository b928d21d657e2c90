"""The shape nearest to a wanted parameter count, by one stated rule.

d_model runs over multiples of 8 up to 128, of 32 up to 512, of 64 up to 2048 and of 128 above; n_layers is at least
two, and the aspect ratio d_model / n_layers lies in a range, (8, 128) unless said otherwise. Of the shapes within 10 %
of the wanted N the one whose aspect ratio is nearest to the middle of the range is taken (so that the family changes
smoothly with N); if none is that near, the one nearest in N. Heads follow `recipe.heads_for`. The realised N is what is
written, never the wanted one.
"""

import math
from functools import lru_cache

from scaling.accounting import Shape, count_parameters
from scaling.errors import SweepError
from sweeps.recipe import heads_for

ASPECT_RATIO = (8.0, 128.0)
NEAR_ENOUGH = 0.1  # relative, in N
MIN_LAYERS = 2
HEAD_WIDTH = 32
_WIDEST = 65_536


def nearest_shape(
    params: float,
    *,
    vocab_size: int,
    context: int,
    positions: str,
    aspect_ratio: tuple[float, float] = ASPECT_RATIO,
    head_width: int = HEAD_WIDTH,
) -> Shape:
    """The shape whose total parameter count is nearest to `params`, as the rule above says.

    Raises SweepError when even the smallest shape is more than half as large again, or none fits the range.
    """
    lo, hi = aspect_ratio
    middle = math.sqrt(lo * hi)
    best: tuple[tuple[bool, float], Shape, float] | None = None
    for d in _widths():
        base, per_layer = _sizes(d, vocab_size, context, positions)
        if base > 2 * params and best is not None:
            break
        for layers in _layer_candidates(d, (params - base) / per_layer, lo, hi):
            miss = abs(math.log((base + layers * per_layer) / params))
            near = miss <= NEAR_ENOUGH
            rank = (not near, abs(math.log(d / layers / middle)) if near else miss)
            if best is None or rank < best[0]:
                heads = heads_for(d, head_width=head_width)
                best = (rank, _shape(d, layers, heads, vocab_size, context, positions), miss)
    if best is None:
        raise SweepError(f"aspect_ratio = [{lo:g}, {hi:g}] leaves no shape of at least {MIN_LAYERS} layers. Widen it.")
    if best[2] > math.log(1.5):
        raise SweepError(
            f"params: the nearest shape to {params:g} has {count_parameters(best[1]).total:,} parameters "
            f"(vocabulary {vocab_size}, context {context}). Ask for another size, or widen aspect_ratio."
        )
    return best[1]


def _widths():
    d = 8
    while d <= _WIDEST:
        yield d
        d += 8 if d < 128 else 32 if d < 512 else 64 if d < 2048 else 128


@lru_cache(maxsize=4096)
def _sizes(d: int, vocab_size: int, context: int, positions: str) -> tuple[int, int]:
    """Parameters outside the blocks, and in one block."""
    one = count_parameters(_shape(d, 1, 1, vocab_size, context, positions)).total
    two = count_parameters(_shape(d, 2, 1, vocab_size, context, positions)).total
    return 2 * one - two, two - one


def _layer_candidates(d: int, wanted: float, lo: float, hi: float) -> list[int]:
    fewest, most = max(MIN_LAYERS, math.ceil(d / hi)), math.floor(d / lo)
    if most < fewest:
        return []
    return sorted({min(max(n, fewest), most) for n in (math.floor(wanted), math.ceil(wanted))})


def _shape(d: int, layers: int, heads: int, vocab_size: int, context: int, positions: str) -> Shape:
    return Shape(
        d_model=d,
        n_layers=layers,
        n_heads=heads,
        vocab_size=vocab_size,
        context=context,
        d_ff=4 * d,
        positions=positions,
    )
