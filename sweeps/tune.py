"""`scale sweep --tune`: train the runs of a learning-rate sweep into a folder, like any sweep, and judge them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scaling.accounting import count_parameters
from sweeps import durable
from sweeps.grid import Grid, read_grid
from sweeps.launch import Planned, hold_folder, make_executor, prepare, record_numerics
from sweeps.plan import Plan, group, plan
from sweeps.probe import shape_key
from sweeps.runner import Runner, State, Summary
from sweeps.store import Store
from sweeps.tuning import Transfer, analyse, tuning_recipes, tuning_shapes
from sweeps.worker import TRAIN


def tune(
    grid_file: str | Path,
    out: str | Path,
    *,
    workers: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_change: Callable[[State], None] = lambda state: None,
    on_event: Callable[[str], None] = lambda line: None,
) -> tuple[Transfer, Summary]:
    """Five rates around the grid's, at three of its widths (least, middle, largest) and two of its token counts.

    Runs that have a result are not trained again. Raises SweepError when the grid has a single width, or when another
    sweep holds the folder.
    """
    grid = tuning_grid(read_grid(grid_file))
    store = Store(out)
    durable.make_folder(store.folder)
    with hold_folder(store, join=False):
        planned = with_rates(prepare(grid, store))
        record_numerics(store, planned.machine)
        engine = make_executor("local", planned, store, workers=workers, train=TRAIN)
        results, problems = store.results()
        for line in (*planned.plan.notes, *problems):
            on_event(line)
        summary = Runner(
            planned.plan.tasks, store, engine, retries=grid.retries, should_stop=should_stop, on_change=on_change,
            on_event=on_event, results=results,
        ).run()  # fmt: skip
    return judge(planned.plan, store), summary


def tuning_grid(grid: Grid) -> Grid:
    """The grid cut down to what a learning-rate sweep trains: three widths, two token counts, one seed."""
    shapes = tuning_shapes(grid.shapes)
    if grid.tokens:
        counts = sorted(grid.tokens)
        tokens = (counts[0], counts[min(2, len(counts) - 1)])
    else:  # isoFLOP: what the lowest and the highest budget buy at the middle width
        params = sorted(count_parameters(shape).total for shape in shapes)[len(shapes) // 2]
        tokens = tuple(budget / (6 * params) for budget in (min(grid.budgets), max(grid.budgets)))
    return replace(grid, shapes=shapes, tokens=tuple(dict.fromkeys(tokens)), budgets=(), seeds=grid.seeds[:1])


def with_rates(planned: Planned) -> Planned:
    """The plan at every rate of the sweep, on the numerics that were chosen."""
    configs = []
    for recipe in tuning_recipes(planned.grid.recipe()):
        grid = replace(planned.grid, learning_rate=recipe.learning_rate)
        first = planned.plan.configs[0]
        configs += plan(
            grid, corpus=first.corpus, corpus_hash=first.corpus_hash, device=planned.machine.device,
            numerics=lambda shape: planned.machine.numerics[shape_key(shape)],
        ).configs  # fmt: skip
    return replace(planned, plan=Plan(tuple(configs), group(configs), planned.plan.notes))


def judge(plan: Plan, store: Store) -> Transfer:
    """What the results in the folder say."""
    results = store.results()[0]
    losses = {run_id: (result.status, result.row.get("loss")) for run_id, result in results.items()}
    return analyse(plan.configs, losses)
