"""The held-out loss: always the same windows of the validation part, whatever the run."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from scaling.errors import SweepError
from sweeps.corpus import Corpus

WINDOWS = 4096
CURVE_WINDOWS = 512


@dataclass(frozen=True)
class HeldOut:
    """Mean cross-entropy in nats per token and its standard error over windows."""

    loss: float
    loss_se: float
    tokens: int


class Step(Protocol):
    """What can tell the losses of windows."""

    def window_losses(self, windows: Tensor) -> Tensor: ...


class Evaluator:
    """Evaluates a step's weights on fixed windows spread evenly over the validation part."""

    def __init__(self, corpus: Corpus, *, context: int, device: str = "cpu", windows: int = WINDOWS):
        count = (len(corpus.validation) - 1) // context
        if count < 2:
            tokens = len(corpus.validation)
            raise SweepError(f"corpus: {tokens:,} validation tokens are fewer than two contexts of {context:,}.")
        chosen = np.unique(np.linspace(0, count - 1, min(windows, count)).round().astype(np.int64))
        block = corpus.validation[chosen[:, None] * context + np.arange(context + 1)]  # (n, T + 1)
        self.tokens = torch.from_numpy(block).to(device)

    def evaluate(self, step: Step, *, windows: int | None = None) -> HeldOut:
        """The loss on all windows, or on about `windows` of them, evenly spread."""
        stride = 1 if windows is None else max(1, len(self.tokens) // windows)
        tokens = self.tokens[::stride]
        losses = step.window_losses(tokens)
        error = losses.std().item() / math.sqrt(len(losses)) if len(losses) > 1 else math.nan
        return HeldOut(losses.mean().item(), error, tokens.shape[0] * (tokens.shape[1] - 1))
