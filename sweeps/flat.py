"""All parameters of a model in one buffer, so that clipping, casting and AdamW are one pass each."""

import torch
from torch import Tensor, nn

from sweeps.config import RunConfig
from sweeps.recipe import rate_of

_ALIGN = 16  # elements: 64 bytes in float32, the width of a vector register
EPS = 1e-8
GROUPS = ("matrix", "embedding", "norm")


def group_of(name: str, parameter: Tensor) -> str:
    """Hidden matrices and the head; token and position embeddings; scales and shifts of norms."""
    return "norm" if parameter.ndim == 1 else "embedding" if "embedding" in name else "matrix"


class FlatParameters:
    """Master weights in float32, the model's own views of them (or of a bfloat16 copy), gradients and moments.

    The model's parameters become views of one buffer; so do their gradients. State is three flat tensors.
    """

    def __init__(self, model: nn.Module, config: RunConfig):
        self.config = config
        named = sorted(model.named_parameters(), key=lambda item: GROUPS.index(group_of(*item)))  # stable: order kept
        places, size, self.bounds = {}, 0, {}
        for group in GROUPS:
            start = size
            for name, parameter in named:
                if group_of(name, parameter) == group:
                    places[name] = size
                    size += -(-parameter.numel() // _ALIGN) * _ALIGN
            self.bounds[group] = (start, size)
        device, dtype = config.device, getattr(torch, config.dtype)
        self.values = torch.zeros(size, device=device)
        self.first_moment, self.second_moment = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.gradients32 = torch.zeros_like(self.values)
        same = dtype == torch.float32
        self.compute = self.values if same else torch.zeros(size, device=device, dtype=dtype)
        self.gradients = self.gradients32 if same else torch.zeros_like(self.compute)
        self.weight, self.gradient = {}, {}
        for name, parameter in named:
            span = slice(places[name], places[name] + parameter.numel())
            self.values[span].copy_(parameter.detach().reshape(-1))
            self.weight[name] = self.compute[span].view(parameter.shape)
            self.gradient[name] = self.gradients[span].view(parameter.shape)
            parameter.data = self.weight[name]
            parameter.grad = self.gradient[name]
        self.slices = {
            group: [t[a:b] for t in (self.values, self.gradients32, self.first_moment, self.second_moment)]
            for group, (a, b) in self.bounds.items()
        }
        self._count = torch.zeros((), device=device)
        self._scale = torch.ones((), device=device)
        self.publish()

    def publish(self) -> None:
        """Bring the model's copy up to date with the master weights."""
        if self.compute is not self.values:
            self.compute.copy_(self.values)

    def update(self, step: int, factor: float, tokens: int) -> None:
        """One AdamW step (counted from 0) on gradients summed over `tokens`, clipped by their global norm.

        Dividing by the tokens and clipping are one number that the optimizer divides every gradient by.
        """
        config = self.config
        if self.gradients is not self.gradients32:
            self.gradients32.copy_(self.gradients)
        norm = torch.linalg.vector_norm(self.gradients32)
        torch.clamp(norm / config.clip, min=float(tokens), out=self._scale)
        self._count.fill_(step + 1)
        for group, (values, gradients, first, second) in self.slices.items():
            torch._fused_adamw_(
                [values], [gradients], [first], [second], [], [self._count],
                lr=config.learning_rate * factor * rate_of(group, config), beta1=config.beta1, beta2=config.beta2,
                weight_decay=config.weight_decay if group == "matrix" else 0.0,
                eps=EPS, amsgrad=False, maximize=False, grad_scale=self._scale, found_inf=None,
            )  # fmt: skip
        self.publish()

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that an update changes."""
        return {"values": self.values.clone(), "first": self.first_moment.clone(), "second": self.second_moment.clone()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go back to a `state`, bit for bit."""
        for tensor, name in ((self.values, "values"), (self.first_moment, "first"), (self.second_moment, "second")):
            tensor.copy_(state[name])
        self.publish()
