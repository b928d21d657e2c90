"""The runs table and the curves as text: which columns, in which order, and how a value is written."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any

from scaling.accounting import count_parameters, training_flops
from sweeps.config import RunConfig

COLUMNS = tuple(
    """run_id status params tokens loss flops params_non_embedding loss_se bits_per_byte seed data_seed
    d_model n_layers n_heads d_ff vocab_size context positions tokenizer corpus corpus_hash unique_tokens batch_tokens
    steps warmup_tokens schedule cooldown_fraction cooldown_shape learning_rate weight_decay dtype attention device
    validation_tokens mfu wall_seconds cpu_seconds evaluation_seconds trained_tokens tokens_per_second peak_memory_bytes
    torch_version version started_at reason""".split()
)
COST_COLUMNS = tuple(  # what an attempt cost, so they differ between attempts; all else is reproduced
    """mfu wall_seconds cpu_seconds evaluation_seconds trained_tokens tokens_per_second peak_memory_bytes
    started_at""".split()
)


def planned_row(config: RunConfig) -> dict[str, Any]:
    """The columns that follow from a configuration alone."""
    count = count_parameters(config.shape())
    settings = {name: value for name, value in config.to_dict().items() if name in COLUMNS}
    return {
        **settings,
        "params": count.total,
        "params_non_embedding": count.non_embedding,
        "tokens": config.realised_tokens,
        "steps": config.steps,
        "flops": training_flops(count.total, config.realised_tokens),
        "warmup_tokens": config.warmup_steps * config.batch_tokens,
    }


def table_text(rows: list[dict[str, Any]]) -> str:
    """Rows as CSV: the known columns in their order, then any others by name; numbers at full precision."""
    extra = sorted({name for row in rows for name in row} - set(COLUMNS))
    return _csv_text([*COLUMNS, *extra], rows)


def curve_text(curve: list[Mapping[str, Any]]) -> str:
    """A loss curve as CSV."""
    return _csv_text(list(dict.fromkeys(name for point in curve for name in point)), curve)


def _csv_text(columns: list[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    text = str(value)
    return "'" + text if text[:1] in ("=", "@") else text  # a spreadsheet would run it as a formula


def row_order(row: Mapping[str, Any]) -> tuple:
    """By N, D, seeds and run_id, whoever writes the table."""
    numbers = (row.get(name) or 0 for name in ("params", "tokens", "seed", "data_seed"))
    return (*numbers, row["run_id"])
