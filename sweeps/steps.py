"""One training step's loss and gradients."""

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeps.config import RunConfig
from sweeps.flat import FlatParameters
from sweeps.model import Transformer


class AutogradStep:
    """Gradients by PyTorch's automatic differentiation: any device, any positions."""

    def __init__(self, config: RunConfig):
        self.model = Transformer(config.shape(), attention=config.attention, seed=config.seed)
        self.model.to(config.device)
        self.flat = FlatParameters(self.model, config)

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the flat gradients with those of the *summed* loss; returns the mean loss, a scalar tensor."""
        self.flat.gradients.zero_()
        logits = self.model(inputs).float()  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        loss.backward()
        return loss.detach() / targets.numel()


def make_step(config: RunConfig) -> AutogradStep:
    """The step of a configuration, with a freshly initialised model."""
    torch.set_num_threads(1)
    return AutogradStep(config)
