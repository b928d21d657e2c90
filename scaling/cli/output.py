"""How commands print: aligned tables for people, strict JSON for scripts. No dependency but click, for a fast start."""

from collections.abc import Sequence
from typing import Any

import click

from scaling.files import to_json


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    click.echo(to_json(data))


def format_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1) -> str:
    """Columns aligned by spaces; the first `left` to the left, the others to the right. None prints as a dash."""
    cells = [list(map(str, headers))] + [["-" if c is None else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    lines = [
        "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    rule = "  ".join("-" * w for w in widths)
    return "\n".join([lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:])])


def warn(message: str) -> None:
    """A warning on standard error, so that `--json` on standard output stays clean."""
    click.echo(f"Warning: {message}", err=True)
