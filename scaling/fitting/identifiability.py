"""Can these runs determine this law at all? Asked before fitting, from N and D alone.

The scaled Jacobian of log Lhat in (E, A, B, alpha, beta), columns at unit length, at nominal exponents: its condition
number is about 2e2 for a grid, 4e6 when all runs have one D/N, infinite for one or two model sizes.
"""

from dataclasses import dataclass

import numpy as np

from scaling.fitting.data import RunData

SAME = 0.01  # sizes within 1 % of each other are one size: counts of the same model differ by that much
MAX_CONDITION = 1e4
WARN_CONDITION = 2.5e3
NOMINAL = (0.34, 0.36)  # exponents near those of Chinchilla's runs; unequal, so that one D/N shows as near-singular


@dataclass(frozen=True)
class Design:
    """What the runs can tell: distinct sizes, token counts and points, and the condition of the scaled Jacobian."""

    n_sizes: int
    n_tokens: int
    n_points: int
    condition: float
    problem: str | None  # why the five constants cannot be determined
    offer: str | None  # the form of a smaller law that can

    @property
    def message(self) -> str:
        offer = f" A smaller law can be fitted: --form {self.offer}." if self.offer else ""
        return f"{self.problem}{offer}"


def groups(values: np.ndarray, tolerance: float = SAME) -> np.ndarray:
    """Group number of each value: a group spans at most `tolerance` in ratio, from its smallest member."""
    order = np.argsort(values, kind="stable")
    start, current, numbers = -np.inf, -1, []
    for value in np.log(values[order]).tolist():
        if value > start + tolerance:
            start, current = value, current + 1
        numbers.append(current)
    out = np.empty(len(values), int)
    out[order] = numbers
    return out


def condition_number(N, D, alpha: float, beta: float, E: float, A: float, B: float) -> float:
    """Condition of the Jacobian of log Lhat in (E, A, B, alpha, beta) with its columns at unit length."""
    log_N, log_D = np.log(N), np.log(D)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        A_N, B_D = np.exp(np.log(A) - alpha * log_N), np.exp(np.log(B) - beta * log_D)
        J = np.column_stack([np.ones_like(A_N), A_N, B_D, A_N * log_N, B_D * log_D]) / (E + A_N + B_D)[:, None]
        J = J / np.sqrt((J * J).sum(0))
    if not np.isfinite(J).all():
        return np.inf
    values = np.linalg.svd(J, compute_uv=False)
    return float(values[0] / values[-1]) if len(J) >= 5 and values[-1] > 1e-13 * values[0] else np.inf


def design_of(data: RunData) -> Design:
    """What the runs of positive weight can tell about the five-constant law."""
    used = data.weights > 0
    N, D = data.N[used], data.D[used]
    size, tokens = groups(N), groups(D)
    n_sizes, n_tokens = int(size.max()) + 1, int(tokens.max()) + 1
    n_points = len(np.unique(size * (n_tokens + 1) + tokens))
    A, B = (0.25 * np.exp(k * np.log(v).mean()) for k, v in zip(NOMINAL, (N, D), strict=True))
    condition = condition_number(N, D, *NOMINAL, 0.5, A, B)
    problem, offer = _problem(N, D, n_sizes, n_tokens, n_points, condition)
    return Design(n_sizes, n_tokens, n_points, condition, problem, offer)


def _problem(N, D, n_sizes, n_tokens, n_points, condition) -> tuple[str | None, str | None]:
    if n_sizes == 1 and n_tokens == 1:
        return "All runs have one model size and one token count: nothing can be fitted.", None
    if n_sizes == 1:
        return "All runs have one model size: A and alpha are unknowable, and with them the best N.", _one(
            "power_D", n_tokens
        )
    if n_tokens == 1:
        return "All runs have one token count: B and beta are unknowable, and with them the best N.", _one(
            "power_N", n_sizes
        )
    if n_points < 6:
        return (f"Only {n_points} distinct (N, D): five constants need at least 6, and 10 to mean much.",
                "tied" if n_points == 5 and min(n_sizes, n_tokens) > 1 and not _on_a_line(N, D) else None)  # fmt: skip
    if _on_a_line(N, D):
        ratio = np.exp(np.log(D / N).mean())
        what = f"one D/N ({ratio:.3g})" if np.ptp(np.log(D / N)) < 0.1 else "one line in log N and log D"
        return f"All runs lie on {what}: what N does and what D does cannot be told apart.", _one("power_C", n_points)
    for count, what, constant, exponent in (
        (n_sizes, "model sizes", "A", "alpha"),
        (n_tokens, "token counts", "B", "beta"),
    ):
        if count == 2:
            return f"Only two distinct {what}: {constant}, {exponent} and E cannot be told apart.", "tied"
    if condition > MAX_CONDITION:
        return f"The runs barely tell N and D apart (condition {condition:.1e} > {MAX_CONDITION:.0e}).", "tied"
    return None, None


def _one(form: str, count: int) -> str | None:
    return form if count >= 4 else None


def _on_a_line(N, D) -> bool:
    """Whether log D is a straight line in log N, up to 1 % of the spread."""
    x, y = np.log(N) - np.log(N).mean(), np.log(D) - np.log(D).mean()
    spread = np.sqrt((x @ x) * (y @ y))
    return bool(spread == 0 or 1 - (x @ y / spread) ** 2 < 1e-4)
