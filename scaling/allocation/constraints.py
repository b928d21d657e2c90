"""What the answer must respect besides the budget, and the refusals when that leaves nothing."""

from dataclasses import dataclass

from scaling.errors import AllocationError
from scaling.quantities import format_quantity


@dataclass(frozen=True)
class Constraints:
    """All optional. `params`, `tokens` and `ratio` (D/N) are equalities; the limits are upper bounds; `target_loss`
    turns the question round: the cheapest run that reaches it."""

    params: float | None = None
    tokens: float | None = None
    ratio: float | None = None
    max_params: float | None = None
    max_tokens: float | None = None
    target_loss: float | None = None
    min_tokens: float = 1.0  # one step: a run cannot be shorter
    min_tokens_reason: str = "one token"

    def __post_init__(self) -> None:
        if self.params is not None and self.tokens is not None and self.ratio is not None:
            implied = self.tokens / self.params
            raise AllocationError(
                f"parameters {format_quantity(self.params)} and tokens {format_quantity(self.tokens)} are both fixed, "
                f"so D/N is {implied:.4g}; it cannot be set to {self.ratio:g} as well. Drop one of the three."
            )
        self._check_limits()
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise AllocationError(
                f"max tokens {format_quantity(self.max_tokens)} is below one step "
                f"({self.min_tokens_reason}, {format_quantity(self.min_tokens)} tokens). "
                "Raise it, or take a smaller batch or context."
            )

    def _check_limits(self) -> None:
        params, tokens = self.point() or (self.params, self.tokens)
        for value, limit, name in (
            (params, self.max_params, "params"),
            (tokens, self.max_tokens, "tokens"),
        ):
            if value is not None and limit is not None and value > limit:
                raise AllocationError(
                    f"{name} fixed at {format_quantity(value)} but max {name} is {format_quantity(limit)}. "
                    "Change one of them."
                )

    def point(self) -> tuple[float, float] | None:
        """(N, D) when two of the three equalities fix both."""
        if self.params is not None and self.tokens is not None:
            return self.params, self.tokens
        if self.ratio is not None and self.params is not None:
            return self.params, self.ratio * self.params
        if self.ratio is not None and self.tokens is not None:
            return self.tokens / self.ratio, self.tokens
        return None

    @property
    def free(self) -> bool:
        """Whether both N and D are to be chosen."""
        return self.params is None and self.tokens is None and self.ratio is None

    def described(self) -> list[str]:
        """The constraints in words, for the output."""
        texts = (
            ("params", "N fixed at {}"),
            ("tokens", "D fixed at {}"),
            ("ratio", "D/N fixed at {}"),
            ("max_params", "N at most {}"),
            ("max_tokens", "D at most {}"),
            ("target_loss", "loss at most {}"),
        )
        return [
            text.format(format_quantity(value, digits=6))
            for name, text in texts
            if (value := getattr(self, name)) is not None
        ]


NONE = Constraints()
