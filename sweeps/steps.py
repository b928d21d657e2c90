"""One training step's loss and gradients, by the fastest way a configuration allows."""

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeps import hand_step
from sweeps.config import RunConfig
from sweeps.flat import FlatParameters
from sweeps.hand_step import HandStep
from sweeps.model import Transformer
from sweeps.parallel import share_of, shared

_WINDOWS_AT_ONCE = 64


class AutogradStep:
    """Gradients by PyTorch's automatic differentiation: any device, any positions."""

    def __init__(self, config: RunConfig):
        self.model = Transformer(config.shape(), attention=config.attention, seed=config.seed)
        self.model.to(config.device)
        self.device = config.device
        self.flat = FlatParameters(self.model, config)

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the flat gradients with those of the *summed* loss; returns the mean loss, a scalar tensor."""
        inputs, targets = inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)
        self.flat.gradients.zero_()
        logits = self.model(inputs).float()  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        loss.backward()
        return loss.detach() / targets.numel()

    @torch.inference_mode()
    def window_losses(self, windows: Tensor) -> Tensor:
        """Mean loss of each window (n, T + 1) under the current weights, (n,) in float64."""
        return torch.cat([self._window_losses(part.long()) for part in windows.split(_WINDOWS_AT_ONCE)])

    def _window_losses(self, windows: Tensor) -> Tensor:
        logits = self.model(windows[:, :-1]).float()  # (B, T, V)
        losses = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none")
        return losses.view(len(windows), -1).mean(dim=1, dtype=torch.float64)


def make_step(config: RunConfig) -> HandStep | AutogradStep:
    """The step of a configuration, with a freshly initialised model: written out on a CPU, automatic elsewhere.

    A worker is one process with one thread: two threads in one process were slower than one in each of two.
    """
    torch.set_num_threads(1)
    config = share_of(config)
    if config.device == "cpu" and config.positions in hand_step.POSITIONS:
        return shared(hand_step.HandStep(config))
    return shared(AutogradStep(config))
