"""The order of the data: which windows make the batch of a step. A function of seed and step; nothing to save."""

import numpy as np
import torch
from torch import Tensor

from scaling.errors import SweepError


class Batches:
    """Windows of `context` tokens, each once per pass over the corpus, in an order that the seed decides.

    Every pass has its own permutation and its own offset of the windows. Any step can be asked for, so a branch reads
    the very batches that a run of its own would, and a resumed run goes on where it was.
    """

    def __init__(self, tokens: np.ndarray, *, context: int, batch_tokens: int, seed: int):
        self.tokens, self.context, self.seed = np.asarray(tokens), context, seed  # no memmap: indexing one costs more
        self.windows = batch_tokens // context
        self.per_pass = (len(tokens) - context) // context
        if self.per_pass < 1:
            raise SweepError(f"corpus: {len(tokens):,} training tokens are fewer than two contexts of {context:,}.")
        self._columns = np.arange(context + 1)
        self._pass, self._starts = -1, np.empty(0, dtype=np.int64)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step counted from 0, each (B, T) int64; targets are the next tokens."""
        number, place = divmod(step * self.windows, self.per_pass)
        starts = self._starts_of(number)[place : place + self.windows]
        while len(starts) < self.windows:  # the batch goes on in the next pass
            number += 1
            starts = np.concatenate((starts, self._starts_of(number)[: self.windows - len(starts)]))
        block = torch.from_numpy(self.tokens[starts[:, None] + self._columns].astype(np.int64))  # (B, T + 1)
        return block[:, :-1], block[:, 1:]

    @property
    def unique_tokens(self) -> int:
        """Different tokens of one pass."""
        return self.per_pass * self.context

    def _starts_of(self, number: int) -> np.ndarray:
        """Where the windows of a pass begin, in its order."""
        if number != self._pass:
            rng = np.random.default_rng([self.seed, number])
            offset = int(rng.integers(self.context))
            self._starts = offset + self.context * rng.permutation(self.per_pass)
            self._pass = number
        return self._starts
