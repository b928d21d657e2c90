"""Generation with and without the key-value cache: CPU seconds on one thread, interleaved, the same tokens.

    python tests/benchmarks/generation_cache.py

The first ratio is of whole texts of 512 tokens, from a prompt of one; the second of the last step alone, when the
window holds 511 tokens.
"""

import time

import torch

from scaling.accounting import Shape
from sweeps.attention_timing import cpu_seconds, one_thread
from sweeps.decoding import Decoding
from sweeps.generation import generate
from sweeps.model import Cache, Transformer

CONTEXT = 512
ROUNDS = 3


def random_model(d: int, layers: int, heads: int, positions: str) -> Transformer:
    model = Transformer(Shape(d, layers, heads, 256, CONTEXT, positions=positions))
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return model.eval()


def whole_text(model: Transformer, *, cache: bool) -> tuple[list[int], float]:
    """512 greedy tokens, and their CPU seconds."""
    start = time.process_time()
    tokens = list(generate(model, [1], CONTEXT - 1, decoding=Decoding(temperature=0), cache=cache))
    return tokens, time.process_time() - start


def last_step(model: Transformer) -> tuple[float, float]:
    """CPU seconds of the step after 511 tokens: with the cache, and without."""
    tokens = torch.zeros(1, CONTEXT - 1, dtype=torch.long)
    with torch.inference_mode():
        past = Cache()
        model(tokens, cache=past)
        kept = list(past.keys_values)

        def cached():
            past.keys_values[:] = kept  # the step before is forgotten
            model(tokens[:, :1], mask=False, cache=past)

        return cpu_seconds(cached, 5), cpu_seconds(lambda: model(tokens), 5)


def measure(d: int, layers: int, heads: int, positions: str) -> tuple[float, float]:
    """Ratios of CPU time, uncached over cached: of whole texts, and of the last step."""
    model = random_model(d, layers, heads, positions)
    spent = {True: 0.0, False: 0.0}
    for _ in range(ROUNDS):
        texts = {}
        for cache in (True, False):
            texts[cache], seconds = whole_text(model, cache=cache)
            spent[cache] += seconds
        assert texts[True] == texts[False]
    cached, uncached = last_step(model)
    return spent[False] / spent[True], uncached / cached


def main() -> None:
    print("shape            positions    512 tokens, x faster   the 512th alone, x faster")
    for d, layers, heads in ((64, 2, 4), (128, 4, 4), (256, 4, 8)):
        for positions in ("learned", "sinusoidal", "rotary", "none"):
            whole, last = measure(d, layers, heads, positions)
            print(f"d {d:>3}, {layers} layers  {positions:<11}  {whole:>19.1f}   {last:>25.1f}", flush=True)


if __name__ == "__main__":
    with one_thread():
        main()
