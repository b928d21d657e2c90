"""From N to a shape that can be built: width, depth, heads, MLP width, then D re-solved at the same compute.

The rule. d_model runs over multiples of 128 (of 64 below 1B parameters, of 8 below 10M) that whole heads divide, and
n_layers over every depth whose aspect ratio d_model / n_layers lies in the range. Of the shapes within 2 % of the
wanted N the one whose heads split best over devices (a multiple of 8, of 4, of 2) is taken, and of those the one
whose aspect ratio is nearest to the middle of the range (geometric mean); if none is within 2 %, the one nearest in N.
The plain block is the one that `scale sweep` trains: MLP of 4 d, learned positions, scale-and-shift norms, an untied
head.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from scaling.accounting import Shape, count_parameters, flops_per_token
from scaling.errors import AllocationError, InputError
from scaling.memory import training_memory
from scaling.quantities import format_quantity
from scaling.roots import bisect

NEAR_ENOUGH = 0.02  # relative, in N: moves the loss at a fixed C by about 1e-6 of itself
FLOPS_TOLERANCE = 1e-3  # rounding to whole steps may not move C by more
LARGE, MEDIUM = 1e9, 1e7  # parameters: where multiples of 128, of 64 and of 8 begin and end
MAX_WIDTH = 262_144
MIN_LAYERS = 2
TOO_FAR = 1.2  # factor in N beyond which the nearest shape is no answer
EMBEDDING_HEAVY = 0.5  # share of the parameters in embeddings and head above which the vocabulary is questionable


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


@dataclass(frozen=True)
class ShapePlan:
    """A shape, the tokens that keep the compute, the batch and the steps, and what rounding cost."""

    shape: Shape
    tokens: int  # steps x batch
    batch_tokens: int
    steps: int
    flops: float
    flops_change: float  # relative, against the compute asked for
    loss: float
    loss_penalty: float  # nats per token, against the continuous optimum
    batch_source: str
    aspect: tuple[float, float]
    multiple_of: int
    warnings: tuple[str, ...] = ()
    memory: dict = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: sizes, parameters by group, the run, the penalty of rounding, memory in bytes."""
        shape, count, flops = self.shape, count_parameters(self.shape), flops_per_token(self.shape)
        return {
            "d_model": shape.d_model,
            "n_layers": shape.n_layers,
            "n_heads": shape.n_heads,
            "n_kv_heads": shape.kv_heads,
            "head_width": shape.head_width,
            "d_ff": shape.ff_width,
            "gated_mlp": shape.gated_mlp,
            "vocab_size": shape.vocab_size,
            "context": shape.context,
            "tied": shape.tied,
            "positions": shape.positions,
            "norm": shape.norm,
            "aspect_ratio": shape.d_model / shape.n_layers,
            "aspect_range": list(self.aspect),
            "multiple_of": self.multiple_of,
            "params": count.total,
            "params_non_embedding": count.non_embedding,
            "params_by_group": count.groups(),
            "tokens": self.tokens,
            "tokens_per_param": self.tokens / count.total,
            "batch_tokens": self.batch_tokens,
            "steps": self.steps,
            "batch_source": self.batch_source,
            "flops": self.flops,
            "flops_change": self.flops_change,
            "flops_exact": flops.total * self.tokens,
            "attention_share_of_6N": flops.attention_share,
            "loss": self.loss,
            "loss_penalty": self.loss_penalty,
            "memory": self.memory,
        }


def plan_shape(
    params: float,
    request: ShapeRequest,
    *,
    flops: float,
    served_tokens: float = 0.0,
    flops_of: Callable[[Shape], float],
    loss_of: Callable[[float, float], float],
    best_loss: float,
    max_params: float | None = None,
    max_tokens: float | None = None,
) -> ShapePlan:
    """The shape nearest to `params`, with D re-solved so that the compute stays at `flops`.

    flops_of gives a shape's training FLOPs per token under the convention in use, loss_of the law's L(N, D).
    `served_tokens` cost as much as training tokens and count in `flops`: a third of the tokens to be served.
    """
    shape = nearest_shape(params, request, max_params=max_params)
    per_token, total = flops_of(shape), count_parameters(shape).total
    wanted = flops / per_token - served_tokens
    if wanted < request.context:
        raise AllocationError(f"serving a shape of {format_quantity(total)} leaves no compute to train it.")
    warnings = _embedding_warning(shape)
    if max_tokens is not None and wanted > max_tokens:
        wanted = max_tokens
    batch, source = choose_batch(wanted * per_token, request)
    batch, steps = whole_steps(wanted, batch, request.context, fixed=request.batch_tokens is not None)
    if max_tokens is not None and batch * steps > max_tokens * (1 + 1e-12) and steps > 1:
        steps -= 1
    tokens = batch * steps
    change = (tokens + served_tokens) * per_token / flops - 1
    if abs(change) > FLOPS_TOLERANCE:
        warnings.append(
            f"Rounding to {steps:,} whole steps of {batch:,} tokens moves the compute by {change:+.2%}: "
            "take a smaller batch or context."
        )
    loss = loss_of(total, tokens)
    return ShapePlan(
        shape=shape,
        tokens=tokens,
        batch_tokens=batch,
        steps=steps,
        flops=tokens * per_token,
        flops_change=change,
        loss=loss,
        loss_penalty=loss - best_loss,
        batch_source=source,
        aspect=request.aspect_range(params),
        multiple_of=request.multiple(params),
        warnings=tuple(warnings),
        memory=training_memory(shape).to_dict(),
    )


def _embedding_warning(shape: Shape) -> list[str]:
    count = count_parameters(shape)
    share = 1 - count.non_embedding / count.total
    if share <= EMBEDDING_HEAVY:
        return []
    return [
        f"{share:.0%} of the shape's parameters are embeddings and head, at vocabulary {shape.vocab_size:,}: "
        "set --vocab to that of your runs, or tie the head."
    ]


def choose_batch(flops: float, request: ShapeRequest) -> tuple[int, str]:
    """Batch in tokens: the one asked for, else 0.2920 C^0.3271 (DeepSeek-AI 2024, arXiv:2401.02954, eq. 1; fitted on
    1e17 to 2e19 FLOP), as a power of two of whole sequences."""
    if request.batch_tokens is not None:
        if request.batch_tokens % request.context:
            raise InputError(
                f"batch of {request.batch_tokens:,} tokens is not a whole number of contexts of {request.context:,}."
            )
        return request.batch_tokens, "as given"
    tokens = 0.2920 * flops**0.3271
    sequences = 2 ** max(0, round(math.log2(tokens / request.context)))
    return sequences * request.context, "0.2920 C^0.3271 (DeepSeek-AI 2024, arXiv:2401.02954), rounded"


def whole_steps(tokens: float, batch: int, context: int, *, fixed: bool) -> tuple[int, int]:
    """(batch, steps) nearest to `tokens` in total; a batch that is not fixed shrinks, in whole sequences, until
    rounding is within the tolerance or no smaller batch does better."""
    best = (batch, max(1, round(tokens / batch)))
    if fixed:
        return best

    def miss(pair: tuple[int, int]) -> float:
        return abs(pair[0] * pair[1] / tokens - 1)

    sequences = batch // context
    for n in range(sequences, max(0, sequences // 2), -max(1, sequences // 512)):
        pair = (n * context, max(1, round(tokens / (n * context))))
        if miss(pair) < miss(best):
            best = pair
        if miss(best) <= FLOPS_TOLERANCE / 2:
            return best
    if miss(best) > FLOPS_TOLERANCE and sequences > 1:
        return whole_steps(tokens, max(1, sequences // 2) * context, context, fixed=False)
    return best


def grid_toml(plan: ShapePlan, *, corpus: str = "python") -> str:
    """A grid.toml with which `scale sweep` trains this very run.

    Raises AllocationError for a shape that the sweep's model does not offer: it trains byte-level tokens (vocabulary
    256), plain MLPs, one key-value head per head, an untied head, scale-and-shift norms, learned or no positions.
    """
    shape = plan.shape
    unlike = [
        text
        for differs, text in (
            (shape.vocab_size != 256, f"vocabulary {shape.vocab_size:,} (give --vocab 256)"),
            (shape.gated_mlp, "a gated MLP"),
            (shape.kv_heads != shape.n_heads, "grouped-query attention"),
            (shape.tied, "a tied head"),
            (shape.norm != "layer", f"{shape.norm} norms"),
            (shape.positions not in ("learned", "none"), f"{shape.positions} positions"),
        )
        if differs
    ]
    if unlike:
        raise AllocationError(f"grid.toml: scale sweep does not train {', '.join(unlike)}. Plan a plain shape for it.")
    total = count_parameters(shape).total
    return "\n".join(
        (
            f"# N = {total:,}, D = {plan.tokens:,} = {plan.steps:,} steps x {plan.batch_tokens:,} tokens, "
            f"{plan.flops:.6g} FLOP",
            f'corpus = "{corpus}"',
            f"sizes = [{{ d_model = {shape.d_model}, n_layers = {shape.n_layers}, n_heads = {shape.n_heads}, "
            f"d_ff = {shape.ff_width} }}]",
            f"tokens = [{plan.tokens}]",
            f"context = {shape.context}",
            f'positions = "{shape.positions}"',
            f"batch_tokens = {plan.batch_tokens}",
            "seeds = [0]",
            "",
        )
    )
