"""What N, D and C count: parameters of a shape by group, and FLOPs under each convention, each by name.

A shape is a decoder-only transformer with bias-free linear maps and scale-and-shift norms unless said otherwise.
With d = d_model, d_ff = 4 d and plain two-matrix MLPs a block has 12 d^2 + 4 d parameters: 4 d^2 attention, 8 d^2 MLP
and 4 d in its two norms; 49,408 at d = 64.
"""

from dataclasses import dataclass

from scaling.errors import InputError

POSITIONS = ("learned", "sinusoidal", "rotary", "none")


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder-only transformer; everything that its parameter count depends on, and its heads."""

    d_model: int
    n_layers: int
    n_heads: int
    vocab_size: int
    context: int
    d_ff: int | None = None  # None: 4 d_model
    n_kv_heads: int | None = None  # None: n_heads; fewer is grouped-query attention
    gated_mlp: bool = False  # three MLP matrices instead of two
    tied: bool = False  # the head shares the token embedding
    positions: str = "learned"
    norm: str = "layer"  # "layer": scale and shift, 2 d; "rms": scale, d

    def __post_init__(self) -> None:
        for name in ("d_model", "n_layers", "n_heads", "vocab_size", "context", "d_ff", "n_kv_heads"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"shape: {name} = {value!r} must be a whole number of at least 1.")
        if self.d_model % self.n_heads:
            raise InputError(f"shape: d_model = {self.d_model} is not divisible by n_heads = {self.n_heads}.")
        if self.n_heads % self.kv_heads:
            raise InputError(f"shape: n_heads = {self.n_heads} is not divisible by n_kv_heads = {self.n_kv_heads}.")
        if self.positions not in POSITIONS:
            raise InputError(f'shape: unknown positions "{self.positions}". Known: {", ".join(POSITIONS)}.')
        if self.norm not in ("layer", "rms"):
            raise InputError(f'shape: unknown norm "{self.norm}". Known: layer, rms.')

    @property
    def ff_width(self) -> int:
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * (self.d_model // self.n_heads)


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by group. `head` is 0 when tied; `total` counts every parameter once."""

    token_embedding: int
    positions: int
    attention: int
    mlp: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """Every parameter: the N of this toolkit."""
        return self.token_embedding + self.positions + self.attention + self.mlp + self.norms + self.head

    @property
    def non_embedding(self) -> int:
        """Total without the token embedding, the positions and the head: Kaplan's N and the norms."""
        return self.attention + self.mlp + self.norms


def count_parameters(shape: Shape) -> ParameterCount:
    """Parameters of a shape by group.

    attention: d (h d_h) for queries and as much for the output, 2 d (h_kv d_h) for keys and values, per block;
    mlp: 2 d d_ff, or 3 d d_ff when gated; norms: two per block and a final one.
    """
    d, layers = shape.d_model, shape.n_layers
    norm = 2 * d if shape.norm == "layer" else d
    return ParameterCount(
        token_embedding=shape.vocab_size * d,
        positions=shape.context * d if shape.positions == "learned" else 0,
        attention=layers * (2 * d * d + 2 * d * shape.kv_width),
        mlp=layers * (3 if shape.gated_mlp else 2) * d * shape.ff_width,
        norms=(2 * layers + 1) * norm,
        head=0 if shape.tied else shape.vocab_size * d,
    )


def training_flops(params: float, tokens: float) -> float:
    """C = 6 N D, in floats: 2 N D forward and twice that backward (Kaplan et al. 2020, section 2.1)."""
    return 6.0 * float(params) * float(tokens)


@dataclass(frozen=True)
class TokenFlops:
    """Training FLOPs per token, forward and backward, by part; `six_n` is the approximation 6N."""

    matmul: float  # 6 x the weights of attention and MLP
    head: float  # 6 V d, tied or not; the input embedding is a look-up and costs nothing
    attention: float  # 12 L T d: scores and mixing of values, without the causal half
    six_n: float

    @property
    def total(self) -> float:
        return self.matmul + self.head + self.attention

    @property
    def attention_share(self) -> float:
        """The attention term as a share of 6N: how far 6ND is off at this context."""
        return self.attention / self.six_n


def flops_per_token(shape: Shape) -> TokenFlops:
    """Training FLOPs per token of a shape at its full context T: 6 (weights) + 6 V d + 12 L T d."""
    count = count_parameters(shape)
    return TokenFlops(
        matmul=6.0 * (count.attention + count.mlp),
        head=6.0 * shape.vocab_size * shape.d_model,
        attention=12.0 * shape.n_layers * shape.context * shape.d_model,
        six_n=6.0 * count.total,
    )
