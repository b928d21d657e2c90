"""The training step as compiled code: `sweeps/native/step.cpp`, float32 on one core.

The same function and gradients as `sweeps.model` under automatic differentiation (tests compare them). It is the fastest
of the steps on a CPU: activations of one sequence stay in the cache from the forward to the backward pass, what follows
a matrix product is done in its registers, and the masked half of attention is left out.
"""

import ctypes
import math
import warnings
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from scaling.accounting import Shape
from scaling.errors import SweepError
from sweeps import native
from sweeps.config import RunConfig
from sweeps.flat import EPS, FlatParameters
from sweeps.hand_step import HandStep
from sweeps.model import Transformer, sinusoids
from sweeps.recipe import NATIVE_ROWS, Recipe, rate_of, resolve, why_not_native

_ROWS, _WIDE = 128, 192  # tokens side by side, and the width from which NATIVE_ROWS are: weights do not fit the cache
_WINDOWS_AT_ONCE = 256
_TOLERANCE = 1e-4  # of the check; it comes out at 1e-6
_MATRICES = {"qkv": "attention.qkv", "out": "attention.out", "up": "mlp.up", "down": "mlp.down"}
_POINTER = ctypes.c_void_p


class _Norm(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in ("scale", "shift", "d_scale", "d_shift")]


class _Layer(ctypes.Structure):
    _fields_ = [(f"{d}{name}", _POINTER) for d in ("", "d_") for name in _MATRICES] + [("norm1", _Norm), ("norm2", _Norm)]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("T", "d", "heads", "ff", "vocab", "layers", "together")),
        *((name, _POINTER) for name in ("token", "position", "head", "d_token", "d_position", "d_head")),
        ("norm", _Norm),
        ("layer", ctypes.POINTER(_Layer)),
        ("workspace", _POINTER),
    ]


class _AdamW(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_float)
        for name in ("rate", "decay", "beta1", "beta2", "eps", "correction1", "correction2", "divisor")
    ]


def is_available() -> bool:
    """Whether the compiled step can be used here. A compiler that is there but at fault is warned about."""
    try:
        if native.find_compiler() is None:
            return False
        check()
    except SweepError as error:
        warnings.warn(f"{error} Training goes on without the compiled step.", stacklevel=2)
        return False
    return True


class NativeParameters(FlatParameters):
    """`FlatParameters` whose update is compiled too: one pass over values, gradients and moments."""

    def __init__(self, model: Transformer, config: RunConfig):
        super().__init__(model, config)
        self._places = {
            group: (tensors[0].numel(), *(tensor.data_ptr() for tensor in tensors), rate_of(group, config))
            for group, tensors in self.slices.items()
        }

    def update(self, step: int, factor: float, tokens: int) -> None:
        config, library = self.config, native.library()
        norm = math.sqrt(library.squares(self.gradients.numel(), self.gradients.data_ptr()))
        divisor = norm / config.clip if not norm / config.clip <= tokens else float(tokens)  # NaN stays NaN
        for group, (size, values, gradients, first, second, rate) in self._places.items():
            numbers = _AdamW(
                rate=config.learning_rate * factor * rate,
                decay=config.weight_decay if group == "matrix" else 0.0,
                beta1=config.beta1,
                beta2=config.beta2,
                eps=EPS,
                correction1=1 - config.beta1 ** (step + 1),
                correction2=1 - config.beta2 ** (step + 1),
                divisor=divisor,
            )
            library.adamw(size, values, gradients, first, second, ctypes.addressof(numbers))


class NativeStep:
    """Loss and gradients of one batch; the same interface as `sweeps.steps.AutogradStep`.

    Raises SweepError where it cannot be compiled, or what was compiled does not compute what it should.
    """

    def __init__(self, config: RunConfig, *, checked: bool = True):
        if checked:
            check()
        self.config, self.shape, self._library = config, config.shape(), native.library()
        if reason := why_not_native(self.shape, config.dtype, config.device):
            raise SweepError(f'native: attention = "native" {reason}. Set attention = "fused".')
        self.machine_code: str | None = native.fingerprint()
        self.flat = NativeParameters(Transformer(self.shape, attention="fused", seed=config.seed), config)
        self._layers = (_Layer * config.n_layers)(*(self._layer(i) for i in range(config.n_layers)))
        self._model = self._describe()
        self._address = ctypes.addressof(self._model)
        self._space = torch.empty(self._library.workspace_size(self._address) + 16, dtype=torch.float32)
        self._model.workspace = -(-self._space.data_ptr() // 64) * 64  # a multiple of a cache line

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the flat gradients with those of the *summed* loss; returns the mean loss, a scalar tensor."""
        return self._run(inputs, targets, backward=True).mean()

    def window_losses(self, windows: Tensor) -> Tensor:
        """Mean loss of each window (n, T + 1) under the current weights, (n,) in float64."""
        losses = []
        for part in windows.split(_WINDOWS_AT_ONCE):
            whole = part.long()
            losses.append(self._run(whole[:, :-1], whole[:, 1:], backward=False).mean(dim=1, dtype=torch.float64))
        return torch.cat(losses)

    def _run(self, inputs: Tensor, targets: Tensor, *, backward: bool) -> Tensor:
        """The loss of every token, (B, T)."""
        assert inputs.shape == targets.shape == (len(inputs), self.shape.context) and inputs.device.type == "cpu"
        losses = torch.empty(inputs.shape, dtype=torch.float32)
        inputs, targets = _rows(inputs), _rows(targets)
        wrong = self._library.run(
            self._address, len(inputs), inputs.data_ptr(), inputs.stride(0), targets.data_ptr(), targets.stride(0),
            losses.data_ptr(), backward,
        )  # fmt: skip
        if wrong >= 0:
            raise SweepError(f"native: window {wrong} holds a token outside the vocabulary of {self.shape.vocab_size}.")
        return losses

    def _describe(self) -> _Model:
        config, shape = self.config, self.shape
        rows = NATIVE_ROWS if config.d_model >= _WIDE else _ROWS
        model = _Model(
            T=config.context, d=config.d_model, heads=config.n_heads, ff=shape.ff_width, vocab=shape.vocab_size,
            layers=config.n_layers, together=max(1, rows // config.context), norm=self._norm("norm"), layer=self._layers,
        )  # fmt: skip
        model.token, model.d_token = self._pair("token_embedding.weight")
        model.head, model.d_head = self._pair("head.weight")
        if shape.positions == "learned":
            model.position, model.d_position = self._pair("position_embedding.weight")
        elif shape.positions == "sinusoidal":
            self._sinusoids = sinusoids(torch.arange(config.context), config.d_model).float().contiguous()
            model.position = self._sinusoids.data_ptr()
        return model

    def _layer(self, index: int) -> _Layer:
        layer = _Layer(norm1=self._norm(f"blocks.{index}.norm1"), norm2=self._norm(f"blocks.{index}.norm2"))
        for short, name in _MATRICES.items():
            weight, gradient = self._pair(f"blocks.{index}.{name}.weight")
            setattr(layer, short, weight)
            setattr(layer, f"d_{short}", gradient)
        return layer

    def _norm(self, name: str) -> _Norm:
        (scale, d_scale), (shift, d_shift) = self._pair(f"{name}.weight"), self._pair(f"{name}.bias")
        return _Norm(scale, shift, d_scale, d_shift)

    def _pair(self, name: str) -> tuple[int, int]:
        """Where a weight and its gradient lie."""
        return self.flat.weight[name].data_ptr(), self.flat.gradient[name].data_ptr()


@cache
def check() -> None:
    """Compare the compiled step and its update with `HandStep` on a small model, once a process: compilers err too.

    The shape goes through whole and partial tiles, products deeper than one pass, several blocks of queries and groups of
    sequences. Raises SweepError when loss, gradients, weights or moments differ.
    """
    shape = Shape(d_model=68, n_layers=1, n_heads=2, vocab_size=37, context=70)
    recipe = Recipe(batch_tokens=3 * shape.context, weight_decay=20.0, clip=0.01, learning_rate=0.01)
    config = resolve(shape, 10 * recipe.batch_tokens, corpus="", corpus_hash="", recipe=recipe)
    mine, expected = NativeStep(replace(config, attention="native"), checked=False), HandStep(config)
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(expected.flat.values.shape, generator=generator)
    block = torch.randint(37, (3, shape.context + 1), generator=generator)
    losses = []
    for step in (mine, expected):
        step.flat.values.add_(noise)
        losses.append(step.gradients(block[:, :-1], block[:, 1:]))
    pairs = {"the loss": losses, "gradients": [step.flat.gradients.clone() for step in (mine, expected)]}
    for number in range(2):
        expected.flat.gradients.copy_(mine.flat.gradients)
        for step in (mine, expected):
            step.flat.update(number, 1.0, block[:, 1:].numel())
    states = [step.flat.state() for step in (mine, expected)]
    pairs |= {name: [state[name] for state in states] for name in states[0]}
    for name, (found, wanted) in pairs.items():
        error = float((found - wanted).norm() / wanted.norm())
        if not error < _TOLERANCE:
            what = {"values": "weights", "first": "first moments", "second": "second moments"}.get(name, name)
            raise SweepError(
                f"native: what {native.find_compiler()} made of {native.SOURCE.name} gives {what} that are {error:.1e} off. "
                'Set CXX to another compiler, or attention = "fused".'
            )


def _rows(tokens: Tensor) -> Tensor:
    """Tokens (B, T) as rows that each lie in one piece."""
    return tokens if tokens.dtype == torch.int64 and tokens.stride(1) == 1 else tokens.long().contiguous()
