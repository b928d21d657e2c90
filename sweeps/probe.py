"""What this machine can do, asked of a short-lived process, so that the caller never imports torch.

`probe` finds the device, chooses the numerics of each shape by timing, and measures training speed on a few shapes
spread over the sizes; the rest are read off between them. As a module it is that process: a request on standard input,
an answer on standard output, both JSON.
"""

import importlib
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scaling.accounting import Shape, count_parameters, flops_per_token
from scaling.errors import SweepError
from sweeps.config import RunConfig
from sweeps.grid import Grid
from sweeps.plan import Numerics, task_flops
from sweeps.recipe import resolve, why_not_native
from sweeps.worker import TRAIN

CHOSEN_SHAPES = 6  # timed; others take the choice of the nearest in width
TIMED_SHAPES = 4
_PROBED_STEPS = 20  # that timing a shape takes at the least
_ASSUMED_SPEED = {"cpu": 5e10, "cuda": 2e13}  # FLOP/s, only to leave out shapes that cannot be timed in a moment


@dataclass(frozen=True)
class Machine:
    """What the probe found. `speeds` is training FLOP/s (head and attention counted) by FLOPs per token."""

    device: str
    gpus: int
    numerics: dict[str, Numerics]  # by shape_key
    speeds: tuple[tuple[float, float], ...] = ()  # (FLOPs per token, FLOP/s), ascending; empty: not measured
    held_out_tokens: int = 0  # evaluated when a run ends
    startup_seconds: float = 0.0  # until a worker can train
    notes: tuple[str, ...] = ()  # what its process was warned of

    def seconds(self, column: Sequence[RunConfig]) -> float | None:
        """Of one worker, for runs that share a trunk: training, and a forward pass over the held-out tokens at each end
        (a third of training them); None when the speed was not measured."""
        per_token = flops_per_token(column[0].shape()).total
        speed = self.flops_per_second(per_token)
        if speed is None:
            return None
        return (task_flops(column) + len(column) * self.held_out_tokens * per_token / 3) / speed

    def flops_per_second(self, per_token: float) -> float | None:
        """Training FLOP/s at that many FLOPs per token: between measured points in the logarithm, flat outside."""
        if not self.speeds:
            return None
        points = [(math.log(x), math.log(y)) for x, y in self.speeds]
        x = math.log(per_token)
        for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
            if x0 <= x <= x1:
                return math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
        return math.exp(points[0][1] if x < points[0][0] else points[-1][1])


def shape_key(shape: Shape) -> str:
    """One name for what numerics depend on."""
    return f"d{shape.d_model}L{shape.n_layers}h{shape.n_heads}f{shape.ff_width}c{shape.context}{shape.positions}"


def probe(
    grid: Grid,
    *,
    corpus: str,
    corpus_hash: str,
    known: dict[str, Numerics],
    train: str = TRAIN,
    choose_seconds: float = 2.0,
    speed_seconds: float = 0.0,
) -> Machine:
    """Ask a fresh process. `known` numerics are kept. Raises SweepError when that process fails."""
    samples = [_sample(grid, shape, corpus, corpus_hash).to_dict() for shape in _unique(grid.shapes)]
    request = {
        "train": train, "corpus": corpus, "samples": samples, "device": grid.device, "dtype": grid.dtype,
        "attention": grid.attention, "choose_seconds": choose_seconds, "speed_seconds": speed_seconds,
        "known": {key: [n.dtype, n.attention] for key, n in known.items()},
    }  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sweeps.probe"]
    done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, env=environment)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
        message = words[-1].removeprefix("SweepError: ")
        raise SweepError(message if words[-1].startswith("SweepError: ") else f"timing this machine failed: {message}")
    answer = json.loads(done.stdout)
    numerics = {key: Numerics(*value) for key, value in answer["numerics"].items()}
    speeds = tuple((x, y) for x, y in sorted(answer["speeds"]))
    return Machine(
        answer["device"], answer["gpus"], numerics, speeds, answer["held_out_tokens"], answer["startup_seconds"],
        notes=tuple(answer["warnings"]),
    )  # fmt: skip


def _sample(grid: Grid, shape: Shape, corpus: str, corpus_hash: str) -> RunConfig:
    recipe = grid.recipe()
    tokens = 100 * recipe.batch_of(0, shape.context)
    return resolve(shape, tokens, corpus=corpus, corpus_hash=corpus_hash, recipe=recipe)


def _unique(shapes: Iterable[Shape]) -> list[Shape]:
    return list({shape_key(shape): shape for shape in shapes}.values())


# The process


def answer(request: dict) -> dict:
    """What the probe asks, in the process that has torch."""
    tools = importlib.import_module(
        "sweeps.numerics" if request["train"] == TRAIN else request["train"].partition(":")[0]
    )
    device, gpus = _device(request["device"])
    startup = time.process_time()  # of the interpreter and of torch
    samples = [RunConfig.from_dict({**data, "device": device}) for data in request["samples"]]
    samples.sort(key=lambda config: config.params)
    chosen = dict(request["known"])
    fixed = {name: request[name] for name in ("dtype", "attention") if request[name]}
    _choose(getattr(tools, "choose_numerics", None), samples, chosen, fixed, request["choose_seconds"])
    speeds = []
    if request["speed_seconds"] and hasattr(tools, "measure_speed"):
        speeds = _speeds(tools.measure_speed, samples, chosen, request["corpus"], request["speed_seconds"])
    return {
        "device": device,
        "gpus": gpus,
        "numerics": chosen,
        "speeds": speeds,
        "held_out_tokens": _held_out_tokens(request, samples[0].context),
        "startup_seconds": startup,
    }


def _device(asked: str | None) -> tuple[str, int]:
    if asked == "cpu":
        return "cpu", 0
    try:
        import torch
    except ModuleNotFoundError as error:
        raise SweepError("Training needs torch, which is not installed: pip install 'isoflop[train]'") from error
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "cuda" and not gpus:
        raise SweepError('device = "cuda", but this machine has no GPU that torch can use.')
    return ("cuda", gpus) if gpus else ("cpu", 0)


def _choose(choose_numerics, samples: list[RunConfig], chosen: dict, fixed: dict, seconds: float) -> None:
    """Fill `chosen` in: shapes spread over the sizes are timed, each other one follows the nearest in width."""
    missing = [config for config in samples if shape_key(config.shape()) not in chosen]
    if len(fixed) == 2 or choose_numerics is None:
        plain = [fixed.get("dtype", "float32"), fixed.get("attention", "fused")]
        chosen.update({shape_key(config.shape()): plain for config in missing})
        return
    for able in (True, False):  # shapes that the compiled step cannot train follow none that it can
        alike = [config for config in missing if (why_not_native(config.shape(), "float32", config.device) is None) is able]
        if alike:
            _choose_alike(choose_numerics, alike, chosen, fixed, seconds * len(alike) / len(missing))


def _choose_alike(choose_numerics, missing: list[RunConfig], chosen: dict, fixed: dict, seconds: float) -> None:
    timed = _spread([config for config in missing if _is_quick(config, 5)] or missing[:1], CHOSEN_SHAPES)
    results = {}
    for config in timed:
        results[config.d_model] = choose_numerics(
            config.shape(), config.device, **fixed, batch_tokens=config.batch_tokens, seconds=seconds / len(timed)
        )
    for config in missing:
        nearest = min(results, key=lambda d: abs(math.log(d / config.d_model)))
        chosen[shape_key(config.shape())] = list(results[nearest])


def _speeds(measure_speed, samples: list[RunConfig], chosen: dict, corpus_name: str, seconds: float) -> list:
    from sweeps.corpus import load_corpus

    corpus = load_corpus(corpus_name)
    timed = _spread([config for config in samples if _is_quick(config, 1)] or samples[:1], TIMED_SHAPES)
    speeds: dict[float, float] = {}
    for config in timed:
        dtype, attention = chosen[shape_key(config.shape())]
        config = RunConfig.from_dict({**config.to_dict(), "dtype": dtype, "attention": attention})
        per_token = flops_per_token(config.shape()).total
        speeds[per_token] = per_token * measure_speed(config, corpus, seconds / len(timed))
    return list(speeds.items())


def _held_out_tokens(request: dict, context: int) -> int:
    if request["train"] != TRAIN:
        return 0
    from sweeps.corpus import load_corpus
    from sweeps.evaluation import WINDOWS

    return min(WINDOWS, (len(load_corpus(request["corpus"]).validation) - 1) // context) * context


def _is_quick(config: RunConfig, variants: int) -> bool:
    """Whether timing it ends within a second or so."""
    work = flops_per_token(config.shape()).total * config.batch_tokens * _PROBED_STEPS * variants
    return work < _ASSUMED_SPEED[config.device] and count_parameters(config.shape()).total < 5e8


def _spread(configs: list[RunConfig], at_most: int) -> list[RunConfig]:
    """The first, the last and evenly spaced ones between."""
    if len(configs) <= at_most:
        return configs
    return [configs[round(i * (len(configs) - 1) / (at_most - 1))] for i in range(at_most)]


def main() -> int:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        with warnings.catch_warnings(record=True) as caught:
            found = answer(json.load(sys.stdin))
        json.dump({**found, "warnings": list(dict.fromkeys(str(warning.message) for warning in caught))}, out)
    except SweepError as error:
        sys.stderr.write(f"SweepError: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
