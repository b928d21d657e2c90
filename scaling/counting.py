"""`scale count` as a function: everything that can be counted of a shape without running it."""

from dataclasses import asdict, dataclass
from typing import Any

from scaling.accounting import (
    AttentionMemory,
    ParameterCount,
    Shape,
    TokenFlops,
    attention_memory,
    block_parameters,
    count_parameters,
    flops_per_token,
    training_flops,
)
from scaling.conventions import LabelledFlops, LabelledParams, flops_conventions, params_conventions
from scaling.presets import shape_to_dict

ATTENTION_WARNING = 0.10  # above this share of 6N the attention term is no detail


@dataclass(frozen=True)
class Count:
    """Parameters by group and convention, FLOPs per token by convention, memory of attention; D is optional."""

    shape: Shape
    params: ParameterCount
    per_block: int
    params_conventions: list[LabelledParams]
    flops: TokenFlops
    flops_conventions: list[LabelledFlops]
    memory: AttentionMemory
    bytes_per_value: int
    tokens: float | None = None

    @property
    def warnings(self) -> list[str]:
        share = self.flops.attention_share
        if share <= ATTENTION_WARNING:
            return []
        return [
            f"attention is {share:.0%} of 6N at context {self.shape.context}: 6ND leaves it out, so a budget in 6ND "
            "buys fewer tokens than it says."
        ]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: counts whole, FLOPs as floats, every number under the name of its convention."""
        six_n = self.flops.six_n
        return {
            "shape": shape_to_dict(self.shape),
            "params": {
                "groups": self.params.groups(),
                "per_block": self.per_block,
                "total": self.params.total,
                "non_embedding": self.params.non_embedding,
                "block_matmul": self.params.block_matmul,
                "matmul_active": self.params.matmul_active,
            },
            "params_conventions": [asdict(row) for row in self.params_conventions],
            "flops_per_token": [{**asdict(row), "to_6N": row.training / six_n} for row in self.flops_conventions],
            "parts_per_token": {
                "embedding_forward": 0.0,
                "head_forward": self.flops.head / 3,
                "blocks_forward": self.flops.matmul / 3,
                "attention_forward": self.flops.attention / 3,
                "attention_training": self.flops.attention,
                "attention_training_causal": self.flops.attention_causal,
                "attention_share_of_6N": self.flops.attention_share,
            },
            "memory_bytes": {**asdict(self.memory), "bytes_per_value": self.bytes_per_value},
            "training": self._training(),
            "warnings": self.warnings,
        }

    def _training(self) -> dict[str, Any] | None:
        if self.tokens is None:
            return None
        total = training_flops(self.params.total, self.tokens)
        by_convention = {row.name: row.training * self.tokens for row in self.flops_conventions}
        return {"tokens": self.tokens, "flops": total, "by_convention": by_convention}


def count(shape: Shape, *, tokens: float | None = None, bytes_per_value: int = 2) -> Count:
    """Count a shape: parameters by group and convention, FLOPs per token at its context, memory of attention.

    `tokens` adds the training FLOPs of that many; `bytes_per_value` is the width of scores, keys and values.
    """
    return Count(
        shape=shape,
        params=count_parameters(shape),
        per_block=block_parameters(shape),
        params_conventions=params_conventions(shape),
        flops=flops_per_token(shape),
        flops_conventions=flops_conventions(shape),
        memory=attention_memory(shape, bytes_per_value=bytes_per_value),
        bytes_per_value=bytes_per_value,
        tokens=tokens,
    )
