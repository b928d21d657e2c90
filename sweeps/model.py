"""The transformer, top to bottom: a decoder-only stack of pre-norm residual blocks.

    X <- X + MHA(LN(X)),  X <- X + MLP(LN(X)),  logits = W_head LN(X)

h heads of width d/h, concatenated and mixed by W_O; the causal mask is applied to the scores, before the softmax; the
MLP is 4 d wide with ReLU; linear maps have no bias, norms scale and shift. Parameters are counted by
`scaling.accounting`. In trailing comments B is the batch, T the tokens, S the tokens attended to, d the width, h the
heads, d_h = d/h, V the vocabulary.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scaling.accounting import Shape
from scaling.errors import SweepError


@dataclass
class Cache:
    """Keys and values of the tokens already read, one pair a layer, each (B, h, S, d_h)."""

    keys_values: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.keys_values[0][0].shape[2] if self.keys_values else 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v of a layer; returns all of that layer's."""
        if layer == len(self.keys_values):
            self.keys_values.append((k, v))
        else:
            old_k, old_v = self.keys_values[layer]
            self.keys_values[layer] = (torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2))
        return self.keys_values[layer]


class Transformer(nn.Module):
    """A language model of a shape; `seed` alone decides its initial weights.

    `attention` is "fused" (PyTorch's kernel) or "explicit" (matrix product, mask, softmax, matrix product): the same
    numbers by two ways. "native", the compiled training step, is fused here. Raises SweepError for the shapes that are
    counted but not trained (gated, grouped, tied).
    """

    def __init__(self, shape: Shape, *, attention: str = "fused", seed: int = 0):
        super().__init__()
        _check(shape, attention)
        d, self.shape, self.attention = shape.d_model, shape, attention
        self.token_embedding = nn.Embedding(shape.vocab_size, d)
        if shape.positions == "learned":
            self.position_embedding = nn.Embedding(shape.context, d)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, shape.vocab_size, bias=False)
        initialise(self, seed)

    def forward(
        self, tokens: Tensor, *, mask: bool = True, cache: Cache | None = None, record: list[Tensor] | None = None
    ) -> Tensor:
        """Logits of the next token, (B, T, V), for tokens (B, T).

        Without `mask` a token sees its successors. With a `cache` the tokens follow those in it, and are added to it.
        `record` receives the attention weights of each layer, (B, h, T, S), computed explicitly.
        """
        start = cache.length if cache is not None else 0
        where = torch.arange(start, start + tokens.shape[1], device=tokens.device)  # (T,)
        if where.numel() and self.shape.positions == "learned" and start + tokens.shape[1] > self.shape.context:
            raise SweepError(f"model: {start + tokens.shape[1]} tokens do not fit a context of {self.shape.context}.")
        x = self.token_embedding(tokens)  # (B, T, d)
        if self.shape.positions == "learned":
            x = x + self.position_embedding(where)
        elif self.shape.positions == "sinusoidal":
            x = x + sinusoids(where, self.shape.d_model).to(x.dtype)
        explicit, rotary = self.attention == "explicit", self.shape.positions == "rotary"
        turn = rotation(where, self.shape.d_model // self.shape.n_heads, x.dtype) if rotary else None
        for layer, block in enumerate(self.blocks):
            h = block.norm1(x)
            x = x + block.attention(h, turn, layer=layer, mask=mask, cache=cache, record=record, explicit=explicit)
            x = x + block.mlp(block.norm2(x))
        return self.head(self.norm(x))  # (B, T, V)


class Block(nn.Module):
    """The parts of one pre-norm block; `Transformer.forward` joins them."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.d_model)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.d_model)
        self.mlp = MLP(shape)


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d_h) + mask) V for h heads at once; one matrix makes queries, keys and values."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.n_heads, self.rotary = shape.n_heads, shape.positions == "rotary"
        self.qkv = nn.Linear(shape.d_model, 3 * shape.d_model, bias=False)
        self.out = nn.Linear(shape.d_model, shape.d_model, bias=False)

    def forward(self, x, turn, *, layer, mask, cache, record, explicit) -> Tensor:
        B, T, d = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)  # each (B, h, T, d_h)
        if self.rotary:
            q, k = rotate(q, turn), rotate(k, turn)
        if cache is not None:
            k, v = cache.extend(layer, k, v)  # (B, h, S, d_h)
        if explicit or record is not None:
            y, weights = explicit_attention(q, k, v, mask=mask)
            if record is not None:
                record.append(weights)
        elif mask and k.shape[2] != T:  # with a cache the first query already sees S - T keys
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(T, k.shape[2], q.device))
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=mask)
        return self.out(y.transpose(1, 2).reshape(B, T, d))  # heads side by side, mixed by W_O


class MLP(nn.Module):
    """W_2 max(0, W_1 x)."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.up = nn.Linear(shape.d_model, shape.ff_width, bias=False)
        self.down = nn.Linear(shape.ff_width, shape.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, *, mask: bool) -> tuple[Tensor, Tensor]:
    """Mixed values (B, h, T, d_h) and the attention weights (B, h, T, S), each row of which sums to one."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, h, T, S)
    if mask:
        scores = scores.masked_fill(~causal_mask(*scores.shape[-2:], scores.device), float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return weights @ v, weights


def causal_mask(T: int, S: int, device: torch.device) -> Tensor:
    """True where query t may see key s: s <= t, counted from the end, (T, S)."""
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def attention_weights(model: Transformer, tokens: Tensor, *, mask: bool = True) -> list[Tensor]:
    """The attention weights of every layer, each (B, h, T, T), as the model reads `tokens` (B, T)."""
    record: list[Tensor] = []
    with torch.no_grad():
        model(tokens, mask=mask, record=record)
    return record


def sinusoids(where: Tensor, d: int) -> Tensor:
    """sin and cos of t / 10000^(2i/d), (T, d) (Vaswani et al. 2017, section 3.5)."""
    rates = 10000.0 ** (-torch.arange(0, d, 2, device=where.device) / d)  # (d/2,)
    angles = where[:, None] * rates  # (T, d/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :d]


def rotation(where: Tensor, d_h: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, each (T, d_h/2), of the angles t / 10000^(2i/d_h) by which rotary positions turn (Su et al. 2021)."""
    half = d_h // 2
    angles = where[:, None] * 10000.0 ** (-torch.arange(half, device=where.device) / half)  # (T, d_h/2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each half-split pair of x (B, h, T, d_h) by the angles of `rotation`."""
    cos, sin = turn
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def initialise(model: Transformer, seed: int) -> None:
    """Normal weights from one generator, in the order of the parameters; the head starts at zero.

    Hidden matrices have standard deviation 1/sqrt(fan-in), so that activations keep their size at every width; the two
    matrices that write to the residual stream are divided by sqrt(2 L) (Radford et al. 2019). A head of zeros starts
    every width at the loss ln V, and is the readout with which learning rates transfer (Yang et al. 2022, appendix D).
    """
    generator = torch.Generator().manual_seed(seed)
    depth = math.sqrt(2 * model.shape.n_layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # a norm: scale one, shift zero
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif name == "head.weight":
                parameter.zero_()
            elif "embedding" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * EMBEDDING_STD)
            else:
                std = 1 / math.sqrt(parameter.shape[1]) / (depth if name.endswith(("out.weight", "down.weight")) else 1)
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


EMBEDDING_STD = 1.0


def _check(shape: Shape, attention: str) -> None:
    plain = {"n_kv_heads": shape.kv_heads == shape.n_heads, "gated_mlp": not shape.gated_mlp, "tied": not shape.tied}
    plain |= {"biases": shape.biases == "none", "head_dim": shape.attention_width == shape.d_model}
    for name, fits in {**plain, "norm": shape.norm == "layer"}.items():
        if not fits:
            raise SweepError(f"model: {name} = {getattr(shape, name)!r} is counted but not trained here.")
    if shape.positions == "rotary" and (shape.d_model // shape.n_heads) % 2:
        raise SweepError(f"model: rotary positions need an even head width, not {shape.d_model // shape.n_heads}.")
    if attention not in ("fused", "explicit", "native"):
        raise SweepError(f'model: unknown attention "{attention}". Known: fused, explicit, native.')
