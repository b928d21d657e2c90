"""What N, D and C count: parameters of a shape by group, FLOPs per token and memory, each by name.

A shape is a decoder-only transformer with bias-free linear maps and scale-and-shift norms unless said otherwise.
With d = d_model, d_ff = 4 d and plain two-matrix MLPs a block has 12 d^2 + 4 d parameters: 4 d^2 attention, 8 d^2 MLP
and 4 d in its two norms; 49,408 at d = 64. What papers count under the same names is in `scaling.conventions`.
"""

from dataclasses import dataclass

from scaling.errors import InputError

POSITIONS = ("learned", "sinusoidal", "rotary", "none")
NORMS = ("layer", "rms")
BIASES = ("none", "qkv", "all")
_WHOLE = ("d_model", "n_layers", "n_heads", "vocab_size", "context", "d_ff", "n_kv_heads", "head_dim")


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder-only transformer; everything that its parameter count depends on, and its heads.

    Raises InputError for a size that is not a whole number of at least 1, and for heads that do not divide.
    """

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
    biases: str = "none"  # "qkv": on queries, keys and values; "all": on every linear map but the head
    head_dim: int | None = None  # None: d_model / n_heads

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"shape: {name} = {value!r} must be a whole number of at least 1.")
        if self.head_dim is None and self.d_model % self.n_heads:
            raise InputError(f"shape: d_model = {self.d_model} is not divisible by n_heads = {self.n_heads}.")
        if self.n_heads % self.kv_heads:
            raise InputError(f"shape: n_heads = {self.n_heads} is not divisible by n_kv_heads = {self.n_kv_heads}.")
        for name, known in (("positions", POSITIONS), ("norm", NORMS), ("biases", BIASES)):
            if getattr(self, name) not in known:
                raise InputError(f'shape: unknown {name} "{getattr(self, name)}". Known: {", ".join(known)}.')

    @property
    def ff_width(self) -> int:
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_width(self) -> int:
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def attention_width(self) -> int:
        """All heads side by side: d unless the heads have a width of their own."""
        return self.n_heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by group. `head` is 0 when tied; `total` counts every parameter once."""

    token_embedding: int
    positions: int
    attention: int
    mlp: int
    norms: int
    head: int
    biases: int = 0  # the part of attention and mlp that adds instead of multiplying
    head_product: int = 0  # V d, tied or not

    @property
    def total(self) -> int:
        """Every parameter: the N of this toolkit."""
        return self.token_embedding + self.positions + self.attention + self.mlp + self.norms + self.head

    @property
    def non_embedding(self) -> int:
        """Total without the token embedding, the positions and the head."""
        return self.attention + self.mlp + self.norms

    @property
    def block_matmul(self) -> int:
        """Weights of the matrix products inside the blocks: Kaplan's N, 12 L d^2 for the usual shape."""
        return self.attention + self.mlp - self.biases

    @property
    def matmul_active(self) -> int:
        """Weights that multiply every token: the blocks' and the head's, tied or not; the embedding is a look-up."""
        return self.block_matmul + self.head_product

    def groups(self) -> dict[str, int]:
        """The groups that sum to `total`."""
        names = ("token_embedding", "positions", "attention", "mlp", "norms", "head")
        return {name: getattr(self, name) for name in names}


def count_parameters(shape: Shape) -> ParameterCount:
    """Parameters of a shape by group.

    attention: d (h d_h) for queries and as much for the output, 2 d (h_kv d_h) for keys and values, per block;
    mlp: 2 d d_ff, or 3 d d_ff when gated; norms: two per block and a final one; biases where the shape has them.
    """
    d, layers = shape.d_model, shape.n_layers
    matrices = 3 if shape.gated_mlp else 2
    norm = 2 * d if shape.norm == "layer" else d
    qkv_bias = 0 if shape.biases == "none" else shape.attention_width + 2 * shape.kv_width
    out_bias = d if shape.biases == "all" else 0
    mlp_bias = (matrices - 1) * shape.ff_width + d if shape.biases == "all" else 0
    return ParameterCount(
        token_embedding=shape.vocab_size * d,
        positions=shape.context * d if shape.positions == "learned" else 0,
        attention=layers * (2 * d * shape.attention_width + 2 * d * shape.kv_width + qkv_bias + out_bias),
        mlp=layers * (matrices * d * shape.ff_width + mlp_bias),
        norms=(2 * layers + 1) * norm,
        head=0 if shape.tied else shape.vocab_size * d,
        biases=layers * (qkv_bias + out_bias + mlp_bias),
        head_product=shape.vocab_size * d,
    )


def block_parameters(shape: Shape) -> int:
    """Parameters of one block: attention, MLP and its two norms; 12 d^2 + 4 d for the plain bias-free block."""
    count = count_parameters(shape)
    norm = 2 * shape.d_model if shape.norm == "layer" else shape.d_model
    return (count.attention + count.mlp) // shape.n_layers + 2 * norm


def training_flops(params: float, tokens: float) -> float:
    """C = 6 N D, in floats: 2 N D forward and twice that backward (Kaplan et al. 2020, section 2.1)."""
    return 6.0 * float(params) * float(tokens)


def forward_flops(params: float, tokens: float) -> float:
    """2 N D: the forward pass alone, which is what inference costs; a third of training."""
    return 2.0 * float(params) * float(tokens)


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
    def attention_causal(self) -> float:
        """6 L T d: the half of the attention term that a causal mask leaves, where a kernel skips the rest."""
        return self.attention / 2

    @property
    def attention_share(self) -> float:
        """The attention term as a share of 6N: how far 6ND is off at this context."""
        return self.attention / self.six_n


def flops_per_token(shape: Shape) -> TokenFlops:
    """Training FLOPs per token of a shape at its full context T: 6 (weights) + 6 V d + 12 L T d; a third is forward.

    Multiplications and additions of matrix products count one each; norms, softmax, biases and activations, which
    grow as d and not as d^2, are left out, as every published convention but Hoffmann's softmax does.
    """
    count = count_parameters(shape)
    return TokenFlops(
        matmul=6.0 * count.block_matmul,
        head=6.0 * count.head_product,
        attention=12.0 * shape.n_layers * shape.context * shape.attention_width,
        six_n=6.0 * count.total,
    )


@dataclass(frozen=True)
class AttentionMemory:
    """Bytes that attention over one sequence of n tokens needs, beside weights and activations of width d."""

    scores: int  # h n^2 values: all heads of one layer, where the score matrix is materialised
    fused: int  # h n values: the running normaliser that is kept where it is not
    kv_cache: int  # 2 L n (h_kv d_h) values: keys and values of all layers, while generating


def attention_memory(shape: Shape, *, tokens: int | None = None, bytes_per_value: int = 2) -> AttentionMemory:
    """Memory of attention for one sequence of `tokens` (None: the context).

    A fused kernel (Dao et al. 2022, FlashAttention) computes the same softmax block by block and keeps only one
    log-sum-exp per head and query for the backward pass: O(n) in place of O(n^2).
    """
    n = shape.context if tokens is None else tokens
    return AttentionMemory(
        scores=shape.n_heads * n * n * bytes_per_value,
        fused=shape.n_heads * n * 4,  # the normaliser is kept in 32 bits whatever the values are
        kv_cache=2 * shape.n_layers * n * shape.kv_width * bytes_per_value,
    )
