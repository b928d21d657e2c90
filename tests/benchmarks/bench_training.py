"""Training speed and cost against nanoGPT's loop, on one core. See docs/benchmarks.md for what was measured.

    python tests/benchmarks/bench_training.py speed      tokens per second, step for step
    python tests/benchmarks/bench_training.py column     FLOPs and CPU seconds of a column against separate cosine runs
    python tests/benchmarks/bench_training.py grid       the same over a whole grid, with the losses of both

Times are CPU seconds of this process with one thread. Both sides run by turns in the same process, and ratios are of
medians, so that they hold on a busy machine; on Linux pin it as well: taskset -c 1 python ...
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from nanogpt_reference import ReferenceGPT, ReferenceLoop

from scaling.accounting import Shape, count_parameters, flops_per_token
from sweeps.batches import Batches
from sweeps.corpus import load_corpus
from sweeps.evaluation import Evaluator
from sweeps.numerics import choose_numerics, matmul_ceiling
from sweeps.recipe import Recipe, heads_for, resolve, steps_trained
from sweeps.steps import make_step
from sweeps.training import train_trunk

CONTEXT = 128
SHAPES = ((32, 2), (64, 2), (128, 4), (256, 6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "column", "grid"))
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 4], help="windows of 128 tokens a step")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each comparison")
    parser.add_argument("--widths", type=int, nargs="+", default=None)
    parser.add_argument("--reference-batch", type=int, default=16, help="windows a step of the reference loop")
    parser.add_argument("--reference-rate", type=float, default=1e-3, help="its learning rate; nanoGPT's is 1e-3")
    parser.add_argument(
        "--beyond", type=float, nargs="*", default=[], help="longer runs of the reference, for its tokens at our losses"
    )
    parser.add_argument("--batch-tokens", type=int, default=None, help="of ours in `column` and `grid`; else the recipe's")
    parser.add_argument("--tokens", type=float, nargs="+", default=[0.25e6, 0.5e6, 1e6, 2e6, 4e6, 8e6])
    options = parser.parse_args()
    torch.set_num_threads(1)
    corpus = load_corpus("python")
    if options.what == "speed":
        speed(corpus, options)
    else:
        costs(corpus, options)


# Speed


def speed(corpus, options) -> None:
    print("tokens/s (GFLOP/s) and ratio to the reference; ceiling is a large fp32 matrix product, measured in between")
    for batch in options.batch:
        for d, layers in SHAPES:
            if options.widths is None or d in options.widths:
                print(compare(corpus, make_shape(d, layers), batch, options.seconds), flush=True)


def make_shape(d: int, layers: int) -> Shape:
    return Shape(d_model=d, n_layers=layers, n_heads=heads_for(d), vocab_size=256, context=CONTEXT)


def compare(corpus, shape: Shape, batch: int, seconds: float) -> str:
    """Our step under the numerics chosen for the shape, and the reference's, one after the other until time is up."""
    dtype, attention = choose_numerics(shape, batch_tokens=batch * CONTEXT, seconds=2.0)
    reference = reference_loop(corpus, shape, batch, steps=100_000)
    ours = our_loop(corpus, shape, batch, dtype, attention)
    times = {"reference": [], "ours": [], "ceiling": []}
    for loop in (reference, ours):
        loop()
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times["ours"]) < 5:
        for name, loop in (("reference", reference), ("ours", ours)):
            start = time.process_time()
            loop()
            times[name].append(time.process_time() - start)
        matmul_ceiling.cache_clear()
        times["ceiling"].append(matmul_ceiling("cpu", "float32"))
    flops, tokens = flops_per_token(shape).total, batch * CONTEXT
    theirs, own = (statistics.median(times[name]) for name in ("reference", "ours"))
    ceiling = statistics.median(times["ceiling"])
    used = f"{flops * tokens / own / ceiling:.0%} of {ceiling / 1e9:.0f} GFLOP/s"
    rates = [f"{tokens / t / 1e3:7.1f}k ({flops * tokens / t / 1e9:5.1f})" for t in (theirs, own)]
    return (
        f"d {shape.d_model:3d} L {shape.n_layers} batch {batch:2d} x 128: reference {rates[0]}  ours {rates[1]}  "
        f"{theirs / own:.2f}x  {used} ({dtype}, {attention})"
    )


def reference_loop(corpus, shape: Shape, batch: int, *, steps: int, learning_rate: float = 1e-3) -> ReferenceLoop:
    torch.manual_seed(0)
    model = ReferenceGPT(d_model=shape.d_model, n_layers=shape.n_layers, n_heads=shape.n_heads)
    return ReferenceLoop(model, corpus.train, batch=batch, context=CONTEXT, learning_rate=learning_rate, steps=steps)


def our_loop(corpus, shape: Shape, batch: int, dtype: str, attention: str):
    recipe = Recipe(batch_tokens=batch * CONTEXT)
    config = resolve(
        shape, 100_000 * recipe.batch_tokens, corpus=corpus.name, corpus_hash=corpus.hash, recipe=recipe, dtype=dtype,
        attention=attention,
    )  # fmt: skip
    step, number = make_step(config), 0
    batches = Batches(corpus.train, context=CONTEXT, batch_tokens=recipe.batch_tokens, seed=0)

    def loop() -> None:
        nonlocal number
        inputs, targets = batches.at(number)
        float(step.gradients(inputs, targets))
        step.flat.update(number, 0.1, inputs.numel())
        number += 1

    return loop


# Cost of columns and grids


def costs(corpus, options) -> None:
    """Shared trunks against one nanoGPT run (cosine) per cell: CPU seconds, evaluation included."""
    widths = options.widths or ([32] if options.what == "column" else [16, 24, 32, 48, 64, 96])
    totals = [0.0, 0.0, 0.0]
    for d in widths:
        shape = make_shape(d, 2)
        dtype, attention = choose_numerics(shape, batch_tokens=options.batch_tokens)
        recipe = Recipe(batch_tokens=options.batch_tokens)
        configs = [
            resolve(shape, round(tokens), corpus=corpus.name, corpus_hash=corpus.hash, recipe=recipe, dtype=dtype,
                    attention=attention)
            for tokens in options.tokens
        ]  # fmt: skip
        ours, losses = column_seconds(configs, corpus)
        tokens = [config.realised_tokens for config in configs]
        theirs, reference_losses = reference_seconds(corpus, shape, tokens, options)
        reached = tokens + [round(more) for more in options.beyond]
        reference_losses += reference_seconds(corpus, shape, reached[len(tokens) :], options)[1]
        needed = [tokens_for(loss, reached, reference_losses) for loss in losses]
        for_our_losses = theirs * sum(needed) / sum(tokens)
        share = steps_trained(configs) / sum(config.steps for config in configs)
        totals = [total + more for total, more in zip(totals, (ours, theirs, for_our_losses), strict=True)]
        print(
            f"d {d:3d} N {count_parameters(shape).total:7,}: ours {ours:6.1f} s, reference {theirs:6.1f} s, "
            f"{ours / theirs:.3f}; for our losses {for_our_losses:.1f} s, {ours / for_our_losses:.3f}; "
            f"FLOPs of the column {share:.3f} of separate runs\n"
            f"    losses ours {losses}\n    reference   {reference_losses}\n    its tokens for our losses, in millions: "
            + ", ".join(("over " if n >= reached[-1] else "") + f"{n / 1e6:.2f}" for n in needed),
            flush=True,
        )
    ours, theirs, for_our_losses = totals
    print(f"all: ours {ours:.1f} s, reference {theirs:.1f} s: {ours / theirs:.3f} of it")
    print(f"for our losses the reference needs {for_our_losses:.1f} s, or more where it says over: {ours / for_our_losses:.3f}")


def tokens_for(loss: float, tokens: list[int], losses: list[float]) -> float:
    """Tokens at which losses falling in `tokens` reach `loss`, interpolated in log D; the most there are if they never do."""
    falling = np.minimum.accumulate(losses)
    return float(np.exp(np.interp(-loss, -falling, np.log(tokens))))


def column_seconds(configs, corpus) -> tuple[float, list[float]]:
    start = time.process_time()
    losses = [round(outcome.loss, 4) for outcome in train_trunk(configs, corpus)]
    return time.process_time() - start, losses


def reference_seconds(corpus, shape: Shape, tokens: list[int], options) -> tuple[float, list[float]]:
    windows = Evaluator(corpus, context=CONTEXT).windows
    start, losses, batch = time.process_time(), [], options.reference_batch
    for count in tokens:
        steps = max(1, count // (batch * CONTEXT))
        loop = reference_loop(corpus, shape, batch, steps=steps, learning_rate=options.reference_rate)
        for _ in range(steps):
            loop()
        losses.append(round(loop.held_out(windows), 4))
    return time.process_time() - start, losses


if __name__ == "__main__":
    main()
