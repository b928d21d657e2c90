"""scale convert: any table of runs as our runs.csv, with the report of how it was read beside it."""

from typing import Any

import click

from scaling.cli.output import print_json
from scaling.cli.reading import read_from_options, reading_options


@click.command(name="convert")
@reading_options
@click.option("-o", "--out", required=True, metavar="RUNS.CSV", help='Table to write; "-" for standard output.')
@click.option("--json", "as_json", is_flag=True, help="Print the account of the reading as JSON.")
def command(out: str, as_json: bool, **options: Any) -> None:
    """Read RUNS... (CSV, TSV, JSON, JSON Lines, Parquet, gzip of each, globs, folders, "-", tracker addresses) and
    write them as one runs.csv, with a report beside it."""
    from scaling.conversion import report_path, report_text, runs_csv
    from scaling.files import write_text

    runs = read_from_options(options, one_study=False)
    if out == "-":
        click.echo(runs_csv(runs), nl=False)
        return
    write_text(out, runs_csv(runs))
    write_text(report_path(out), report_text(runs))
    if as_json:
        print_json(_account(runs, out))
    else:
        click.echo(f"{out}: {len(runs)} usable runs. {report_path(out)}: how they were read.")


def _account(runs: Any, out: str) -> dict[str, Any]:
    return {
        "out": out,
        "n_runs": len(runs),
        "n_rows": runs.n_rows,
        "metric": runs.metric,
        "sources": runs.sources,
        "notes": runs.notes,
        "excluded": [exclusion.to_dict() for exclusion in runs.excluded],
        "labels": [{"label": label.label, "text": label.text, "rows": list(label.rows)} for label in runs.labels],
        "warnings": runs.warnings,
    }
