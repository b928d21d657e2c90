"""The held-out loss: always the same windows of the validation part, whatever the run."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from scaling.errors import SweepError
from sweeps.corpus import Corpus
from sweeps.model import Transformer

WINDOWS = 4096
CURVE_WINDOWS = 512
_BATCH_TOKENS = 8192


@dataclass(frozen=True)
class HeldOut:
    """Mean cross-entropy in nats per token and its standard error over windows."""

    loss: float
    loss_se: float
    tokens: int


class Evaluator:
    """Evaluates a model on fixed windows spread evenly over the validation part."""

    def __init__(self, corpus: Corpus, *, context: int, device: str = "cpu", windows: int = WINDOWS):
        count = (len(corpus.validation) - 1) // context
        if count < 2:
            tokens = len(corpus.validation)
            raise SweepError(f"corpus: {tokens:,} validation tokens are fewer than two contexts of {context:,}.")
        chosen = np.unique(np.linspace(0, count - 1, min(windows, count)).round().astype(np.int64))
        block = corpus.validation[chosen[:, None] * context + np.arange(context + 1)]  # (n, T + 1)
        self.tokens = torch.from_numpy(block).to(device)
        self.batch = max(1, _BATCH_TOKENS // context)

    @torch.inference_mode()
    def evaluate(self, model: Transformer, *, windows: int | None = None) -> HeldOut:
        """The loss on all windows, or on about `windows` of them, evenly spread."""
        stride = 1 if windows is None else max(1, len(self.tokens) // windows)
        tokens = self.tokens[::stride]
        means = [_window_losses(model, part.long()) for part in tokens.split(self.batch)]
        losses = torch.cat(means).double()
        error = losses.std().item() / math.sqrt(len(losses)) if len(losses) > 1 else math.nan
        return HeldOut(losses.mean().item(), error, tokens.shape[0] * (tokens.shape[1] - 1))


def _window_losses(model: Transformer, block: torch.Tensor) -> torch.Tensor:
    logits = model(block[:, :-1]).float()  # (B, T, V)
    losses = F.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten(), reduction="none")
    return losses.view(len(block), -1).mean(dim=1)  # (B,)
