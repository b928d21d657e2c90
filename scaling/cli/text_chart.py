"""A line drawn in a terminal with braille dots: two columns and four rows of dots in each character."""

from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row, then column, of one character


def line_chart(
    values: Sequence[float], *, width: int = 60, height: int = 8, low: float | None = None, high: float | None = None
) -> str:
    """`values` from left to right over the whole width, between `low` and `high` (None: their own range).

    The largest and the least value label the first and the last line. Nothing is drawn for no values.
    """
    if not values:
        return ""
    bottom = min(values) if low is None else low
    top = max(values) if high is None else high
    cells = [[0] * width for _ in range(height)]
    before = None
    for column in range(2 * width):
        share = (_between(values, column / (2 * width - 1)) - bottom) / (top - bottom) if top > bottom else 0.0
        row = round((1 - min(1.0, max(0.0, share))) * (4 * height - 1))
        first, last = sorted((row, row if before is None else before))
        for filled in range(first, last + 1):
            cells[filled // 4][column // 2] |= _DOTS[filled % 4][column % 2]
        before = row
    labels = [f"{top:.2f}", *[""] * (height - 2), f"{bottom:.2f}"][:height]
    edge = max(map(len, labels))
    lines = ["".join(chr(0x2800 + cell) for cell in line) for line in cells]
    return "\n".join(f"{label:>{edge}} ┤{line}" for label, line in zip(labels, lines, strict=True))


def _between(values: Sequence[float], share: float) -> float:
    """The value that far along, on the straight line between its neighbours."""
    place = share * (len(values) - 1)
    left = min(int(place), len(values) - 2) if len(values) > 1 else 0
    right = min(left + 1, len(values) - 1)
    return values[left] + (values[right] - values[left]) * (place - left)
