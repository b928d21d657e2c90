"""A training step written out: forward and backward pass of the transformer by hand, into buffers made once.

The same function and gradients as `sweeps.model` under automatic differentiation (tests compare them), for a CPU, in
float32 or bfloat16. It saves the graph, its allocations, and about half of the element-wise passes. M = B T tokens are
the rows of every matrix product, N = B h the heads of a batch.

Softmax without the maximum: exp(s) / sum exp(s) is the same number whatever is subtracted from s, and in float32 exp(s)
neither overflows nor vanishes for |s| < 87. Where it does, the loss comes out as NaN or infinite; the step is then done
again with the maximum subtracted. Division by the sum waits until the tensors are small: a row of attention weights
has T entries, what it mixes d_h.
"""

import math
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace

import torch
from torch import Tensor

from sweeps.config import RunConfig
from sweeps.flat import FlatParameters
from sweeps.model import Transformer, sinusoids

POSITIONS = ("learned", "sinusoidal", "none")
_EPS = 1e-5  # of nn.LayerNorm
_READ_AT_ONCE = 2048  # tokens of a held-out loss: 3 to 17 % faster than 512 for d = 16 to 96, more is slower
_BLOCK = 128  # queries attend in blocks, each to the keys up to its own end; smaller blocks were slower
_MATRICES = {"qkv": "attention.qkv", "out": "attention.out", "up": "mlp.up", "down": "mlp.down"}
aten = torch.ops.aten


class HandStep:
    """Loss and gradients of one batch; the same interface as `sweeps.steps.AutogradStep`."""

    machine_code: str | None = None

    def __init__(self, config: RunConfig, *, flat: FlatParameters | None = None):
        """With fresh weights, or on those that `flat` holds."""
        self.config, self.shape = config, config.shape()
        self.explicit, self.shifted = config.attention == "explicit", False
        self.flat = flat or FlatParameters(Transformer(self.shape, attention=config.attention, seed=config.seed), config)
        self.T, self.B, self.d = config.context, config.batch_tokens // config.context, config.d_model
        self.M, self.N, self.width = self.B * self.T, self.B * config.n_heads, config.d_model // config.n_heads
        self.scale, self.dtype = 1 / math.sqrt(self.width), getattr(torch, config.dtype)
        block = _BLOCK if self.T % _BLOCK == 0 else self.T
        self.spans = [(start, start + block) for start in range(0, self.T, block)]
        self._bind()
        self._allocate(block)

    def _bind(self) -> None:
        """Name the views of weights and gradients."""
        w, g = self.flat.weight, self.flat.gradient
        self.token, self.d_token = w["token_embedding.weight"], g["token_embedding.weight"]
        self.head, self.head_t, self.d_head = w["head.weight"], w["head.weight"].T, g["head.weight"]
        self.norm = _norm(w, g, "norm")
        self.position, self.d_position = w.get("position_embedding.weight"), g.get("position_embedding.weight")
        if self.shape.positions == "sinusoidal":
            self.position = sinusoids(torch.arange(self.T), self.d).to(self.dtype)
        self.layers = []
        for i in range(self.shape.n_layers):
            layer = SimpleNamespace(norm1=_norm(w, g, f"blocks.{i}.norm1"), norm2=_norm(w, g, f"blocks.{i}.norm2"))
            for short, name in _MATRICES.items():
                setattr(layer, short, w[f"blocks.{i}.{name}.weight"])
                setattr(layer, f"{short}_t", getattr(layer, short).T)
                setattr(layer, f"d_{short}", g[f"blocks.{i}.{name}.weight"])
            self.layers.append(layer)

    def _allocate(self, block: int) -> None:
        """Make what a layer keeps for its backward pass, and what all layers use in turn."""
        M, N, T, d, width, ff = self.M, self.N, self.T, self.d, self.width, self.shape.ff_width
        by_head, side_by_side = (self.B, self.shape.n_heads, T, width), (self.B, T, self.shape.n_heads, width)

        def new(*size: int) -> Tensor:
            return torch.empty(size, dtype=self.dtype)

        for layer in self.layers:
            layer.x1, layer.x2, layer.y, layer.f = new(M, d), new(M, d), new(M, d), new(M, ff)
            layer.heads = new(3, N, T, width)  # queries, keys, values
            layer.q, layer.k, layer.v = layer.heads
            layer.heads4, layer.y4 = layer.heads.view(3, *by_head), layer.y.view(side_by_side).transpose(1, 2)
            layer.weights = [new(N, block, end) for _, end in self.spans] if self.explicit else []
            layer.inverse = torch.ones(N, T, 1)  # one over the sums of the weights' rows
            layer.inverse4 = layer.inverse.view(*by_head[:3], 1)
        self.x, self.logits = new(M, d), new(M, self.shape.vocab_size)
        self.d_h, self.d_up, self.qkv = new(M, d), new(M, ff), new(M, 3 * d)
        self.mixed, self.d_mixed, self.d_heads = new(N, T, width), new(N, T, width), new(3, N, T, width)
        self.mixed4, self.d_mixed4, self.d_heads4 = (
            t.view(*t.shape[:-3], *by_head) for t in (self.mixed, self.d_mixed, self.d_heads)
        )
        self.qkv4 = self.qkv.view(self.B, T, 3, self.shape.n_heads, width).permute(2, 0, 3, 1, 4)  # (3, B, h, T, d_h)
        self.d_y4 = self.d_h.view(side_by_side).transpose(1, 2)  # (B, h, T, d_h)
        self.d_scores = [new(N, block, end) for _, end in self.spans] if self.explicit else []
        self.first_of_row = torch.arange(M) * self.shape.vocab_size
        self.future = torch.zeros(block, block).masked_fill(torch.ones(block, block).triu(1).bool(), -math.inf)

    @torch.inference_mode()
    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the flat gradients with those of the *summed* loss; returns the mean loss, a scalar tensor."""
        tokens, next_tokens = inputs.reshape(-1), targets.reshape(-1)  # (M,)
        loss = self._losses(tokens, next_tokens).sum()
        if not math.isfinite(loss):
            loss = self._again(tokens, next_tokens).sum()
        self._backward(tokens, self._cross_entropy_backward())
        return loss / self.M

    @torch.inference_mode()
    def window_losses(self, windows: Tensor) -> Tensor:
        """Mean loss of each window (n, T + 1) under the current weights, (n,) in float64."""
        if self.B < _READ_AT_ONCE // self.T:
            return self._reader.window_losses(windows)
        losses = []
        for part in windows.split(self.B):
            full = torch.cat((part, part.new_zeros(self.B - len(part), self.T + 1))).long()  # (B, T + 1)
            tokens, next_tokens = full[:, :-1].reshape(-1), full[:, 1:].reshape(-1)
            loss = self._losses(tokens, next_tokens)
            if not math.isfinite(loss.sum()):
                loss = self._again(tokens, next_tokens)
            losses.append(loss.view(self.B, self.T).mean(dim=1, dtype=torch.float64)[: len(part)])
        return torch.cat(losses)

    @cached_property
    def _reader(self) -> "HandStep":
        """The same weights with room for more windows; what its backward pass would use is reserved, never touched."""
        return HandStep(replace(self.config, batch_tokens=_READ_AT_ONCE // self.T * self.T), flat=self.flat)

    # Forward

    def _again(self, tokens: Tensor, next_tokens: Tensor) -> Tensor:
        self.shifted = True
        losses = self._losses(tokens, next_tokens)
        self.shifted = False
        return losses

    def _losses(self, tokens: Tensor, next_tokens: Tensor) -> Tensor:
        """The loss of every token, (M,)."""
        x = self.layers[0].x1  # (M, d) throughout
        torch.index_select(self.token, 0, tokens, out=x)
        if self.position is not None:
            x.view(self.B, self.T, self.d).add_(self.position)
        outputs = [layer.x1 for layer in self.layers[1:]] + [self.x]
        for layer, output in zip(self.layers, outputs, strict=True):
            layer.h1, layer.stats1 = self._normalise(layer.x1, layer.norm1)
            torch.mm(layer.h1, layer.qkv_t, out=self.qkv)
            self._attend(layer)
            torch.addmm(layer.x1, layer.y, layer.out_t, out=layer.x2)
            layer.h2, layer.stats2 = self._normalise(layer.x2, layer.norm2)
            torch.mm(layer.h2, layer.up_t, out=layer.f).relu_()
            torch.addmm(layer.x2, layer.f, layer.down_t, out=output)
        self.h, self.stats = self._normalise(self.x, self.norm)
        torch.mm(self.h, self.head_t, out=self.logits)
        return self._cross_entropy(next_tokens)

    def _normalise(self, x: Tensor, norm: SimpleNamespace) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, mean, deviation = torch.native_layer_norm(x, (self.d,), norm.scale, norm.shift, _EPS)
        return h, (mean, deviation)

    def _attend(self, layer: SimpleNamespace) -> None:
        """From queries, keys and values (M, 3 d) to the mixed values of all heads, side by side (M, d)."""
        layer.heads4.copy_(self.qkv4)
        if not self.explicit:
            layer.fused = aten._scaled_dot_product_flash_attention_for_cpu(*layer.heads4, 0.0, True)
            layer.y4.copy_(layer.fused[0])
            return
        q, k, v = layer.q, layer.k, layer.v  # (N, T, d_h)
        for (start, end), weights in zip(self.spans, layer.weights, strict=True):
            torch.baddbmm(weights, q[:, start:end], k[:, :end].mT, beta=0, alpha=self.scale, out=weights)
            self._exponentiate(weights, start, layer.inverse[:, start:end])
            torch.bmm(weights, v[:, :end], out=self.mixed[:, start:end])
        torch.mul(self.mixed4, layer.inverse4, out=layer.y4)

    def _exponentiate(self, weights: Tensor, start: int, inverse: Tensor) -> None:
        """Scores to weights in place, the future masked, and one over the sums of their rows."""
        if self.shifted:
            weights[:, :, start:].add_(self.future)
            weights.copy_(torch.softmax(weights, dim=-1))
        else:
            weights.exp_()[:, :, start:].tril_()
        torch.sum(weights, dim=-1, keepdim=True, dtype=torch.float32, out=inverse).reciprocal_()

    def _cross_entropy(self, next_tokens: Tensor) -> Tensor:
        """Losses (M,). The gradient, probabilities / sums - one-hot, is left undivided as (M, V) and (M, 1)."""
        logits = self.logits.float()  # itself, in float32
        if self.shifted:
            logits = logits - logits.amax(dim=1, keepdim=True)
        self.targets = self.first_of_row + next_tokens
        picked = logits.view(-1).index_select(0, self.targets)
        self.probabilities = logits.exp_()
        self.sums = self.probabilities.sum(dim=1, keepdim=True)  # (M, 1)
        self.inverse_sums = self.sums.reciprocal()
        return self.sums.view(-1).log() - picked

    # Backward

    def _cross_entropy_backward(self) -> Tensor:
        """Gradient with respect to h (M, d); fills the head's."""
        self.probabilities.view(-1).index_add_(0, self.targets, self.sums.view(-1), alpha=-1)
        d_logits = self.probabilities.to(self.dtype)  # (M, V), still to be divided by `sums`
        torch.mm(d_logits.T, (self.h * self.inverse_sums).to(self.dtype), out=self.d_head)
        return torch.mm(d_logits, self.head, out=self.d_h).mul_(self.inverse_sums)

    def _backward(self, tokens: Tensor, d_h: Tensor) -> None:
        d_x = self._normalise_backward(d_h, self.x, self.stats, self.norm)
        for layer in reversed(self.layers):
            torch.mm(d_x.T, layer.f, out=layer.d_down)
            torch.mm(d_x, layer.down, out=self.d_up)
            aten.threshold_backward.grad_input(self.d_up, layer.f, 0, grad_input=self.d_up)
            torch.mm(self.d_up.T, layer.h2, out=layer.d_up)
            torch.mm(self.d_up, layer.up, out=self.d_h)
            d_x += self._normalise_backward(self.d_h, layer.x2, layer.stats2, layer.norm2)
            torch.mm(d_x.T, layer.y, out=layer.d_out)
            torch.mm(d_x, layer.out, out=self.d_h)
            self._attend_backward(layer)
            torch.mm(self.qkv.T, layer.h1, out=layer.d_qkv)
            torch.mm(self.qkv, layer.qkv, out=self.d_h)
            d_x += self._normalise_backward(self.d_h, layer.x1, layer.stats1, layer.norm1)
        if self.d_position is not None:
            torch.sum(d_x.view(self.B, self.T, self.d), dim=0, out=self.d_position)
        self.d_token.zero_().index_add_(0, tokens, d_x)

    def _normalise_backward(self, d_h: Tensor, x: Tensor, stats, norm: SimpleNamespace) -> Tensor:
        d_x, d_scale, d_shift = aten.native_layer_norm_backward(
            d_h, x, (self.d,), *stats, norm.scale, norm.shift, [True, True, True]
        )
        norm.d_scale.copy_(d_scale)
        norm.d_shift.copy_(d_shift)
        return d_x

    def _attend_backward(self, layer: SimpleNamespace) -> None:
        """From the gradient of y, in `d_h`, to those of queries, keys and values, in `qkv` (M, 3 d).

        With weights w = e / t and y = w v: dv = e^T (dy / t), ds = e ((dy / t) v^T - (dy / t) . y).
        """
        if not self.explicit:
            self._fused_backward(layer)
            return
        torch.mul(self.d_y4, layer.inverse4, out=self.d_mixed4)
        inner = torch.sum(torch.mul(self.d_y4, layer.y4, out=self.mixed4), dim=-1, keepdim=True)
        inner = inner.view(self.N, self.T, 1) * layer.inverse  # (N, T, 1)
        q, k, v, (d_q, d_k, d_v) = layer.q, layer.k, layer.v, self.d_heads
        for index in reversed(range(len(self.spans))):
            (start, end), weights, d_scores = self.spans[index], layer.weights[index], self.d_scores[index]
            d_mixed, more = self.d_mixed[:, start:end], float(index + 1 < len(self.spans))
            torch.baddbmm(d_v[:, :end], weights.mT, d_mixed, beta=more, out=d_v[:, :end])
            torch.bmm(d_mixed, v[:, :end].mT, out=d_scores)
            d_scores.sub_(inner[:, start:end]).mul_(weights)
            torch.baddbmm(d_q[:, start:end], d_scores, k[:, :end], beta=0, alpha=self.scale, out=d_q[:, start:end])
            torch.baddbmm(d_k[:, :end], d_scores.mT, q[:, start:end], beta=more, alpha=self.scale, out=d_k[:, :end])
        self.qkv4.copy_(self.d_heads4)

    def _fused_backward(self, layer: SimpleNamespace) -> None:
        kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads = kernel(self.d_y4, *layer.heads4, *layer.fused, 0.0, True)
        for target, gradient in zip(self.qkv4, grads, strict=True):
            target.copy_(gradient)


def _norm(w: dict[str, Tensor], g: dict[str, Tensor], name: str) -> SimpleNamespace:
    scale, shift = f"{name}.weight", f"{name}.bias"
    return SimpleNamespace(scale=w[scale], shift=w[shift], d_scale=g[scale], d_shift=g[shift])
