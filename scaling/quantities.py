"""Quantities as people write them: "70B" <-> 70e9, "1.4T", "5.76e23", "$10M", "32.0K", "1,000,000"."""

import math
import re

from scaling.errors import InputError

SUFFIXES = {"": 0, "k": 3, "m": 6, "b": 9, "g": 9, "t": 12, "q": 15}  # powers of ten
_QUANTITY = re.compile(
    r"""^\s*\$?\s*(?P<number>[+-]?(?:\d{1,3}(?:[,_]\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(?P<suffix>[kKmMbBgGtTqQ]?)\s*$"""
)


def parse_quantity(text: str | float, *, name: str = "quantity") -> float:
    """Read a count or an amount: digits with an optional exponent, thousands separators, a leading $ and one of the
    suffixes K, M, B (or G), T, Q.

    >>> parse_quantity("70B")
    70000000000.0

    Raises InputError, naming the value, for anything else; NaN and infinities are refused as well.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        value = float(text) if abs(text) < 1e308 or isinstance(text, float) else math.inf
    else:
        value = _parse_text(str(text), name)
    if not math.isfinite(value):
        raise InputError(f"{name}: {text} is not a finite number.")
    return value


def _parse_text(text: str, name: str) -> float:
    """One correctly rounded conversion: "0.07B" is 7e7 exactly, which 0.07 * 1e9 is not."""
    match = _QUANTITY.match(text)
    digits, _, exponent = (match["number"] if match else "").replace(",", "").replace("_", "").lower().partition("e")
    if match is None or not any(c.isdigit() for c in digits) or len(exponent) > 9:
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise InputError(f'{name}: cannot read "{shown}" as a number. Write 70B, 1.4T, 5.76e23 or 1,000,000.')
    return float(f"{digits}e{int(exponent or 0) + SUFFIXES[match['suffix'].lower()]}")


def parse_positive(text: str | float, *, name: str = "quantity") -> float:
    """`parse_quantity`, and the value must be above zero."""
    value = parse_quantity(text, name=name)
    if value <= 0:
        raise InputError(f"{name}: {text} must be above zero.")
    return value


def format_quantity(value: float, *, digits: int = 4) -> str:
    """Write a count for people: 72.25B, 1.329T, 49.41K; scientific above 1e15 and below 1e-3."""
    if value is None or not math.isfinite(value):
        return "n/a" if value is None else str(value)
    magnitude = abs(value)
    if magnitude == 0:
        return "0"
    if magnitude >= 9.9995e14 or magnitude < 1e-3:
        return f"{value:.{digits - 1}e}".replace("e+", "e")
    for suffix, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if float(f"{magnitude:.{digits}g}") >= scale:
            return _significant(value / scale, digits) + suffix
    return _significant(value, digits)


def format_flops(value: float, *, digits: int = 4) -> str:
    """Write FLOPs for people, always in scientific notation: 5.760e23."""
    return f"{value:.{digits - 1}e}".replace("e+", "e").replace("e0", "e")


def _significant(value: float, digits: int) -> str:
    """Fixed-point text with that many significant digits, never in scientific notation below 1e4."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits}g}")))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
