"""RunConfig: everything that can change the number a run ends with. Torch-free, frozen, hashed whole."""

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property

from scaling.accounting import Shape, count_parameters

CODE_VERSION = 2  # raise it whenever a change to model, recipe, corpus, training or native/step.cpp changes losses


@dataclass(frozen=True)
class RunConfig:
    """One run: a shape, a corpus, D tokens, a recipe, seeds and numerics, all resolved (nothing "auto" is left).

    Runs that differ in `tokens` alone, under the schedule "wsd", share a trunk: see `trunk_key`.
    """

    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    vocab_size: int
    context: int
    positions: str
    corpus: str  # "python" or "text:PATH"
    corpus_hash: str
    tokens: int  # the plan; what a run writes is steps x batch
    batch_tokens: int
    schedule: str  # "wsd" or "cosine"
    warmup_steps: int
    cooldown_fraction: float
    cooldown_shape: str  # "1-sqrt" or "linear"
    learning_rate: float  # base rate at d_model = base_width
    base_width: int
    weight_decay: float
    beta1: float
    beta2: float
    clip: float
    seed: int  # initialisation
    data_seed: int  # data order
    dtype: str  # "float32" or "bfloat16"
    attention: str  # "fused", "explicit" or "native"
    device: str  # "cpu" or "cuda"

    def shape(self) -> Shape:
        return self._shape

    @cached_property
    def _shape(self) -> Shape:
        return Shape(
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            vocab_size=self.vocab_size,
            context=self.context,
            d_ff=self.d_ff,
            positions=self.positions,
        )

    @cached_property
    def params(self) -> int:
        """Total parameters."""
        return count_parameters(self.shape()).total

    @property
    def steps(self) -> int:
        """Optimizer steps: D divided by the batch, rounded to the nearest, at least one."""
        return max(1, round(self.tokens / self.batch_tokens))

    @property
    def realised_tokens(self) -> int:
        return self.steps * self.batch_tokens

    @cached_property
    def run_id(self) -> str:
        """Readable prefix and 12 hex digits over every field and the code version."""
        return f"d{self.d_model}L{self.n_layers}-D{self.realised_tokens}-s{self.seed}-{self._digest()}"

    @cached_property
    def trunk_key(self) -> str:
        """The same for runs that can share one trunk: all but `tokens` under "wsd", the run itself otherwise."""
        if self.schedule != "wsd":
            return self.run_id
        return f"d{self.d_model}L{self.n_layers}-s{self.seed}-{self._digest(without=('tokens',))}"

    def _digest(self, without: tuple[str, ...] = ()) -> str:
        data = {"code_version": CODE_VERSION, **{k: v for k, v in self.to_dict().items() if k not in without}}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: dict) -> "RunConfig":
        return cls(**{field.name: data[field.name] for field in fields(cls)})
