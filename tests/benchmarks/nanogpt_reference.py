"""nanoGPT's model and training step, restated plainly as the loop to compare with (github.com/karpathy/nanoGPT, MIT).

As there: pre-norm blocks with one matrix for queries, keys and values, GELU, tied embedding and head, no biases, no
dropout, PyTorch's fused attention; normal(0, 0.02) weights, residual projections by 1/sqrt(2 L); AdamW with weight
decay on matrices only, gradients clipped at 1.0 and dropped with set_to_none; warm-up and a cosine to a tenth; batches
of random windows stacked from a memory map. float32, no compilation, as on a CPU.
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class ReferenceGPT(nn.Module):
    """GPT of nanoGPT's model.py."""

    def __init__(self, *, d_model: int, n_layers: int, n_heads: int, vocab_size: int = 256, context: int = 128):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, d_model)
        self.wpe = nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList(_Block(d_model, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model, bias=False)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.wte.weight = self.head.weight
        self.apply(_initialise)
        for name, parameter in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * n_layers))

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class _Block(nn.Module):
    def __init__(self, d: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.norm1, self.norm2 = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.attention = nn.Linear(d, 3 * d, bias=False)
        self.attention_proj = nn.Linear(d, d, bias=False)
        self.up, self.proj = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        self.gelu = nn.GELU()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        B, T, d = x.size()
        q, k, v = self.attention(self.norm1(x)).split(d, dim=2)
        q, k, v = (t.view(B, T, self.n_heads, d // self.n_heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        x = x + self.dropout(self.attention_proj(y.transpose(1, 2).contiguous().view(B, T, d)))
        return x + self.dropout(self.proj(self.gelu(self.up(self.norm2(x)))))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, mean=0.0, std=0.02)


class ReferenceLoop:
    """The body of nanoGPT's train.py, one step a call."""

    def __init__(self, model, data: np.ndarray, *, batch: int, context: int, learning_rate: float, steps: int, seed=0):
        torch.manual_seed(seed)
        self.model, self.data, self.batch, self.context = model, data, batch, context
        self.learning_rate, self.steps, self.warmup = learning_rate, steps, min(100, steps // 10)
        self.step = 0
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))

    def batch_of(self):
        starts = torch.randint(len(self.data) - self.context, (self.batch,))
        x = torch.stack([torch.from_numpy(self.data[i : i + self.context].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(self.data[i + 1 : i + 1 + self.context].astype(np.int64)) for i in starts])
        return x, y

    def rate(self) -> float:
        if self.step < self.warmup:
            return self.learning_rate * (self.step + 1) / (self.warmup + 1)
        share = (self.step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * share)))

    def __call__(self) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        x, y = self.batch_of()
        _, loss = self.model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    @torch.no_grad()
    def held_out(self, tokens: torch.Tensor) -> float:
        """Mean loss on windows (n, T + 1)."""
        losses = [self.model(part[:, :-1].long(), part[:, 1:].long())[1].item() for part in tokens.split(64)]
        return float(np.mean(losses))
