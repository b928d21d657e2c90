"""Reads values out of a TOML file strictly: an error names the file, the line and the key, and says what to write."""

import math
import re
from typing import Any

from scaling.errors import InputError, SweepError
from scaling.quantities import parse_positive

MAX_VALUES = 100_000  # in a list or a range


class TomlReader:
    """The values of one file; `where` is its name in messages."""

    def __init__(self, text: str, where: str):
        self._lines, self.where = text.splitlines(), where

    # Kinds of value

    def items(self, key: str, value: Any) -> list:
        if not isinstance(value, list) or not value:
            raise self.error(key, f"{value!r} must be a list of at least one")
        if len(value) > MAX_VALUES:
            raise self.error(key, f"{len(value):,} values are too many (at most {MAX_VALUES:,})")
        return value

    def quantity(self, key: str, value: Any) -> float:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise self.error(key, f'{value!r} is not a quantity. Write 1e6, 1000000 or "1M"')
        try:
            return parse_positive(value, name=key)
        except (InputError, OverflowError) as error:
            raise SweepError(f"{self.where}{self.line(key)}: {error}") from error

    def quantities(self, key: str, value: Any) -> tuple[float, ...]:
        """A list, one number, or { from, to, steps } spaced evenly in the logarithm; increasing, without repeats."""
        if isinstance(value, dict):
            return self.span(key, value)
        values = value if isinstance(value, list) else [value]
        return tuple(sorted({self.quantity(key, item) for item in self.items(key, values)}))

    def span(self, key: str, value: dict) -> tuple[float, ...]:
        if set(value) != {"from", "to", "steps"}:
            raise self.error(key, f"a range is {{ from = 1e6, to = 1e8, steps = 5 }}; got {', '.join(sorted(value))}")
        lo, hi = (self.quantity(f"{key}.{end}", value[end]) for end in ("from", "to"))
        steps = self.whole(f"{key}.steps", value["steps"])
        if steps > MAX_VALUES or (steps > 1) != (lo < hi) or lo > hi:
            raise self.error(key, f"from {lo:g} to {hi:g} in {steps} steps is not a range")
        if steps == 1:
            return (lo,)
        return tuple(lo * math.exp(math.log(hi / lo) * i / (steps - 1)) for i in range(steps - 1)) + (hi,)

    def number(self, key: str, value: Any, lo: float = -math.inf, hi: float = math.inf) -> float:
        if isinstance(value, str):
            value = self.quantity(key, value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not lo <= value <= hi:
            bounds = "" if (lo, hi) == (-math.inf, math.inf) else f" between {lo:g} and {hi:g}"
            raise self.error(key, f"{value!r} must be a number{bounds}")
        return float(value)

    def whole(self, key: str, value: Any, lo: int = 1) -> int:
        if isinstance(value, str) or isinstance(value, float) and math.isfinite(value):
            value = self.quantity(key, value)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or value != value // 1
            or not lo <= value < 2**53
        ):
            raise self.error(key, f"{value!r} must be a whole number of at least {lo}")
        return int(value)

    def one_of(self, key: str, value: Any, known: tuple[str, ...]) -> str:
        if value not in known:
            raise self.error(key, f"{value!r} is not known. Known: {', '.join(known)}")
        return value

    def words(self, key: str, value: Any) -> str:
        """One line of printable text."""
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self.error(key, f"{value!r} must be one line of text")
        return value

    # Places

    def check_keys(self, data: dict, known: list[str], table: str = "") -> None:
        for key in data:
            if key not in known:
                inside = f" in [{table}]" if table else ""
                raise SweepError(
                    f'{self.where}{self.line(key)}: unknown key "{key}"{inside}. '
                    f"Known keys: {', '.join(sorted(known))}."
                )

    def line(self, key: str) -> str:
        key = key.partition(".")[0].partition("[")[0]  # tokens.from, sizes[2].d_model
        pattern = re.compile(rf"""^\s*\[*\s*["']?{re.escape(key)}["']?\s*[\].=]""")
        return next((f" line {number}" for number, text in enumerate(self._lines, 1) if pattern.match(text)), "")

    def error(self, key: str, problem: str) -> SweepError:
        return SweepError(f"{self.where}{self.line(key)}: {key}: {problem}.")
