"""The options that every command which takes runs shares, and the echo of how the table was understood."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from scaling.cli.output import warn

if TYPE_CHECKING:
    from scaling.runs import Runs

_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--map", "mapping"),
        {
            "multiple": True,
            "metavar": "ROLE=COLUMN",
            "help": 'Column of a role: "params=Model Size"; with a unit: params=size:M.',
        },
    ),
    (
        ("--where",),
        {"multiple": True, "metavar": "CONDITION", "help": "Rows to read: \"dataset == 'c4' and params < 1e9\"."},
    ),
    (("--best-of",), {"metavar": "COLUMN", "help": "Keep the lowest loss per (N, D) over a swept column, such as lr."}),
    (("--last-of",), {"metavar": "COLUMN", "help": "Keep the last checkpoint of each run that this column names."}),
    (
        ("--drop-top-loss",),
        {"type": click.IntRange(min=0), "default": 0, "metavar": "K", "help": "Leave out the K highest losses."},
    ),
    (("--exclude",), {"multiple": True, "metavar": "RUN_ID", "help": 'Leave out a run by id, or a row by "line 14".'}),
    (
        ("--metric",),
        {"metavar": "UNIT", "help": "Unit of the loss: nats, bits_per_byte, bits_per_token, perplexity .."},
    ),
    (
        ("--skip-bad-rows",),
        {"is_flag": True, "help": "Leave out and list rows with unusable numbers; else stop there."},
    ),
    (
        ("--pool",),
        {"multiple": True, "metavar": "COLUMN", "help": "One law over all values of this column, knowingly."},
    ),
)
NAMES = (
    "sources",
    "mapping",
    "where",
    "best_of",
    "last_of",
    "drop_top_loss",
    "exclude",
    "metric",
    "skip_bad_rows",
    "pool",
)


def reading_options(command: Callable) -> Callable:
    """Give a command the argument RUNS... and every option of `read_from_options`."""
    for names, settings in reversed(_OPTIONS):
        command = click.option(*names, **settings)(command)
    return click.argument("sources", nargs=-1, required=True, metavar="RUNS...")(command)


def read_from_options(options: dict[str, Any], *, group_by: str | None = None, one_study: bool = True) -> "Runs":
    """Take the reading options out of a command's keyword arguments, read the runs and echo how they were understood.

    With `one_study`, runs of several metrics, tokenizers, evaluation sets, corpora or code versions are refused unless
    `group_by` or --pool names the column that tells them apart.
    """
    from scaling.runs import read_runs
    from scaling.studies import require_one_study

    chosen = {name: options.pop(name) for name in NAMES}
    pool = chosen.pop("pool")
    runs = read_runs(chosen.pop("sources"), group_by=group_by, **chosen)
    if one_study:
        require_one_study(runs, group_by=group_by, pool=pool)
    echo_reading(runs)
    return runs


def echo_reading(runs: "Runs") -> None:
    """Notes, the count of rows and warnings, on standard error."""
    for note in runs.notes:
        click.echo(note, err=True)
    click.echo(runs.summary(), err=True)
    for message in runs.warnings:
        warn(message)
