"""A stand-in for training: the loss is a function of the configuration, the time a knob in the environment."""

import math
import os
import time
from dataclasses import dataclass, field

from sweeps.config import RunConfig

SECONDS = "FAKE_TRAINING_SECONDS"  # of one run
MODE = "FAKE_TRAINING_MODE"
CHECKPOINTS = "FAKE_TRAINING_CHECKPOINTS"
STEPS = 10


class Interrupted(Exception):
    pass


@dataclass(frozen=True)
class Progress:
    tokens_done: int
    tokens_total: int
    loss: float
    config: RunConfig


@dataclass(frozen=True)
class Outcome:
    config: RunConfig
    status: str
    reason: str | None
    loss: float | None
    loss_se: float | None
    row: dict
    curve: list = field(default_factory=list)


def law(config: RunConfig) -> float:
    return 0.5 + 20 / config.params**0.3 + 30 / config.realised_tokens**0.3 + 1e-3 * config.seed


def measure_speed(config, corpus, seconds):
    return 1e6


def choose_numerics(shape, device, *, dtype=None, attention=None, batch_tokens=None, seconds=1.0):
    return dtype or ("float32" if shape.d_model < 32 else "bfloat16"), attention or "explicit"


def train_trunk(configs, corpus, *, checkpoint=None, checkpoint_seconds=120.0, on_progress=None, should_stop=None):
    """Ten steps for each run; with FAKE_TRAINING_CHECKPOINTS set the place is saved at each and gone on from."""
    pause = float(os.environ.get(SECONDS, "0")) / STEPS
    saves = checkpoint is not None and CHECKPOINTS in os.environ
    state = (checkpoint.load() if saves else None) or {}
    runs = sorted(configs, key=lambda c: c.tokens)
    for number, config in enumerate(runs):
        first = state.get(config.run_id, 0)
        for step in range(first, STEPS):
            if on_progress is not None:
                on_progress(Progress(number * STEPS + step, STEPS * len(runs), 2.0 - step / STEPS, config))
            _wait(pause, should_stop)
            if saves:
                checkpoint.save({config.run_id: step + 1})
        misbehave(config)
        yield _outcome(config, first)


def _wait(pause, should_stop):
    end = time.monotonic() + pause
    while True:
        if should_stop is not None and should_stop():
            raise Interrupted
        if time.monotonic() >= end:
            return
        time.sleep(min(pause, 0.02))


def _outcome(config, first):
    loss, tokens = law(config), config.realised_tokens
    diverges = os.environ.get(MODE) == "diverge" and config.seed == 1
    row = {"unique_tokens": tokens, "tokenizer": "bytes", "bits_per_byte": loss / math.log(2)}
    return Outcome(
        config,
        "diverged" if diverges else "done",
        "the loss is nan" if diverges else None,
        math.nan if diverges else loss,
        1e-3,
        {**row, "wall_seconds": time.time(), "trained_tokens": STEPS - first},
        [{"tokens": tokens // 2, "loss": loss + 0.1, "part": "trunk"}, {"tokens": tokens, "loss": loss, "part": "end"}],
    )


def misbehave(config: RunConfig) -> None:
    mode = os.environ.get(MODE, "")
    if mode == "raise" and config.seed == 1:
        raise RuntimeError("a defect in training")
    if mode == "die" and config.seed == 1:
        os.kill(os.getpid(), 9)
