"""From N to a shape that can be built: width, depth, heads, MLP width, then D re-solved at the same compute.

The rule. d_model runs over multiples of 128 (of 64 below 1B parameters, of 8 below 10M) that whole heads divide, and
n_layers over every depth whose aspect ratio d_model / n_layers lies in the range. Of the shapes within 2 % of the
wanted N the one whose heads split best over devices (a multiple of 8, of 4, of 2) is taken, and of those the one
whose aspect ratio is nearest to the middle of the range (geometric mean); if none is within 2 %, the one nearest in N.
The plain block is the one that `scale sweep` trains: MLP of 4 d, learned positions, scale-and-shift norms, an untied
head.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from scaling.accounting import Shape, count_parameters
from scaling.errors import AllocationError, InputError
from scaling.quantities import format_quantity
from scaling.roots import bisect

NEAR_ENOUGH = 0.02  # relative, in N: moves the loss at a fixed C by about 1e-6 of itself
LARGE, MEDIUM = 1e9, 1e7  # parameters: where multiples of 128, of 64 and of 8 begin and end
MAX_WIDTH = 262_144
MIN_LAYERS = 2
TOO_FAR = 1.2  # factor in N beyond which the nearest shape is no answer


@dataclass(frozen=True)
class ShapeRequest:
    """What the shape must look like; None is decided by the rule above."""

    vocab_size: int = 32_000
    context: int = 2048
    multiple_of: int | None = None
    head_width: int | None = None
    aspect: tuple[float, float] | None = None  # range of d_model / n_layers
    expansion: float | None = None  # d_ff / d_model; None: 4, or 8/3 where gated
    gated_mlp: bool = False
    kv_groups: int = 1  # query heads per key-value head
    tied: bool = False
    positions: str = "learned"
    norm: str = "layer"
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        lo, hi = self.aspect or (1.0, 2.0)
        if not 0 < lo <= hi:
            raise InputError(f"aspect ratio {lo:g}:{hi:g} must be a range LOW:HIGH of d_model / n_layers above zero.")
        for name in ("vocab_size", "context", "multiple_of", "head_width", "kv_groups", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(f"shape: {name} = {value} must be a whole number of at least 1.")
        if self.expansion is not None and not self.expansion > 0:
            raise InputError(f"shape: expansion {self.expansion:g} must be above zero.")

    @property
    def ff_ratio(self) -> float:
        """d_ff over d_model: 4, or 8/3 where gated, so that both hold 8 d^2 weights (Shazeer 2020)."""
        return self.expansion or (8 / 3 if self.gated_mlp else 4.0)

    def aspect_range(self, params: float) -> tuple[float, float]:
        """Models of 100M and more have 40-160; small ones are deeper for their width."""
        return self.aspect or ((40.0, 160.0) if params >= MEDIUM else (8.0, 128.0))

    def multiple(self, params: float) -> int:
        return self.multiple_of or (128 if params >= LARGE else 64 if params >= MEDIUM else 8)

    def head(self, d: int) -> int | None:
        """Width of a head for a width d; None where none divides it into whole groups."""
        usual = (128, 64) if d >= 2048 else (64, 32) if d > 256 else (16, 8)
        for width in (self.head_width,) if self.head_width else usual:
            if d % width == 0 and (d // width) % self.kv_groups == 0:
                return width
        return None

    def build(self, d: int, layers: int, multiple: int) -> Shape | None:
        """The shape of that width and depth; None where heads do not divide it."""
        width = self.head(d)
        if width is None:
            return None
        heads = d // width
        d_ff = max(multiple, round(self.ff_ratio * d / multiple) * multiple)
        return Shape(
            d_model=d,
            n_layers=layers,
            n_heads=heads,
            vocab_size=self.vocab_size,
            context=self.context,
            d_ff=d_ff,
            n_kv_heads=heads // self.kv_groups,
            gated_mlp=self.gated_mlp,
            tied=self.tied,
            positions=self.positions,
            norm=self.norm,
        )


def nearest_shape(params: float, request: ShapeRequest, *, max_params: float | None = None) -> Shape:
    """The buildable shape nearest to `params` parameters, by the rule at the top of this module.

    Raises AllocationError when the nearest is more than 20 % away: it says what to change.
    """
    middle = math.sqrt(math.prod(request.aspect_range(params)))
    best: tuple[tuple, Shape, float] | None = None
    for shape in _candidates(params, request):
        total = count_parameters(shape).total
        if max_params is not None and total > max_params:
            continue
        miss = abs(math.log(total / params))
        off_middle = abs(math.log(shape.d_model / shape.n_layers / middle))
        rank = (0, _unevenness(shape.kv_heads), off_middle) if miss <= NEAR_ENOUGH else (1, miss)
        if best is None or rank < best[0]:
            best = (rank, shape, miss)
    if best is None or best[2] > math.log(TOO_FAR):
        raise AllocationError(_no_shape(params, request, best[1] if best else None))
    return best[1]


def _unevenness(heads: int) -> int:
    """0 where heads split over 8 devices, 1 over 4, 2 over 2, else 3."""
    return next((i for i, degree in enumerate((8, 4, 2)) if heads % degree == 0), 3)


def _candidates(params: float, request: ShapeRequest) -> Iterator[Shape]:
    """For every width, the two depths around the wanted N that the aspect ratio allows."""
    multiple = request.multiple(params)
    lo, hi = request.aspect_range(params)
    d = multiple * max(1, round(_narrowest(params, request, lo) / multiple))
    while d <= MAX_WIDTH:
        one, two = request.build(d, 1, multiple), request.build(d, 2, multiple)
        if one is not None and two is not None:
            first, second = count_parameters(one).total, count_parameters(two).total
            per_layer, base = second - first, 2 * first - second
            wanted = (params - base) / per_layer
            fewest, most = max(MIN_LAYERS, math.ceil(d / hi)), math.floor(d / lo)
            if base + fewest * per_layer > 1.2 * params:
                return  # and wider ones are larger still
            for layers in sorted({min(max(n, fewest), most) for n in (math.floor(wanted), math.ceil(wanted))}):
                if layers >= fewest and (shape := request.build(d, layers, multiple)) is not None:
                    yield shape
        d += multiple


def _narrowest(params: float, request: ShapeRequest, aspect: float) -> float:
    """A width below any that is needed: where blocks and embeddings of the deepest shape hold 0.7 of the wanted N."""
    block = (2 + 2 / request.kv_groups + (3 if request.gated_mlp else 2) * request.ff_ratio) / aspect
    embedding = request.vocab_size * (1 if request.tied else 2) + request.context
    return bisect(lambda d: (block * d * d + embedding) * d - 0.7 * params, 0.0, float(MAX_WIDTH))


def _no_shape(params: float, request: ShapeRequest, nearest: Shape | None) -> str:
    lo, hi = request.aspect_range(params)
    found = f"; the nearest has {format_quantity(count_parameters(nearest).total)}" if nearest else ""
    return (
        f"no shape of {format_quantity(params)} parameters with vocabulary {request.vocab_size:,}, context "
        f"{request.context:,}, widths in multiples of {request.multiple(params)}, aspect ratio {lo:g}-{hi:g}{found}. "
        "Set --vocab and --context to those of your runs, tie the head, widen --aspect or lower --multiple-of."
    )
