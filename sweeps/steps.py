"""One training step's loss and gradients, by the fastest way a configuration allows."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from sweeps import hand_step
from sweeps.config import RunConfig
from sweeps.flat import FlatParameters
from sweeps.hand_step import HandStep
from sweeps.model import Transformer
from sweeps.native_step import NativeStep
from sweeps.parallel import share_of, shared

_WINDOWS_AT_ONCE = 64
_STEPS_BEFORE_RECORDING = 3


class AutogradStep:
    """Gradients by PyTorch's automatic differentiation: any device, any positions."""

    machine_code: str | None = None  # PyTorch's own, whose version the runs table has

    def __init__(self, config: RunConfig):
        self.model = Transformer(config.shape(), attention=config.attention, seed=config.seed)
        self.model.to(config.device)
        self.device = config.device
        self.flat = FlatParameters(self.model, config)

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the flat gradients with those of the *summed* loss; returns the mean loss, a scalar tensor."""
        inputs, targets = inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)
        return self._summed(inputs, targets) / targets.numel()

    def _summed(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.flat.gradients.zero_()
        logits = self.model(inputs).float()  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        loss.backward()
        return loss.detach()

    @torch.inference_mode()
    def window_losses(self, windows: Tensor) -> Tensor:
        """Mean loss of each window (n, T + 1) under the current weights, (n,) in float64."""
        return torch.cat([self._window_losses(part.long()) for part in windows.split(_WINDOWS_AT_ONCE)])

    def _window_losses(self, windows: Tensor) -> Tensor:
        logits = self.model(windows[:, :-1]).float()  # (B, T, V)
        losses = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none")
        return losses.view(len(windows), -1).mean(dim=1, dtype=torch.float64)


class GraphStep(AutogradStep):
    """The same on a GPU, its kernels recorded once as a CUDA graph and replayed: a small model's step is mostly launches.

    The first steps run as they are. The recording is used only if its gradients are those of the step it was made of;
    else, or where recording fails, the step stays as it is and a warning says so.
    """

    def __init__(self, config: RunConfig, record: Callable[[Callable[[], None]], Callable[[], None]] | None = None):
        super().__init__(config)
        self.inputs = torch.zeros(config.batch_tokens // config.context, config.context, dtype=torch.long).to(self.device)
        self.targets, self.loss = torch.zeros_like(self.inputs), torch.zeros((), device=self.device)
        self._record, self._replay, self._steps = record or record_cuda_graph, self._body, 0

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.inputs.copy_(inputs, non_blocking=True)
        self.targets.copy_(targets, non_blocking=True)
        self._replay()
        if self._steps == _STEPS_BEFORE_RECORDING:
            self._try_to_record()
        self._steps += 1
        return self.loss / targets.numel()

    def _body(self) -> None:
        self.loss.copy_(self._summed(self.inputs, self.targets))

    def _try_to_record(self) -> None:
        plain = self.flat.gradients.clone()
        try:
            replay = self._record(self._body)
            self.flat.gradients.zero_()
            replay()
        except RuntimeError as error:
            warnings.warn(f"this step cannot be recorded as a CUDA graph and is launched anew: {error}", stacklevel=3)
            self._body()
            return
        error = (self.flat.gradients - plain).norm() / plain.norm()  # atomic additions of embeddings differ in order
        if error < 1e-2:
            self._replay = replay
        else:
            warnings.warn(f"a recorded step gives gradients {float(error):.1e} off; it is launched anew.", stacklevel=3)
            self._body()


def record_cuda_graph(body: Callable[[], None]) -> Callable[[], None]:
    """`body`, whose tensors stay where they are, as a function that replays its kernels (PyTorch's notes on CUDA graphs)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        body()  # allocates what the recording must find allocated
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph.replay


def make_step(config: RunConfig) -> HandStep | AutogradStep | NativeStep:
    """The step of a configuration, with a freshly initialised model: compiled or written out on a CPU, recorded on a GPU.

    A worker is one process with one thread: two threads in one process were slower than one in each of two.
    """
    torch.set_num_threads(1)
    config = share_of(config)
    if config.attention == "native":
        return shared(NativeStep(config))
    if config.device == "cpu" and config.positions in hand_step.POSITIONS:
        return shared(hand_step.HandStep(config))
    return shared(GraphStep(config) if config.device.startswith("cuda") else AutogradStep(config))
