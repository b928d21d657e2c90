"""The held-out loss: always the same windows of the validation part, whatever the run.

The windows are a systematic sample: all are sorted by how hard tables of byte pairs and triples find them, and every
k-th is taken. A transformer's loss on a window correlates with that (0.91 to 0.93 on the standard library's sources), so
that a sixth of the windows tells the mean as well as a random sample would.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from scaling.errors import SweepError
from sweeps.corpus import Corpus

WINDOWS = 1536
CURVE_WINDOWS = 128


@dataclass(frozen=True)
class HeldOut:
    """Mean cross-entropy in nats per token and its standard error, as an estimate for the whole validation part."""

    loss: float
    loss_se: float
    tokens: int


class Step(Protocol):
    """What can tell the losses of windows (n, T + 1): `HandStep` and `AutogradStep`."""

    def window_losses(self, windows: Tensor) -> Tensor: ...


class Evaluator:
    """Evaluates a step's weights on a fixed sample of the validation part."""

    def __init__(self, corpus: Corpus, *, context: int, device: str = "cpu", windows: int = WINDOWS):
        count = (len(corpus.validation) - 1) // context
        if count < 2:
            tokens = len(corpus.validation)
            raise SweepError(f"corpus: {tokens:,} validation tokens are fewer than two contexts of {context:,}.")
        targets = corpus.hardness[1 : count * context + 1].reshape(count, context)
        order = np.argsort(targets.mean(axis=1, dtype=np.float32), kind="stable")
        chosen = order[_spread(count, windows)]
        block = corpus.validation[chosen[:, None] * context + np.arange(context + 1)]  # (n, T + 1)
        self.windows = torch.from_numpy(block).to(device)  # easy ones first

    def evaluate(self, step: Step, *, windows: int | None = None) -> HeldOut:
        """The loss on all windows of the sample, or on about `windows` of them, spread alike."""
        chosen = self.windows
        if windows is not None:
            chosen = chosen[torch.from_numpy(_spread(len(chosen), windows))]
        losses = step.window_losses(chosen)
        return HeldOut(losses.mean().item(), _standard_error(losses), chosen.shape[0] * (chosen.shape[1] - 1))


def _spread(count: int, wanted: int) -> np.ndarray:
    """`wanted` indices, or all, in the middles of equal parts of 0 .. count - 1."""
    wanted = min(wanted, count)
    return ((np.arange(wanted) + 0.5) * count / wanted).astype(np.int64)


def _standard_error(losses: Tensor) -> float:
    """Of the mean of a systematic sample in sorted order, by successive differences (Wolter 2007, estimator v2)."""
    n = len(losses)
    return math.sqrt(float(losses.diff().square().sum()) / (2 * (n - 1)) / n)
