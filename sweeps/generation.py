"""Text from a trained transformer, one token at a time, with the keys and values of the past kept.

Without a cache step n costs a forward pass over n tokens; with it, over one. Both read the same window: when it holds
a whole context its older half is dropped, the rest becomes the beginning, and the cache starts again, since
positions, and with them every key and value, have moved.
"""

import codecs
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from scaling.errors import InputError
from sweeps.decoding import Decoding, draw, probabilities
from sweeps.model import Cache, Transformer


def generate(
    model: Transformer,
    prompt: Sequence[int],
    n_tokens: int,
    *,
    decoding: Decoding | None = None,
    seed: int = 0,
    cache: bool = True,
    mask: bool = True,
) -> Iterator[int]:
    """Yield `n_tokens` tokens after `prompt`, each as soon as it is drawn; the same seed draws the same tokens.

    Without `mask`, for a model that was trained without one, every token sees the whole window; nothing can then be
    cached. Raises InputError for an empty prompt or a token outside the vocabulary.
    """
    decoding = Decoding() if decoding is None else decoding
    window = _checked(model, prompt)
    generator = np.random.default_rng(seed)
    past = Cache() if cache and mask else None
    for _ in range(n_tokens):
        if len(window) > model.shape.context:
            window = window[-max(1, model.shape.context // 2) :]
            past = None if past is None else Cache()
        token = draw(probabilities(_next_logits(model, window, past, mask), decoding), generator)
        window.append(token)
        yield token


def next_logits(model: Transformer, tokens: Sequence[int], *, mask: bool = True) -> np.ndarray:
    """Logits (V,) of the token after `tokens`, of which the last context is read."""
    return _next_logits(model, _checked(model, tokens)[-model.shape.context :], None, mask)


def decode_bytes(tokens: Iterable[int]) -> Iterator[str]:
    """Text as the bytes of it arrive: a character comes once it is whole, a byte that fits none as U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        if piece := decoder.decode(bytes((token,))):
            yield piece
    if rest := decoder.decode(b"", final=True):
        yield rest


def generate_text(model: Transformer, prompt: str, n_tokens: int, **options) -> Iterator[str]:
    """`generate` for a model of bytes: text in, pieces of text out. Raises InputError for another vocabulary."""
    if model.shape.vocab_size != 256:
        raise InputError(f"the model has {model.shape.vocab_size} tokens, not 256 bytes: its text cannot be read here.")
    return decode_bytes(generate(model, list(prompt.encode("utf-8")), n_tokens, **options))


def _next_logits(model: Transformer, window: list[int], past: Cache | None, mask: bool) -> np.ndarray:
    fresh = window if past is None else window[past.length :]
    device = model.token_embedding.weight.device
    hides = mask and len(fresh) > 1  # the last token alone has no successor to be hidden
    with torch.inference_mode():
        logits = model(torch.tensor([fresh], device=device), mask=hides, cache=past)  # (1, T, V)
    return logits[0, -1].double().cpu().numpy()


def _checked(model: Transformer, prompt: Sequence[int]) -> list[int]:
    tokens = [int(token) for token in prompt]
    if not tokens:
        raise InputError("the prompt is empty: give at least one token to go on from.")
    strange = [token for token in tokens if not 0 <= token < model.shape.vocab_size]
    if strange:
        raise InputError(f"the prompt holds token {strange[0]}, outside the vocabulary of {model.shape.vocab_size}.")
    return tokens
