"""What a run costs in FLOPs under each convention, always as c(N) per token times D, plus what serving adds.

    6nd            c = 6 N                               Hoffmann et al. 2022; the convention of the published laws
    kaplan         c = 6 N_non_embedding                 Kaplan et al. 2020, section 2.1
    6nd+attention  c = 6 N + 12 L T d                    the attention scores and mixing added
    exact          c = 6 (attention + MLP + head) + 12 L T d    look-ups cost nothing; as accounting.flops_per_token

The last three need a shape: a family of shapes of one aspect ratio d/L gives L and d for any N, continuously.
Serving costs c(N) / 3 per token, the forward pass: 2 N under 6nd (Sardana et al. 2024, eq. 2).
"""

from dataclasses import dataclass
from typing import Any

from scaling.errors import AllocationError

CONVENTIONS = ("6nd", "kaplan", "6nd+attention", "exact")


@dataclass(frozen=True)
class Family:
    """Shapes of one aspect ratio, as polynomials in d = d_model, with L = d / aspect layers.

    N(d) = a3 d^3 + a2 d^2 + a1 d: blocks, norms and embeddings.
    """

    vocab_size: int
    context: int
    aspect: float = 100.0
    ff_ratio: float = 4.0  # d_ff / d
    gated_mlp: bool = False
    kv_ratio: float = 1.0  # n_kv_heads / n_heads
    tied: bool = False
    learned_positions: bool = False
    norm_width: int = 2  # 2: scale and shift; 1: scale alone

    @property
    def block(self) -> float:
        """Weights of attention and MLP per block, over d^2: 12 for the plain block."""
        return 2 + 2 * self.kv_ratio + (3 if self.gated_mlp else 2) * self.ff_ratio

    @property
    def embedding(self) -> float:
        """Parameters in embeddings, positions and head, over d."""
        return self.vocab_size * (1 if self.tied else 2) + (self.context if self.learned_positions else 0)

    def width(self, N):
        """d_model at which the family has N parameters: Newton's method from above, where N(d) is convex."""
        a3, a2, a1 = self.coefficients
        d = (N / a3) ** (1 / 3)
        for _ in range(60):
            step = (((a3 * d + a2) * d + a1) * d - N) / ((3 * a3 * d + 2 * a2) * d + a1)
            d = d - step
            done = abs(step) <= 1e-15 * d
            if done.all() if hasattr(done, "all") else done:
                break
        return d

    @property
    def coefficients(self) -> tuple[float, float, float]:
        return (self.block / self.aspect, 2 * self.norm_width / self.aspect, self.embedding + self.norm_width)

    def layers(self, N):
        return self.width(N) / self.aspect

    def attention_share(self, N):
        """12 L T d / 6 N: the attention term as a share of 6N."""
        d = self.width(N)
        return 2 * self.context * d * d / self.aspect / N


@dataclass(frozen=True)
class Cost:
    """FLOPs of training N parameters on D tokens, and of serving `inference_tokens` afterwards."""

    convention: str = "6nd"
    family: Family | None = None
    inference_tokens: float = 0.0

    def __post_init__(self) -> None:
        if self.convention not in CONVENTIONS:
            raise AllocationError(
                f'unknown FLOP convention "{self.convention}". Known conventions: {", ".join(CONVENTIONS)}.'
            )
        if self.convention != "6nd" and self.family is None:
            raise AllocationError(f"the {self.convention} FLOP count needs a vocabulary and a context.")

    @property
    def equation(self) -> str:
        """C as a formula."""
        return {
            "6nd": "C = 6 N D",
            "kaplan": "C = 6 N_non_embedding D",
            "6nd+attention": "C = (6 N + 12 L T d) D",
            "exact": "C = (6 N_matmul + 6 V d + 12 L T d) D",
        }[self.convention]

    def per_token(self, N):
        """Training FLOPs per token."""
        if self.family is None or self.convention == "6nd":
            return 6.0 * N
        d = self.family.width(N)
        b3, b1 = self._polynomial(self.family)
        if self.convention == "kaplan":
            return 6.0 * (N - self.family.embedding * d)
        return (6.0 * N if self.convention == "6nd+attention" else b1 * d) + b3 * d**3 + self._attention(d)

    def _attention(self, d):
        assert self.family is not None
        return 12.0 * self.family.context * d * d / self.family.aspect

    def _polynomial(self, family: Family) -> tuple[float, float]:
        """Matmul weights of the blocks over d^3 and of the head over d, times 6; only "exact" counts them so."""
        if self.convention != "exact":
            return 0.0, 0.0
        return 6.0 * family.block / family.aspect, 6.0 * family.vocab_size

    def exponent(self, N):
        """dlog c / dlog N: 1 under 6nd."""
        if self.family is None or self.convention == "6nd":
            return 1.0
        family, d = self.family, self.family.width(N)
        a3, a2, a1 = family.coefficients
        dN = (3 * a3 * d + 2 * a2) * d + a1
        if self.convention == "kaplan":
            dc = 6.0 * (dN - family.embedding)
        else:
            b3, b1 = self._polynomial(family)
            dc = (6.0 * dN if self.convention == "6nd+attention" else b1) + 3 * b3 * d * d + 2 * self._attention(d) / d
        return dc * N / (dN * self.per_token(N))

    def training(self, N, D):
        return self.per_token(N) * D

    def inference(self, N):
        """FLOPs of serving `inference_tokens`: a forward pass each, a third of training's three."""
        return self.per_token(N) * (self.inference_tokens / 3)

    def total(self, N, D):
        """Training and serving: c(N) (D + D_inf / 3)."""
        return self.per_token(N) * (D + self.inference_tokens / 3)

    def tokens(self, N, C):
        """D that spends C at this N: C / c(N) less what serving takes; at or below zero where serving takes it all."""
        return C / self.per_token(N) - self.inference_tokens / 3

    def slopes(self, N, D):
        """(dlog C / dlog N, dlog C / dlog D) of the total."""
        return self.exponent(N), D / (D + self.inference_tokens / 3)


def without_inference(cost: Cost) -> Cost:
    """The same convention with training alone."""
    return Cost(cost.convention, cost.family)


PLAIN: Any = Cost()
