"""`scale sweep`: train the runs of a grid that are missing."""

import importlib.util
import signal
from dataclasses import asdict

import click

from scaling.cli.output import format_table, print_json
from scaling.errors import SweepError
from scaling.quantities import format_quantity
from sweeps.cli.progress import display_for, format_seconds
from sweeps.executors import EXECUTORS
from sweeps.grid import read_grid
from sweeps.launch import Planned, available_cores, launch, prepare, request_stop
from sweeps.plan import task_flops
from sweeps.runner import Summary
from sweeps.store import FINAL, Store
from sweeps.worker import TRAIN


@click.command("sweep")
@click.argument("grid", required=False)
@click.option("--out", required=True, help="Folder of the sweep, such as results/NAME; runs.csv is written there.")
@click.option("--dry-run", is_flag=True, help="Print every run with its cost and expected time; train nothing.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes at once. Default: one per core.")
@click.option("--executor", type=click.Choice(EXECUTORS), default="local", show_default=True, help="Where runs go.")
@click.option("--join", is_flag=True, help="Help a sweep that is already running in this folder.")
@click.option("--stop", is_flag=True, help="Ask the sweep in this folder to save its checkpoints and end.")
@click.option("--tune", is_flag=True, help="Sweep the learning rate over widths, and say whether it transfers.")
@click.option("--slurm-setup", metavar="FILE", help="Shell lines that each Slurm job sources first (modules, a venv).")
@click.option("--train", default=TRAIN, show_default=True, metavar="MODULE:FUNCTION", help="Your own trainer.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
def command(grid, out, dry_run, workers, executor, join, stop, tune, slurm_setup, train, as_json):
    """Train small transformers over the grid of N and D in GRID, a TOML file.

    Runs that already have a result are not trained again: give the same command to go on after any interruption.
    """
    if stop:
        _stop(out, as_json)
        return
    if grid is None:
        raise click.UsageError("Missing argument 'GRID' (only --stop goes without).")
    _require_torch(train)
    if tune:
        _tune(grid, out, workers, as_json)
    elif dry_run:
        _dry_run(grid, out, workers, train, as_json)
    else:
        _sweep(grid, out, as_json, executor=executor, workers=workers, join=join, train=train, slurm_setup=slurm_setup)


def _require_torch(train: str) -> None:
    """Say what to install before anything else is done; torch itself is imported by the workers alone."""
    if train == TRAIN and importlib.util.find_spec("torch") is None:
        raise SweepError("scale sweep needs torch, which is not installed: pip install 'isoflop[train]'")


def _stop(out: str, as_json: bool) -> None:
    message = request_stop(out)
    if as_json:
        print_json({"message": message})
    else:
        click.echo(f"{out}: {message}")


def _sweep(grid: str, out: str, as_json: bool, **options) -> None:
    store = Store(out)
    stop = _StopSignal()
    with display_for(store) as display:
        summary = launch(
            grid, out, should_stop=stop, on_change=display.change, on_event=display.event, **options
        )  # fmt: skip
    if as_json:
        print_json({**asdict(summary), "runs_csv": str(store.runs_csv)})
    else:
        click.echo(_closing(summary, store))
    _raise_if_unfinished(summary, store)


class _StopSignal:
    """Ctrl-C and SIGTERM ask once; a second Ctrl-C no longer waits for the checkpoints."""

    def __init__(self):
        self._asked = False
        signal.signal(signal.SIGINT, self._ask)
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number, frame) -> None:
        if self._asked and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        self._asked = True

    def __call__(self) -> bool:
        return self._asked


def _closing(summary: Summary, store: Store) -> str:
    parts = [f"{summary.done} runs done"]
    parts += [f"{n} {word}" for n, word in ((summary.diverged, "diverged"), (summary.failed, "failed")) if n]
    parts += [f"{summary.missing} to go"] if summary.missing else []
    return f"{store.runs_csv}: {', '.join(parts)} ({format_seconds(summary.seconds)})"


def _raise_if_unfinished(summary: Summary, store: Store) -> None:
    if summary.storage_problem:
        raise SweepError(summary.storage_problem)
    if summary.failed:
        first = summary.failures[0]
        more = f" and {summary.failed - 1} more" if summary.failed > 1 else ""
        raise SweepError(
            f"{store.folder}: {first.run_id}{more} failed: {first.reason.rstrip('.')}. "
            "The other runs are kept; give the same command to try again."
        )
    if summary.missing:
        raise SweepError(f"{store.folder}: stopped with {summary.missing} runs to go. Give the same command to go on.")


# Dry run


def _dry_run(grid_file: str, out: str, workers: int | None, train: str, as_json: bool) -> None:
    store = Store(out)
    planned = prepare(read_grid(grid_file), store, train=train, choose_seconds=0.5, speed_seconds=0.5)
    results, problems = store.results()
    plan = planned.plan
    missing = [
        [c for c in task.configs if (r := results.get(c.run_id)) is None or r.status not in FINAL]
        for task in plan.tasks
    ]
    costs = {
        "runs": len(plan.configs),
        "runs_missing": sum(map(len, missing)),
        "trunks": len(plan.tasks),
        "flops": plan.flops,
        "flops_separately": plan.flops_apart,
        "flops_missing": sum(task_flops(column) for column in missing if column),
        "workers": workers or planned.grid.workers or available_cores(),
        "core_seconds": _seconds(planned, [column for column in missing if column]),
    }
    costs["wall_seconds"] = _wall_seconds(planned, missing, costs["workers"])
    if as_json:
        print_json(
            {**costs, "rows": [_row(planned, c, results) for c in _in_order(plan)], "notes": [*plan.notes, *problems]}
        )
    else:
        click.echo(_dry_run_text(planned, costs, results, problems))


def _in_order(plan):
    return (config for task in plan.tasks for config in task.configs)


def _row(planned: Planned, config, results) -> dict:
    result = results.get(config.run_id)
    return {
        "run_id": config.run_id,
        "status": result.status if result else "missing",
        "params": config.params,
        "d_model": config.d_model,
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "tokens": config.realised_tokens,
        "steps": config.steps,
        "flops": 6.0 * config.params * config.realised_tokens,
        "learning_rate": config.learning_rate,
        "dtype": config.dtype,
        "attention": config.attention,
        "seconds_alone": _seconds(planned, [[config]]),
    }


def _seconds(planned: Planned, columns: list) -> float | None:
    """Seconds of one worker for trunks with their branches."""
    seconds = [planned.machine.seconds(column) for column in columns]
    return None if None in seconds else sum(seconds)


def _wall_seconds(planned: Planned, missing: list, workers: int) -> float | None:
    """Longest first onto `workers` equal workers, as the runner does."""
    loads = [0.0] * workers
    for column in missing:
        if column:
            seconds = _seconds(planned, [column])
            if seconds is None:
                return None
            lightest = loads.index(min(loads))
            loads[lightest] += seconds
    return max(loads) + planned.machine.startup_seconds * any(loads)


def _dry_run_text(planned: Planned, costs: dict, results: dict, problems: list[str]) -> str:
    rows = [_row(planned, config, results) for config in _in_order(planned.plan)]
    headers = ["run", "N", "d_model", "layers", "heads", "tokens", "steps", "6ND", "numerics", "alone", "state"]
    table = format_table(
        headers,
        [
            [
                row["run_id"], format_quantity(row["params"]), row["d_model"], row["n_layers"], row["n_heads"],
                format_quantity(row["tokens"]), row["steps"], f"{row['flops']:.3g}",
                f"{row['dtype']} {row['attention']}", format_seconds(row["seconds_alone"]), row["status"],
            ]
            for row in rows
        ],
    )  # fmt: skip
    saved = 1 - costs["flops"] / costs["flops_separately"]
    repeated = max((row["tokens"] for row in rows), default=0) / planned.unique_tokens
    lines = [
        table,
        "",
        f"{costs['runs']} runs in {costs['trunks']} trunks, {costs['runs_missing']} of them to train.",
        f"{costs['flops']:.3g} FLOPs with shared trunks, {costs['flops_separately']:.3g} separately: {saved:.0%} less.",
    ]
    if not costs["runs_missing"]:
        lines.append("Nothing to train.")
    elif costs["wall_seconds"] is not None:
        lines.append(
            f"Expected: {format_seconds(costs['core_seconds'])} of one {planned.machine.device} worker, "
            f"{format_seconds(costs['wall_seconds'])} on {costs['workers']} (speed measured just now)."
        )
    else:
        lines.append(f"Expected time: not known; {planned.grid.where} names a training function that cannot be timed.")
    if repeated > 1:
        lines.append(f"Note: the longest run reads the corpus {repeated:.1f} times; repeated tokens count in D.")
    return "\n".join(lines + [f"Note: {note}" for note in (*planned.plan.notes, *problems)])


def _tune(grid: str, out: str, workers: int | None, as_json: bool) -> None:
    from sweeps.tune import tune
    from sweeps.tuning import tuning_table

    store = Store(out)
    stop = _StopSignal()
    with display_for(store) as display:
        transfer, summary = tune(
            grid, out, workers=workers, should_stop=stop, on_change=display.change, on_event=display.event
        )
    if as_json:
        print_json({"transfer": asdict(transfer), "runs_csv": str(store.runs_csv)})
    else:
        click.echo(f"{format_table(*tuning_table(transfer))}\n\nLearning rate: {transfer.message}.")
    _raise_if_unfinished(summary, store)
