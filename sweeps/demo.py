"""The class demo: the lecture's transformer trained on a short text while one watches, then looked into.

2 blocks, d = 64, 4 heads, learned positions, bytes; a step is a batch of windows, a loss, a gradient, an update of
AdamW. Trained without the causal mask the same model reads the answer off its input: see `DemoConfig.mask`.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scaling.accounting import Shape, block_parameters
from scaling.errors import InputError
from scaling.presets import preset
from sweeps.config import RunConfig
from sweeps.corpus import load_corpus
from sweeps.decoding import Decoding, entropy, probabilities
from sweeps.flat import group_of
from sweeps.generation import decode_bytes, generate, next_logits
from sweeps.model import Transformer, explicit_attention, rotate, rotation
from sweeps.recipe import Recipe, rate_of, resolve, schedule_factor

LECTURE = preset("lecture").shape
MANUAL = "manual"
HELD_OUT_WINDOWS = 256
HELD_OUT_SHARE = 12  # one byte in so many of the manual is held out
LONG_LINE = 24  # bytes; shorter lines are everyone's
REPORT_EVERY = 50  # steps between reports; each reports the mean of its steps


@dataclass(frozen=True)
class DemoConfig:
    """What a demo trains: the shape, the text, the tokens, and whether the mask is on."""

    shape: Shape = LECTURE
    corpus: str = MANUAL  # the language reference that every Python carries, or a corpus of `load_corpus`
    tokens: int = 2_500_000
    batch_tokens: int = 512
    learning_rate: float = Recipe.learning_rate
    mask: bool = True  # False: every token sees its successors, and with them the answer
    seed: int = 0


@dataclass
class DemoRun:
    """What came out: the model, its losses in nats per byte, and the seconds it took."""

    config: DemoConfig
    model: Transformer
    curve: list[tuple[int, float]] = field(default_factory=list)  # (tokens seen, mean training loss since the last)
    training_loss: float = float("nan")  # mean over the last tenth of the steps
    held_out_loss: float = float("nan")  # computed as in training: with or without the mask
    next_byte_loss: float = float("nan")  # of the byte after the window, which no model has seen
    seconds: float = 0.0
    n_train: int = 0
    n_held_out: int = 0

    def summary(self) -> dict[str, Any]:
        """Plain values: what is saved beside the weights and printed as JSON."""
        names = ("training_loss", "held_out_loss", "next_byte_loss", "seconds", "n_train", "n_held_out")
        settings = {name: value for name, value in asdict(self.config).items() if name != "shape"}
        counted = {"block_params": block_parameters(self.config.shape), "params": count(self.model)}
        return {**settings, **counted, **{name: getattr(self, name) for name in names}, "curve": self.curve}


def train_demo(config: DemoConfig, *, report: Callable[[DemoRun], None] = lambda run: None) -> DemoRun:
    """Train; `report` is called every few steps with the run so far. Raises InputError for a text that is too short."""
    torch.manual_seed(config.seed)
    train, held_out = demo_text(config.corpus, least=config.shape.context + 2)
    run = DemoRun(config, Transformer(config.shape, seed=config.seed), n_train=len(train), n_held_out=len(held_out))
    start = time.perf_counter()
    recipe = Recipe(batch_tokens=config.batch_tokens, learning_rate=config.learning_rate)
    plan = resolve(config.shape, config.tokens, corpus=config.corpus, corpus_hash="demo", recipe=recipe)
    optimizer = _optimizer(run.model, plan)
    generator = torch.Generator().manual_seed(config.seed)
    losses: list[float] = []
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * schedule_factor(step, plan)
        inputs, targets = _batch(train, config, generator)  # each (B, T)
        logits = run.model(inputs, mask=config.mask)  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), plan.clip)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % REPORT_EVERY == 0 or step + 1 == plan.steps:
            recent = losses[-REPORT_EVERY:]
            run.curve.append(((step + 1) * config.batch_tokens, sum(recent) / len(recent)))
            run.seconds = time.perf_counter() - start
            report(run)
    tail = losses[-max(1, plan.steps // 10) :]
    run.training_loss = sum(tail) / len(tail)
    run.model.eval()
    run.held_out_loss, run.next_byte_loss = evaluate(run.model, held_out, mask=config.mask)
    run.seconds = time.perf_counter() - start
    return run


def demo_text(corpus: str, *, least: int) -> tuple[Tensor, Tensor]:
    """Bytes to train on and bytes held out, (n,) and (m,), sharing no document.

    "manual" is the language reference that `pydoc` carries, some chapters held out. Raises InputError for an
    interpreter without it, for a part of fewer than `least` bytes, and as `load_corpus` does.
    """
    train, held_out = _manual() if corpus == MANUAL else _loaded(corpus)
    for part, text in (("training", train), ("held-out", held_out)):
        if len(text) < least:
            raise InputError(f"demo: the {part} text holds {len(text)} bytes, fewer than one window of {least}.")
    return torch.from_numpy(train), torch.from_numpy(held_out)


def _loaded(corpus: str) -> tuple[np.ndarray, np.ndarray]:
    loaded = load_corpus(corpus)
    return np.array(loaded.train), np.array(loaded.validation)


def _manual() -> tuple[np.ndarray, np.ndarray]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise InputError('demo: this Python has no pydoc_data. Give another text: "python" or "text:PATH".') from error
    chapters = [topics[name].encode() for name in sorted(topics)]
    chosen = _apart(chapters, least=sum(map(len, chapters)) // HELD_OUT_SHARE)
    parts = ([c for i, c in enumerate(chapters) if i not in chosen], [chapters[i] for i in sorted(chosen)])
    train, held_out = (np.frombuffer(b"\n\n".join(part), dtype=np.uint8).copy() for part in parts)
    return train, held_out


def _apart(chapters: list[bytes], *, least: int) -> set[int]:
    """The first chapters, `least` bytes of them, that share next to no line with another: many are printed twice."""
    lines = [{line for line in chapter.split(b"\n") if len(line) >= LONG_LINE} for chapter in chapters]
    seen = Counter(line for own in lines for line in own)
    chosen: set[int] = set()
    for i, own in enumerate(lines):
        if sum(len(chapters[j]) for j in chosen) < least and sum(seen[line] > 1 for line in own) <= 0.02 * len(own):
            chosen.add(i)
    return chosen


def evaluate(model: Transformer, text: Tensor, *, mask: bool) -> tuple[float, float]:
    """Mean loss over windows of held-out text as in training, and the mean loss of the byte after a window alone, over
    windows of an eighth to the whole of the context.

    With the mask both say the same thing of a model; without it the first is what training saw and the second what
    generation meets. The text holds at least a context and two bytes.
    """
    T = model.shape.context
    starts = torch.linspace(0, len(text) - T - 1, HELD_OUT_WINDOWS).long()  # spread over the text
    windows = torch.stack([text[s : s + T + 1] for s in starts.tolist()]).long()  # (256, T + 1)
    lengths = sorted({max(1, T * eighths // 8) for eighths in range(1, 9)})
    with torch.inference_mode():
        logits = model(windows[:, :-1], mask=mask)  # (256, T, V)
        seen = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        unseen = [F.cross_entropy(model(windows[:, :n], mask=mask)[:, -1], windows[:, n]) for n in lengths]
    return seen.item(), torch.stack(unseen).mean().item()


def count(model: Transformer) -> int:
    """Parameters, counted in the model itself."""
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class HeadView:
    """One head as it reads a text: scores Q K^T / sqrt(d_h), the mask that is added, the weights; each (T, T)."""

    scores: np.ndarray
    mask: np.ndarray
    weights: np.ndarray


def view_head(model: Transformer, tokens: Sequence[int], *, layer: int = 0, head: int = 0) -> HeadView:
    """The causal mask at work in one head: what the scores are before it, what is added, what is left after softmax."""
    q, k, v = _queries_keys_values(model, tokens, layer)
    _, weights = explicit_attention(q, k, v, mask=True)  # (1, h, T, T)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    n = len(tokens)
    hidden = np.where(np.tri(n, dtype=bool), 0.0, -np.inf)
    return HeadView(scores[0, head].numpy(), hidden, weights[0, head].numpy())


def temperature_sweep(
    model: Transformer, prompt: Sequence[int], temperatures: Sequence[float], *, n_tokens: int, seed: int = 0
) -> list[dict[str, Any]]:
    """For each temperature: the distribution over the next byte, its entropy in nats, and a sample that goes on."""
    logits = next_logits(model, prompt)
    rows = []
    for temperature in temperatures:
        decoding = Decoding(temperature=temperature)
        p = probabilities(logits, decoding)
        sampled = generate(model, prompt, n_tokens, decoding=decoding, seed=seed)
        rows.append({"temperature": temperature, "entropy": entropy(p), "p": p, "text": "".join(decode_bytes(sampled))})
    return rows


def _queries_keys_values(model: Transformer, tokens: Sequence[int], layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """What one layer's attention sees, each (1, h, T, d_h), taken from the model as it runs."""
    block: Any = model.blocks[layer]
    attention = block.attention
    seen: list[Tensor] = []
    hook = attention.qkv.register_forward_hook(lambda module, inputs, output: seen.append(output))
    try:
        with torch.no_grad():
            model(torch.tensor([list(tokens)]))
    finally:
        hook.remove()
    q, k, v = seen[0].view(1, len(tokens), 3, attention.n_heads, -1).permute(2, 0, 3, 1, 4)
    where = torch.arange(len(tokens))
    if not attention.rotary:
        return q, k, v
    turn = rotation(where, q.shape[-1], q.dtype)
    return rotate(q, turn), rotate(k, turn), v


def _optimizer(model: Transformer, plan: RunConfig) -> torch.optim.AdamW:
    """AdamW with the recipe's rates: matrices, embeddings and norms each their own."""
    groups: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(group_of(name, parameter), []).append(parameter)
    rates = [
        {"params": parameters, "peak": plan.learning_rate * rate_of(name, plan)} for name, parameters in groups.items()
    ]
    return torch.optim.AdamW(rates, lr=plan.learning_rate, betas=(plan.beta1, plan.beta2), weight_decay=0.0)


def _batch(text: Tensor, config: DemoConfig, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Windows at random places: inputs, and the same shifted by one as targets."""
    T = config.shape.context
    starts = torch.randint(len(text) - T, (config.batch_tokens // T,), generator=generator)  # (B,)
    windows = text[starts[:, None] + torch.arange(T + 1)].long()  # (B, T + 1)
    return windows[:, :-1], windows[:, 1:]
