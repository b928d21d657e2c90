"""Which numbers a machine computes fastest with: fp32 or bf16, fused, explicit or compiled attention. By timing a shape."""

import time
from functools import lru_cache

import numpy as np
import torch

from scaling.accounting import Shape
from scaling.errors import SweepError
from sweeps.batches import Batches
from sweeps.config import RunConfig
from sweeps.corpus import Corpus
from sweeps.native_step import is_available
from sweeps.recipe import Recipe, batch_for, resolve, why_not_native
from sweeps.steps import make_step

_CEILING_SIZE = {"cpu": 768, "cuda": 8192}


def choose_numerics(
    shape: Shape,
    device: str = "cpu",
    *,
    dtype: str | None = None,
    attention: str | None = None,
    batch_tokens: int | None = None,
    seconds: float = 1.0,
) -> tuple[str, str]:
    """(dtype, attention) under which steps of a shape are the fastest here; what is given is not chosen.

    About `seconds` go into the timing. Both are part of a run's identity: choose once per sweep and write it down.
    """
    candidates = _candidates(shape, device, dtype, attention)
    if len(candidates) == 1:
        return candidates[0]
    recipe = Recipe(batch_tokens=batch_tokens or batch_for(0, shape.context))
    text = np.random.default_rng(0).integers(0, shape.vocab_size, 65536 + 2 * recipe.batch_tokens, dtype=np.uint8)
    steps = {}
    for d, a in candidates:
        config = resolve(
            shape, 100 * recipe.batch_tokens, corpus="timing", corpus_hash="", recipe=recipe, dtype=d, attention=a,
            device=device,
        )  # fmt: skip
        steps[d, a] = _Timed(config, text)
    return min(candidates, key=_interleaved(steps, seconds).__getitem__)


def _candidates(shape: Shape, device: str, dtype: str | None, attention: str | None) -> list[tuple[str, str]]:
    dtypes = [dtype] if dtype else ["float32", "bfloat16"]
    if attention == "native":
        if reason := why_not_native(shape, dtype or "float32", device):
            raise SweepError(f'numerics: attention = "native" {reason}. Set attention = "fused".')
        return [("float32", "native")]
    pairs = [(d, a) for d in dtypes for a in ([attention] if attention else ["explicit", "fused"])]
    if attention is None and "float32" in dtypes and why_not_native(shape, "float32", device) is None and is_available():
        pairs.append(("float32", "native"))
    return pairs


def measure_speed(config: RunConfig, corpus: Corpus, seconds: float = 1.0) -> float:
    """Training tokens per second of a configuration on this machine, from about `seconds` of steps."""
    timed = _Timed(config, corpus.train)
    return config.batch_tokens / _interleaved({"only": timed}, seconds)["only"]


@lru_cache(maxsize=8)
def matmul_ceiling(device: str, dtype: str) -> float:
    """FLOP/s of large matrix products: what this device can reach at all. The best of five."""
    size = _CEILING_SIZE[device.partition(":")[0]]
    a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    best = min(_seconds(lambda: torch.mm(a, b, out=out), device) for _ in range(5))
    return 2 * size**3 / best


class _Timed:
    """Steps of one configuration, to be timed one by one."""

    def __init__(self, config: RunConfig, text: np.ndarray):
        self.config, self.step, self.done = config, make_step(config), 0
        self.batches = Batches(
            text, context=config.context, batch_tokens=config.batch_tokens, seed=config.data_seed
        )
        self()

    def __call__(self) -> None:
        inputs, targets = self.batches.at(self.done)
        float(self.step.gradients(inputs, targets))
        self.step.flat.update(self.done, 0.1, inputs.numel())
        self.done += 1


def _interleaved(steps: dict, seconds: float) -> dict:
    """Seconds a step of each takes, by turns until the time is up: the least of at least three."""
    best = dict.fromkeys(steps, float("inf"))
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 3 or time.perf_counter() < end:
        for name, timed in steps.items():
            best[name] = min(best[name], _seconds(timed, timed.config.device))
        rounds += 1
    return best


def _seconds(call, device: str) -> float:
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
