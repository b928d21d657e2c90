"""What a finished run writes of itself into the runs table: counts, numerics and costs."""

import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from scaling.accounting import count_parameters, flops_per_token, training_flops
from sweeps.batches import Batches
from sweeps.config import RunConfig
from sweeps.corpus import Corpus
from sweeps.numerics import matmul_ceiling


@dataclass
class Cost:
    """Seconds and steps since the outcome before: what a run costs beyond those it shares its trunk with."""

    wall: float = 0.0
    cpu: float = 0.0
    evaluation: float = 0.0  # wall seconds of `wall` that went into held-out losses
    steps: int = 0
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def __post_init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def count(self) -> None:
        """Add what passed since the last call."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.wall += wall - self._wall
        self.cpu += cpu - self._cpu
        self._wall, self._cpu = wall, cpu

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Time spent inside counts as evaluation."""
        start = time.perf_counter()
        yield
        self.evaluation += time.perf_counter() - start

    def to_dict(self) -> dict[str, Any]:
        self.count()
        return asdict(self)


def describe(config: RunConfig, corpus: Corpus, batches: Batches, cost: Cost, *, steps: int) -> dict[str, Any]:
    """The columns of the runs table that training knows, all but the loss. D is what was seen, never the plan.

    wall_seconds, cpu_seconds, evaluation_seconds and trained_tokens are what this run added to its column; rates
    are over training alone. mfu is against the measured matrix-product ceiling of the device, attention included.
    """
    tokens = steps * config.batch_tokens
    count = count_parameters(config.shape())
    trained = cost.steps * config.batch_tokens
    rate = trained / max(cost.wall - cost.evaluation, 1e-9)
    return {
        "flops": training_flops(count.total, tokens),
        "params": count.total,
        "params_non_embedding": count.non_embedding,
        "tokens": tokens,
        "steps": steps,
        "batch_tokens": config.batch_tokens,
        "warmup_tokens": config.warmup_steps * config.batch_tokens,
        "unique_tokens": min(tokens, batches.unique_tokens),
        "tokenizer": corpus.tokenizer,
        "corpus": config.corpus,
        "corpus_hash": config.corpus_hash,
        "bits_per_byte": None,
        "validation_tokens": None,
        **{name: getattr(config, name) for name in _COPIED},
        "wall_seconds": cost.wall,
        "cpu_seconds": cost.cpu,
        "evaluation_seconds": cost.evaluation,
        "trained_tokens": trained,
        "tokens_per_second": rate,
        "mfu": rate * flops_per_token(config.shape()).total / matmul_ceiling(config.device, config.dtype),
        "peak_memory_bytes": peak_memory(config.device),
        "torch_version": str(torch.__version__),
        "version": version("isoflop"),
        "started_at": cost.started_at,
    }


_COPIED = (
    "seed data_seed d_model n_layers n_heads d_ff vocab_size context positions schedule cooldown_fraction "
    "cooldown_shape learning_rate weight_decay dtype attention device"
).split()


def peak_memory(device: str) -> int:
    """The most bytes held at once: of the process on a CPU, of the allocator on a GPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def bits_per_byte(loss: float, corpus: Corpus) -> float:
    """Nats per token as bits per byte of text."""
    return loss / math.log(2) / corpus.bytes_per_token
