"""Units of a loss: nats per token, bits per token, bits per byte, perplexity; converted only when nothing is assumed.

nats per token = ln(perplexity) = ln 2 x bits per token = ln 2 x bits per byte x bytes per token
"""

import math

import numpy as np
import pandas as pd

from scaling.errors import InputError

NATS = "nats_per_token"
METRICS = {
    NATS: "nats per token",
    "bits_per_token": "bits per token",
    "bits_per_byte": "bits per byte",
    "bits_per_character": "bits per character",
    "perplexity": "perplexity",
    "nats_per_byte": "nats per byte",
    "unigram_normalised": "nats per token below a unigram model's",
    "other": "a unit of its own",
}
_ALIASES = {
    "": NATS, "nats": NATS, "nats/token": NATS, "nat/token": NATS, "nats per token": NATS, "nll": NATS,
    "cross-entropy": NATS, "cross_entropy": NATS, "crossentropy": NATS, "ce": NATS, "ce_loss": NATS, "nan": NATS,
    "bpt": "bits_per_token", "bits/token": "bits_per_token", "bits per token": "bits_per_token",
    "bpb": "bits_per_byte", "bits/byte": "bits_per_byte", "bits per byte": "bits_per_byte",
    "bpc": "bits_per_character", "bits/char": "bits_per_character", "bits per character": "bits_per_character",
    "ppl": "perplexity", "nats/byte": "nats_per_byte", "nats per byte": "nats_per_byte",
}  # fmt: skip


def parse_metric(text: object) -> str:
    """The metric that a name stands for ("bpb" -> "bits_per_byte"). Raises InputError for an unknown one."""
    name = "" if text is None or text is pd.NA else str(text).strip().lower()
    if name in METRICS:
        return name
    if name in _ALIASES:
        return _ALIASES[name]
    if name.endswith("loss"):
        return NATS
    raise InputError(f'unknown metric "{text}". Known metrics: {", ".join(METRICS)}.')


def to_nats(loss: np.ndarray, metric: str, bytes_per_token: np.ndarray | None) -> tuple[np.ndarray, str, str]:
    """Loss in nats per token where that needs no assumption: the values, their metric, and what was done or is missing.

    Bits and nats per byte need the bytes per token of every row; without them the values stay as they are.
    """
    if metric == NATS:
        return loss, NATS, ""
    if metric == "perplexity":
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(loss), NATS, "loss = ln(perplexity)"
    if metric == "bits_per_token":
        return loss * math.log(2), NATS, "loss = ln 2 x bits per token"
    if metric in ("bits_per_byte", "nats_per_byte"):
        known = bytes_per_token is not None and len(loss) > 0 and bool(np.all(bytes_per_token > 0))
        if known and bytes_per_token is not None:
            scale = math.log(2) if metric == "bits_per_byte" else 1.0
            return (
                loss * bytes_per_token * scale,
                NATS,
                f"loss = {'ln 2 x ' * (scale != 1)}{METRICS[metric]} x bytes per token",
            )
        return loss, metric, f"loss stays in {METRICS[metric]}: nats per token need bytes_per_token for every row"
    return loss, metric, f"loss stays in {METRICS[metric]}"
