"""A run of a buildable shape: D solved again at the same compute, batch and whole steps, memory, and its grid.toml."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scaling.accounting import Shape, count_parameters, flops_per_token
from scaling.errors import AllocationError, InputError
from scaling.memory import training_memory
from scaling.quantities import format_quantity
from scaling.shapes import ShapeRequest, nearest_shape

FLOPS_TOLERANCE = 1e-3  # rounding to whole steps may not move C by more
EMBEDDING_HEAVY = 0.5  # share of the parameters in embeddings and head above which the vocabulary is questionable


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
