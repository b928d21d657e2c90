"""`scale status`: where a sweep stands, read from its folder alone, on any machine that sees it."""

import click

from scaling.cli.output import format_table, print_json
from sweeps.cli.progress import format_seconds
from sweeps.status import Status, read_status


@click.command("status")
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
def command(folder, as_json):
    """Running, done and failed runs of the sweep in FOLDER, with reasons, the FLOPs done and the time left."""
    status = read_status(folder)
    if as_json:
        print_json(status.to_dict())
    else:
        click.echo(_text(status))


def _text(status: Status) -> str:
    counts = ", ".join(f"{n} {word}" for word, n in status.counts.items() if n)
    lines = [f"{status.folder}: {counts or 'no runs'}; {status.flops_done:.3g} of {status.flops_total:.3g} FLOPs"]
    lines[0] += f" ({status.share:.0%})" if status.flops_total else ""
    lines.append(f"Held by {status.holder}." if status.holder else "No sweep process holds the folder.")
    if status.seconds_left is not None:
        lines.append(f"About {format_seconds(status.seconds_left)} left at the present rate.")
    if status.running:
        rows = [
            [
                r.trunk, f"{r.share:.0%}", "-" if r.loss is None else f"{r.loss:.3f}",
                f"{format_seconds(r.silent_seconds)} ago", r.owner,
            ]
            for r in status.running
        ]  # fmt: skip
        lines += ["", format_table(["running", "trained", "loss", "last sign", "by"], rows)]
    if status.failed:
        lines += ["", *(f"{run_id}: {word}: {reason}" for run_id, word, reason in status.failed)]
    return "\n".join(lines + [f"Note: {problem}" for problem in status.problems])
