"""The law forms, frozen, and the published constants by name, unrounded where the source gives them.

Every form answers the same few questions, so that whatever takes a law takes any of them:

    form         its name in JSON and in `--form`
    loss(N, D)   predicted loss, nats per token; N parameters, D tokens, scalars or arrays
    constants()  the fitted constants by name, in the order of the dataclass

N and D are counted as the runs behind the law counted them; 6ND = C unless said otherwise.
numpy is imported nowhere here: arithmetic works on floats and on arrays alike.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

from scaling.errors import LawError


@runtime_checkable
class Law(Protocol):
    """What every law form offers."""

    form: ClassVar[str]
    equation: ClassVar[str]

    def loss(self, N: Any, D: Any) -> Any:
        """Predicted loss in nats per token."""

    def constants(self) -> dict[str, float]:
        """Constants by name."""


class _Constants:
    """What the frozen forms share: checks at the door, and constants by name."""

    form: ClassVar[str]
    POSITIVE: ClassVar[tuple[str, ...]] = ()
    NON_NEGATIVE: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            name, value = field.name, getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise LawError(f"law {self.form}: {name} is {value!r}, not a number.")
            object.__setattr__(self, name, float(value))
            if not math.isfinite(value):
                raise LawError(f"law {self.form}: {name} is {value}; every constant must be finite.")
            if (name in self.POSITIVE and value <= 0) or (name in self.NON_NEGATIVE and value < 0):
                bound = "above zero" if name in self.POSITIVE else "zero or above"
                raise LawError(f"law {self.form}: {name} = {value:g} must be {bound}.")

    def constants(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class ChinchillaLaw(_Constants):
    """L(N, D) = E + A / N**alpha + B / D**beta, in nats per token (Hoffmann et al. 2022, eq. 2).

    E is the irreducible loss; A and alpha, B and beta say how fast the loss falls with parameters and tokens.
    Raises LawError for a constant that is missing, not finite or out of its range (A, B, alpha, beta > 0, E >= 0).
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    form: ClassVar[str] = "chinchilla"
    equation: ClassVar[str] = "L = E + A/N^alpha + B/D^beta"
    POSITIVE: ClassVar[tuple[str, ...]] = ("A", "B", "alpha", "beta")
    NON_NEGATIVE: ClassVar[tuple[str, ...]] = ("E",)

    def loss(self, N, D):
        return self.E + self.A / N**self.alpha + self.B / D**self.beta

    @property
    def N_exponent(self) -> float:
        """a in N_opt ~ C**a: beta / (alpha + beta)."""
        return self.beta / (self.alpha + self.beta)

    @property
    def D_exponent(self) -> float:
        """b in D_opt ~ C**b: alpha / (alpha + beta)."""
        return self.alpha / (self.alpha + self.beta)

    def N_opt(self, C):
        """Parameters that minimise the loss subject to C = 6 N D (Hoffmann et al. 2022, eq. 4)."""
        G = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return G * (C / 6) ** self.N_exponent

    def D_opt(self, C):
        """Tokens that minimise the loss subject to C = 6 N D."""
        return C / (6 * self.N_opt(C))


@dataclass(frozen=True)
class DataConstrainedLaw(_Constants):
    """The law when tokens repeat: L = E + A / N_eff**alpha + B / D_eff**beta (Muennighoff et al. 2023, eq. 5-7).

    With U unique tokens and R_D = max(D/U - 1, 0) repeats, D_eff = U (1 + R_D_star (1 - exp(-R_D / R_D_star)));
    with N_U the compute-optimal parameters for U tokens and R_N = max(N/N_U - 1, 0),
    N_eff = N_U (1 + R_N_star (1 - exp(-R_N / R_N_star))), where N_U is capped at N. At U = D without excess
    parameters it is the plain law.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    R_D_star: float
    R_N_star: float

    form: ClassVar[str] = "data_constrained"
    equation: ClassVar[str] = "L = E + A/N_eff^alpha + B/D_eff^beta"
    POSITIVE: ClassVar[tuple[str, ...]] = ("A", "B", "alpha", "beta", "R_D_star", "R_N_star")
    NON_NEGATIVE: ClassVar[tuple[str, ...]] = ("E",)

    def plain(self) -> ChinchillaLaw:
        """The law for fresh tokens only."""
        return ChinchillaLaw(self.E, self.A, self.B, self.alpha, self.beta)

    def loss(self, N, D, unique_tokens=None):
        """Loss on D tokens of which `unique_tokens` are distinct (None: all of them); nats per token."""
        return self.plain().loss(N, D) if unique_tokens is None else self.repeated_loss(N, D, unique_tokens)

    def repeated_loss(self, N, D, unique_tokens):
        """Loss on D tokens made of `unique_tokens` repeated D / unique_tokens times; scalars or arrays."""
        import numpy as np

        N, D = np.asarray(N, float), np.asarray(D, float)
        U = np.minimum(D, unique_tokens)
        N_U = np.minimum(N, self._N_for_tokens(U))
        R_D, R_N = D / U - 1, N / N_U - 1
        D_eff = U * (1 - self.R_D_star * np.expm1(-R_D / self.R_D_star))
        N_eff = N_U * (1 - self.R_N_star * np.expm1(-R_N / self.R_N_star))
        loss = self.E + self.A / N_eff**self.alpha + self.B / D_eff**self.beta
        return float(loss) if loss.ndim == 0 else loss

    def _N_for_tokens(self, U):
        """N whose compute-optimal D is U: from N = G (C/6)^a, D = (C/6)^b / G with G of `ChinchillaLaw.N_opt`."""
        G = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return G * (G * U) ** (self.beta / self.alpha)


@dataclass(frozen=True)
class TiedLaw(_Constants):
    """L(N, D) = E + A / N**alpha + B / D**alpha: one exponent for both, so that N_opt and D_opt grow alike.

    The over-training law of Gadre et al. (2024, arXiv:2403.08540), L = E + (a M**eta + b M**-eta) C**-eta with
    M = D/N and C = 6ND, is this law with alpha = 2 eta, A = a 6**-eta and B = b 6**-eta.
    """

    E: float
    A: float
    B: float
    alpha: float

    form: ClassVar[str] = "tied"
    equation: ClassVar[str] = "L = E + A/N^alpha + B/D^alpha"
    POSITIVE: ClassVar[tuple[str, ...]] = ("A", "B", "alpha")
    NON_NEGATIVE: ClassVar[tuple[str, ...]] = ("E",)
    N_exponent: ClassVar[float] = 0.5
    D_exponent: ClassVar[float] = 0.5

    def loss(self, N, D):
        return self.E + self.A / N**self.alpha + self.B / D**self.alpha

    def N_opt(self, C):
        """Parameters that minimise the loss subject to C = 6 N D."""
        return (self.A / self.B) ** (0.5 / self.alpha) * (C / 6) ** 0.5

    def D_opt(self, C):
        """Tokens that minimise the loss subject to C = 6 N D."""
        return C / (6 * self.N_opt(C))


@dataclass(frozen=True)
class KaplanLaw(_Constants):
    """L(N, D) = ((N_c/N)**(alpha_N/alpha_D) + D_c/D)**alpha_D, without an irreducible loss (Kaplan et al. 2020, eq. 1.5).

    In the paper N excludes embeddings; here N is what the runs counted.
    """

    N_c: float
    D_c: float
    alpha_N: float
    alpha_D: float

    form: ClassVar[str] = "kaplan"
    equation: ClassVar[str] = "L = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D"
    POSITIVE: ClassVar[tuple[str, ...]] = ("N_c", "D_c", "alpha_N", "alpha_D")

    def loss(self, N, D):
        return ((self.N_c / N) ** (self.alpha_N / self.alpha_D) + self.D_c / D) ** self.alpha_D

    @property
    def N_exponent(self) -> float:
        """a in N_opt ~ C**a under C = 6 N D: alpha_D / (alpha_N + alpha_D)."""
        return self.alpha_D / (self.alpha_N + self.alpha_D)

    @property
    def D_exponent(self) -> float:
        """b in D_opt ~ C**b under C = 6 N D."""
        return self.alpha_N / (self.alpha_N + self.alpha_D)

    def N_opt(self, C):
        """Parameters that minimise the loss subject to C = 6 N D, trained to the end (not Kaplan's early stopping)."""
        r = self.alpha_N / self.alpha_D
        return (r * self.N_c**r * C / (6 * self.D_c)) ** (1 / (r + 1))

    def D_opt(self, C):
        """Tokens that minimise the loss subject to C = 6 N D."""
        return C / (6 * self.N_opt(C))


@dataclass(frozen=True)
class InteractionLaw(_Constants):
    """L(N, D) = E + A/N**alpha + B/D**beta + G/(N**alpha D**beta): small models gain more, or less, from tokens."""

    E: float
    A: float
    B: float
    G: float
    alpha: float
    beta: float

    form: ClassVar[str] = "interaction"
    equation: ClassVar[str] = "L = E + A/N^alpha + B/D^beta + G/(N^alpha D^beta)"
    POSITIVE: ClassVar[tuple[str, ...]] = ("alpha", "beta")
    NON_NEGATIVE: ClassVar[tuple[str, ...]] = ("E", "A", "B", "G")

    def loss(self, N, D):
        return self.E + self.A / N**self.alpha + self.B / D**self.beta + self.G / (N**self.alpha * D**self.beta)


@dataclass(frozen=True)
class ParameterLaw(_Constants):
    """L(N) = E + A / N**alpha: parameters alone, for runs with tokens to spare or of one token count."""

    E: float
    A: float
    alpha: float

    form: ClassVar[str] = "power_N"
    equation: ClassVar[str] = "L = E + A/N^alpha"
    POSITIVE: ClassVar[tuple[str, ...]] = ("A", "alpha")
    NON_NEGATIVE: ClassVar[tuple[str, ...]] = ("E",)

    def loss(self, N, D=None):
        return self.E + self.A / N**self.alpha


@dataclass(frozen=True)
class TokenLaw(_Constants):
    """L(D) = E + B / D**beta: tokens alone, for runs of one model size."""

    E: float
    B: float
    beta: float

    form: ClassVar[str] = "power_D"
    equation: ClassVar[str] = "L = E + B/D^beta"
    POSITIVE: ClassVar[tuple[str, ...]] = ("B", "beta")
    NON_NEGATIVE: ClassVar[tuple[str, ...]] = ("E",)

    def loss(self, N, D):
        return self.E + self.B / D**self.beta


@dataclass(frozen=True)
class ComputeLaw(_Constants):
    """L(C) = E + K / C**gamma with C = 6 N D: compute alone, for runs at one ratio of tokens to parameters."""

    E: float
    K: float
    gamma: float

    form: ClassVar[str] = "power_C"
    equation: ClassVar[str] = "L = E + K/C^gamma, C = 6ND"
    POSITIVE: ClassVar[tuple[str, ...]] = ("K", "gamma")
    NON_NEGATIVE: ClassVar[tuple[str, ...]] = ("E",)

    def loss(self, N, D):
        return self.E + self.K / (6.0 * N * D) ** self.gamma


@dataclass(frozen=True)
class BrokenLaw(_Constants):
    """L(C) = E + K C**-gamma (1 + (C/C_break)**(1/width))**(-bend width), C = 6 N D: one smooth break, for curves.

    Caballero et al. (2022, arXiv:2210.14891, eq. 1 with n = 1). The slope goes from -gamma to -(gamma + bend) around
    C_break, over about `width` e-folds of C.
    """

    E: float
    K: float
    gamma: float
    C_break: float
    bend: float
    width: float

    form: ClassVar[str] = "broken"
    equation: ClassVar[str] = "L = E + K C^-gamma (1 + (C/C_break)^(1/width))^(-bend width), C = 6ND"
    POSITIVE: ClassVar[tuple[str, ...]] = ("K", "C_break", "width")
    NON_NEGATIVE: ClassVar[tuple[str, ...]] = ("E",)

    def loss(self, N, D):
        C = 6.0 * N * D
        ratio = C / self.C_break
        return self.E + self.K * C**-self.gamma * (1 + ratio ** (1 / self.width)) ** (-self.bend * self.width)


_FORMS: tuple[type, ...] = (
    ChinchillaLaw, TiedLaw, KaplanLaw, InteractionLaw, DataConstrainedLaw, ParameterLaw, TokenLaw, ComputeLaw, BrokenLaw,
)  # fmt: skip
FORMS: dict[str, type] = {law.form: law for law in _FORMS}  # type: ignore[attr-defined]


def law_from_dict(data: dict) -> Any:
    """The law that `{"form": ..., constants}` describes.

    Raises LawError for an unknown form, a missing constant (never filled in) or one that is not a finite number.
    """
    if not isinstance(data, dict):
        raise LawError(f"law: expected an object with form and constants, got {type(data).__name__}.")
    form = data.get("form", "chinchilla")
    if form not in FORMS:
        raise LawError(f'law: unknown form "{form}". Known forms: {", ".join(sorted(FORMS))}.')
    names = [field.name for field in fields(FORMS[form])]
    missing = [name for name in names if data.get(name) is None]
    if missing:
        raise LawError(f"law {form}: {', '.join(missing)} missing. A law needs all of {', '.join(names)}.")
    return FORMS[form](**{name: data[name] for name in names})


def law_to_dict(law: Law) -> dict:
    """`{"form": ..., constants}` at full precision, the inverse of `law_from_dict`."""
    return {"form": law.form, **law.constants()}


@dataclass(frozen=True)
class PublishedLaw:
    """A law by name, with its source, a one-line description, and the range of compute it was fitted on (FLOP)."""

    name: str
    law: Any
    source: str
    description: str
    flops_range: tuple[float, float] | None = None


PUBLISHED: dict[str, PublishedLaw] = {
    entry.name: entry
    for entry in (
        PublishedLaw(
            "besiroglu2024",
            ChinchillaLaw(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658),
            "Besiroglu et al. 2024, arXiv:2404.10102",
            "Replication of Hoffmann's Approach 3 on 240 runs read from its figure 4; the default.",
            (2.0e18, 1.3e22),
        ),
        PublishedLaw(
            "hoffmann2022",
            ChinchillaLaw(
                E=math.exp(0.5267228), A=math.exp(6.0073404), B=math.exp(6.0179186), alpha=0.33917084, beta=0.2849083
            ),
            "Hoffmann et al. 2022, arXiv:2203.15556, Approach 3, unrounded constants of its TeX source",
            "Chinchilla's own parametric fit at full precision; its optimiser had stopped early.",
            (6.0e18, 3.0e21),
        ),
        PublishedLaw(
            "hoffmann2022-rounded",
            ChinchillaLaw(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28),
            "Hoffmann et al. 2022, arXiv:2203.15556, eq. 10, as printed",
            "The printed constants; rounding moves N by 18-30 % from the paper's own table A3.",
            (6.0e18, 3.0e21),
        ),
        PublishedLaw(
            "muennighoff2023",
            DataConstrainedLaw(
                E=math.exp(0.6254804),
                A=math.exp(6.255414),
                B=math.exp(7.3049974),
                alpha=0.3526596,
                beta=0.3526596,
                R_D_star=15.387756,
                R_N_star=5.309743,
            ),
            "Muennighoff et al. 2023, arXiv:2305.16264, constants of the datablations README",
            "Data-constrained law on C4: what repeated tokens are worth.",
            (1.0e18, 1.0e22),
        ),
    )
}
# By name only: neither is an estimate of its own of what Chinchilla's runs say, so `--law all` does not weigh them.
BY_NAME_ONLY: dict[str, PublishedLaw] = {
    entry.name: entry
    for entry in (
        PublishedLaw(
            "sardana2024",
            ChinchillaLaw(E=1.69, A=406.4, B=410.7, alpha=0.336, beta=0.283),
            "Sardana et al. 2024, arXiv:2401.00448",
            "Hoffmann's printed constants with a third digit of the exponents; its inference examples use them.",
            (6.0e18, 3.0e21),
        ),
        PublishedLaw(
            "kaplan2020",
            KaplanLaw(N_c=8.8e13, D_c=5.4e13, alpha_N=0.076, alpha_D=0.095),
            "Kaplan et al. 2020, arXiv:2001.08361, eq. 1.1 and 1.2 joined as eq. 1.5",
            "N without embeddings, one schedule for all runs; its own N ~ C^0.73 is of another fit, not of this split.",
        ),
    )
}
DEFAULT_LAW = "besiroglu2024"


def published_law(name: str) -> PublishedLaw:
    """The published law of that name. Raises LawError that lists the known names."""
    known = {**PUBLISHED, **BY_NAME_ONLY}
    if name not in known:
        raise LawError(f'unknown law "{name}". Known laws: {", ".join(sorted(known))}; or give a fit.json.')
    return known[name]
