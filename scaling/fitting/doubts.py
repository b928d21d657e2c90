"""What in a table forbids calling its fit usable, however well the law fits: units, swapped columns, copies, two scales of C.

The reading warns of most of these too; here they become reasons of the verdict, for tables that never were a file as well.
"""

from collections.abc import Iterator

import numpy as np

from scaling.fitting.data import RunData
from scaling.metrics import NATS

FEW = 1e4  # counts whose largest is below this are in thousands, millions or billions
MIXED = 1e6  # tokens per parameter beyond which N and D are not of one unit
SWAPPED = 0.5  # median tokens per parameter below which the columns look swapped, if nearly all lie below one
NATS_OF_A_UNIFORM_GUESS = 20.0  # log of any vocabulary is below 13; a longer one is no loss per token
COPIES = 0.05  # share of rows that repeat another
OFF = 3.0  # factor between C and 6ND that no convention of ours explains


def doubts(data: RunData, *, metric: str | None = None, clustered: bool = False) -> list[str]:
    """Reasons against the runs themselves, one sentence each."""
    return [*_units(data), *_columns(data, metric), *([] if clustered else _copies(data)), *_compute(data)]


def _units(data: RunData) -> Iterator[str]:
    small = [f"{name} {values.max():.4g}" for name, values in (("N", data.N), ("D", data.D)) if values.max() < FEW]
    if small:
        yield (f"the largest {' and '.join(small)} {'is' if len(small) == 1 else 'are'} no plain count: budgets and D/N "
               "are not in FLOP and tokens per parameter. Say the unit, for example --map params=COLUMN:B.")  # fmt: skip
    elif np.median(data.D / data.N) > MIXED or np.median(data.N / data.D) > MIXED:
        yield f"the median D/N is {np.median(data.D / data.N):.2g}: N and D are not in one unit."


def _columns(data: RunData, metric: str | None) -> Iterator[str]:
    ratio = data.D / data.N
    if np.mean(ratio < 1) > 0.9 and 1 / MIXED < np.median(ratio) < SWAPPED:
        yield (f"{int((ratio < 1).sum())} of {data.n} runs have fewer tokens than parameters (median D/N "
               f"{np.median(ratio):.2g}): are the two columns swapped?")  # fmt: skip
    if data.loss.max() > NATS_OF_A_UNIFORM_GUESS and metric in (None, NATS):
        yield (f"the largest loss is {data.loss.max():.4g}, more than any vocabulary's uniform guess in nats per token: is "
               "it a perplexity? Then say --metric perplexity.")  # fmt: skip


def _copies(data: RunData) -> Iterator[str]:
    copies = data.n - len(np.unique(np.stack([data.N, data.D, data.loss]), axis=1).T)
    if copies > COPIES * data.n:
        yield (f"{copies} of {data.n} runs are copies of others to the last digit: they tell nothing new, and the intervals "
               "are too narrow for them.")  # fmt: skip


def _compute(data: RunData) -> Iterator[str]:
    ratio = 6 * data.N * data.D / data.flops
    far = int(((ratio > OFF) | (ratio < 1 / OFF)).sum())
    if far:
        yield (f"6ND/C lies beyond a factor {OFF:g} in {far} of {data.n} runs ({ratio.min():.2g} to {ratio.max():.2g}): the "
               "reach is counted in C, N* and D* in 6ND.")  # fmt: skip
