"""Bytes that training needs: weights, gradients, optimizer and the activations of one sequence.

States, per parameter, for mixed precision with AdamW (Rajbhandari et al. 2020, ZeRO, section 3.1): 2 bytes of weights,
2 of gradients, and 12 of optimizer (32-bit master weights, first and second moment).

Activations, in 16 bits, of what the backward pass of one block keeps for one sequence of s tokens, without dropout,
with a fused attention that never stores the score matrix (after Korthikanti et al. 2022, section 4, term by term):
inputs of both norms (2 d), inputs of the projections and of the MLP (2 d), queries (d_q), keys and values (2 d_kv), the
mixed values (d_q), and the MLP's hidden values before and after the activation (2 d_ff; 3 d_ff where gated).
With recomputation only each block's input (d) is kept, and one block at a time is rebuilt.
"""

from dataclasses import asdict, dataclass

from scaling.accounting import Shape, count_parameters

WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES, ACTIVATION_BYTES, LOGIT_BYTES = 2, 2, 12, 2, 4


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes, for one copy of the model; activations for one sequence of the context."""

    weights: int
    gradients: int
    optimizer: int
    activations_per_sequence: int
    activations_recomputed: int
    logits_per_sequence: int

    @property
    def states(self) -> int:
        """Weights, gradients and optimizer: what sharding divides among devices."""
        return self.weights + self.gradients + self.optimizer

    def devices(self, memory_bytes: float) -> int:
        """The fewest devices that hold the sharded states and, each, one recomputed sequence with its logits.

        A lower bound: buffers and fragmentation come on top. 0 when a single sequence does not fit at all.
        """
        room = memory_bytes - self.activations_recomputed - self.logits_per_sequence
        return -(-self.states // int(room)) if room >= 1 else 0

    def to_dict(self) -> dict:
        """Each in bytes."""
        return {f"{name}_bytes": value for name, value in asdict(self).items()} | {"states_bytes": self.states}


def training_memory(shape: Shape) -> TrainingMemory:
    """Memory of training a shape with AdamW in mixed precision; see the terms at the top of this module."""
    total, d, s = count_parameters(shape).total, shape.d_model, shape.context
    hidden = (3 if shape.gated_mlp else 2) * shape.ff_width
    block = s * (4 * d + 2 * shape.attention_width + 2 * shape.kv_width + hidden) * ACTIVATION_BYTES
    return TrainingMemory(
        weights=total * WEIGHT_BYTES,
        gradients=total * GRADIENT_BYTES,
        optimizer=total * OPTIMIZER_BYTES,
        activations_per_sequence=shape.n_layers * block,
        activations_recomputed=shape.n_layers * s * d * ACTIVATION_BYTES + block,
        logits_per_sequence=s * shape.vocab_size * LOGIT_BYTES,
    )
