"""The same words, counted differently: what published work calls N and C, each with its label and its source.

A scaling exponent moves with the convention: `check_conventions` fits the log-log slopes of given optima and says
whether they are consistent with the FLOP axis they were plotted against.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaling.accounting import Shape, count_parameters, flops_per_token, forward_flops, training_flops
from scaling.errors import InputError
from scaling.hardware import SECONDS_PER_HOUR, implied_mfu


@dataclass(frozen=True)
class LabelledParams:
    """One way to count N."""

    name: str
    params: int
    counts: str


@dataclass(frozen=True)
class LabelledFlops:
    """One way to count FLOPs per token."""

    name: str
    forward: float
    training: float
    counts: str


def params_conventions(shape: Shape) -> list[LabelledParams]:
    """N of a shape under each convention, labelled."""
    count = count_parameters(shape)
    return [
        LabelledParams("total", count.total, "every parameter once; N of this toolkit"),
        LabelledParams("without positions", count.total - count.positions, "total less the learned positions"),
        LabelledParams("non-embedding", count.non_embedding, "blocks and norms; no embedding, positions or head"),
        LabelledParams("block matmul", count.block_matmul, "matrices of the blocks alone; N of Kaplan et al. 2020"),
        LabelledParams("matmul-active", count.matmul_active, "matrices that multiply a token: blocks and head"),
    ]


def flops_conventions(shape: Shape) -> list[LabelledFlops]:
    """FLOPs per token of a shape at its full context under each convention, labelled; all count a product and its
    addition as two, and the backward pass as twice the forward pass."""
    count, exact = count_parameters(shape), flops_per_token(shape)
    causal = exact.matmul + exact.head + exact.attention_causal
    kaplan = kaplan_forward_flops(shape)
    with_head = hoffmann_flops(shape) / shape.context
    without_head = hoffmann_flops(shape, embedding_and_logits=False) / shape.context
    rows = [
        ("6N", 6.0 * count.total, "2N forward, all parameters; C of this toolkit"),
        ("6N non-embedding", 6.0 * count.non_embedding, "without embedding, positions and head"),
        ("6N matmul-active", exact.matmul + exact.head, "blocks and head, no attention term"),
        ("matmul + attention", exact.total, "blocks, head, attention 12 L T d"),
        ("matmul + causal attention", causal, "blocks, head, the causal half 6 L T d"),
        ("kaplan2020", 3.0 * kaplan, "blocks, attention as 2 L T d forward, no head; its table 1"),
        ("hoffmann2022", with_head, "appendix F: embedding as a product, softmax, logits"),
        ("hoffmann2022 table A4", without_head, "appendix F without embedding and logits"),
    ]
    return [LabelledFlops(name, training / 3, training, label) for name, training, label in rows]


def kaplan_forward_flops(shape: Shape) -> float:
    """Forward FLOPs per token, 2N + 2 n_layer n_ctx d_attn (Kaplan et al. 2020, table 1), N without embeddings.

    Its attention term is half of the scores and the mixing together, which is what a causal mask leaves of them.
    """
    attention = 2.0 * shape.n_layers * shape.context * shape.attention_width
    return 2.0 * count_parameters(shape).block_matmul + attention


def hoffmann_flops(shape: Shape, *, embedding_and_logits: bool = True) -> float:
    """Forward and backward FLOPs of one full sequence (Hoffmann et al. 2022, appendix F).

    The appendix writes the embedding as a product of 2 T V d; its table A4 is reproduced without embedding and logits
    only. Heads may be grouped and the MLP gated here, which the paper's models are not.
    """
    d, T, width = shape.d_model, shape.context, shape.attention_width
    projections = 2 * T * d * (2 * width + 2 * shape.kv_width)
    scores_and_mixing = 2 * (2 * T * T * width)
    softmax = 3 * shape.n_heads * T * T
    mlp = 2 * T * (3 if shape.gated_mlp else 2) * d * shape.ff_width
    ends = 2 * (2 * T * shape.vocab_size * d) if embedding_and_logits else 0
    return 3.0 * (shape.n_layers * (projections + scores_and_mixing + softmax + mlp) + ends)


def hoffmann_parameters(shape: Shape) -> int:
    """N of the Chinchilla family: blocks with biases and Transformer-XL relative positions, final norm and head,
    without the embedding (Hoffmann et al. 2022, table A9; relative positions after Dai et al. 2019)."""
    d, ff = shape.d_model, shape.ff_width
    attention = 4 * d * d + 4 * d
    relative = d * d + 2 * d  # keys of the relative positions, content and position biases
    mlp = 2 * d * ff + ff + d
    return shape.n_layers * (attention + relative + mlp + 4 * d) + 2 * d + d * shape.vocab_size


@dataclass(frozen=True)
class ConventionCheck:
    """Log-log slopes of optima against the budget, and what they say of the convention behind N."""

    name: str
    N_exponent: float
    D_exponent: float
    flops_ratio: tuple[float, ...]  # 6 N D / C at each budget

    @property
    def exponent_sum(self) -> float:
        """1 when N D grows as C, which 6ND = C demands."""
        return self.N_exponent + self.D_exponent

    @property
    def consistent(self) -> bool:
        """The slopes sum to 1 within 0.02, and 6ND is C within a quarter at every budget."""
        return abs(self.exponent_sum - 1) <= 0.02 and all(abs(ratio - 1) <= 0.25 for ratio in self.flops_ratio)


def check_conventions(
    budgets: Sequence[float], optima: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> list[ConventionCheck]:
    """For optima (N, D) at the same budgets under several conventions: both slopes by least squares in log-log, their
    sum, and 6ND/C. Raises InputError for fewer than two distinct budgets, lists of another length, or values <= 0."""
    return [_check_convention(name, budgets, N, D) for name, (N, D) in optima.items()]


def _check_convention(name: str, C: Sequence[float], N: Sequence[float], D: Sequence[float]) -> ConventionCheck:
    if not len(C) == len(N) == len(D):
        raise InputError(f"{name}: {len(C)} budgets, {len(N)} N and {len(D)} D; give one of each per budget.")
    if len(set(C)) < 2:
        raise InputError(f"{name}: a slope needs at least two distinct budgets, got {len(set(C))}.")
    for label, values in (("budget", C), ("N", N), ("D", D)):
        bad = [value for value in values if not (math.isfinite(value) and value > 0)]
        if bad:
            raise InputError(f"{name}: {label} = {bad[0]} must be finite and above zero.")
    return ConventionCheck(
        name=name,
        N_exponent=_log_log_slope(C, N),
        D_exponent=_log_log_slope(C, D),
        flops_ratio=tuple(6.0 * float(n) * float(d) / float(c) for c, n, d in zip(C, N, D, strict=True)),
    )


def _log_log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of log y on log x."""
    u, v = [math.log(value) for value in x], [math.log(value) for value in y]
    centre = sum(u) / len(u)
    return sum((a - centre) * b for a, b in zip(u, v, strict=True)) / sum((a - centre) ** 2 for a in u)


@dataclass(frozen=True)
class Utilisation:
    """What a past run's accelerator-hours say: FLOPs of training and of the forward pass alone, as shares of peak."""

    training: float  # 6 N D
    forward: float  # 2 N D: inference
    available: float  # hours x 3600 x peak
    mfu: float  # training / available

    @property
    def forward_share(self) -> float:
        """2ND over what was available: the forward pass only, a third of training. Not the utilisation of a run."""
        return self.forward / self.available


def training_utilisation(params: float, tokens: float, *, gpu_hours: float, peak: float) -> Utilisation:
    """Model FLOPs utilisation of a run that trained `params` (active ones) on `tokens` in `gpu_hours` accelerator-hours
    of `peak` FLOP/s each: 6ND / (3600 hours peak). Raises InputError for a value that is not above zero."""
    for name, value in (("params", params), ("tokens", tokens), ("gpu_hours", gpu_hours), ("peak", peak)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} = {value} must be finite and above zero.")
    training, available = training_flops(params, tokens), gpu_hours * SECONDS_PER_HOUR * peak
    return Utilisation(training, forward_flops(params, tokens), available, implied_mfu(training, gpu_hours, peak))
