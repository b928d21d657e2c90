"""The cost of attention as this machine pays it: each part of a layer timed alone over a range of sequence lengths.

CPU seconds of one thread, forward, float32, one sequence; the least of a few repeats, since noise only adds.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scaling.accounting import Shape
from sweeps.model import explicit_attention

SCORES_LIMIT = 2**25  # values of the largest score matrix that is materialised: 128 MiB in float32
WORK_LIMIT = 2e10  # multiply-adds of the longest attention that is timed: about a second of one core


@dataclass(frozen=True)
class LayerTiming:
    """CPU seconds of the parts of one layer over one sequence; None where the score matrix would be too large."""

    tokens: int
    explicit_attention: float | None  # product, mask, softmax, product: h n^2 scores in memory
    fused_attention: float  # one kernel, scores never stored
    projections: float
    mlp: float
    recurrent: float  # tanh(W h_{t-1} + U x_t), n steps one after another

    @property
    def linear(self) -> float:
        return self.projections + self.mlp


def time_layer(shape: Shape, lengths: Sequence[int], *, repeats: int = 3) -> list[LayerTiming]:
    """Time attention, projections, MLP and a recurrent layer of the same width at each length.

    Only the widths of the shape matter: grouped heads are timed as full ones, a gated MLP with its three matrices.
    """
    with one_thread(), torch.inference_mode():
        layer = _Layer(shape)
        return [layer.time(n, repeats) for n in lengths]


def longest(shape: Shape) -> int:
    """The longest sequence whose attention stays within `WORK_LIMIT`."""
    return int((WORK_LIMIT / (2 * shape.attention_width)) ** 0.5)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread within, and give the threads back after."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Layer:
    """The parts of one layer, each callable alone."""

    def __init__(self, shape: Shape):
        d, width, ff = shape.d_model, shape.attention_width, shape.ff_width
        self.shape = shape
        generator = torch.Generator().manual_seed(0)
        self.generator = generator
        self.qkv = torch.randn(d, width + 2 * shape.kv_width, generator=generator) / d**0.5
        self.out = torch.randn(width, d, generator=generator) / width**0.5
        self.up = torch.randn(d, ff * (2 if shape.gated_mlp else 1), generator=generator) / d**0.5
        self.down = torch.randn(ff, d, generator=generator) / ff**0.5
        self.recurrent = nn.RNN(d, d, bias=False)

    def time(self, n: int, repeats: int) -> LayerTiming:
        heads = (3, 1, self.shape.n_heads, n, self.shape.head_width)
        q, k, v = torch.randn(heads, generator=self.generator)  # each (1, h, n, d_h)
        x = torch.randn(n, self.shape.d_model, generator=self.generator)  # (n, d)
        mixed = torch.randn(n, self.shape.attention_width, generator=self.generator)  # (n, h d_h)
        fits = self.shape.n_heads * n * n <= SCORES_LIMIT

        def seconds(run: Callable[[], object]) -> float:
            return cpu_seconds(run, repeats)

        return LayerTiming(
            tokens=n,
            explicit_attention=seconds(lambda: explicit_attention(q, k, v, mask=True)) if fits else None,
            fused_attention=seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
            projections=seconds(lambda: (x @ self.qkv, mixed @ self.out)),
            mlp=seconds(lambda: self._mlp(x)),
            recurrent=seconds(lambda: self.recurrent(x)),
        )

    def _mlp(self, x: Tensor) -> Tensor:
        hidden = x @ self.up
        if self.shape.gated_mlp:
            gate, value = hidden.chunk(2, dim=-1)
            return (F.silu(gate) * value) @ self.down
        return F.relu(hidden) @ self.down


def cpu_seconds(run: Callable[[], object], repeats: int, *, least: float = 2e-3) -> float:
    """CPU seconds of one call: the least over `repeats` of a batch of calls that lasts at least `least` seconds."""
    run()  # warm
    calls, spent = 1, 0.0
    while True:
        spent = _batch(run, calls)
        if spent >= least:
            break
        calls = calls * 2 if spent < least / 10 else max(calls + 1, int(calls * 1.2 * least / spent))
    return min([spent, *(_batch(run, calls) for _ in range(repeats - 1))]) / calls


def _batch(run: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        run()
    return time.process_time() - start
