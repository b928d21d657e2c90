"""From a grid to runs: every configuration resolved, grouped by trunk, longest first. Torch-free."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scaling.accounting import Shape, count_parameters, flops_per_token
from scaling.errors import SweepError
from sweeps.config import RunConfig
from sweeps.executors import Task
from sweeps.grid import Grid
from sweeps.recipe import resolve, steps_trained


@dataclass(frozen=True)
class Numerics:
    """How a shape is computed: chosen by timing, or named in the grid; part of a run's identity."""

    dtype: str
    attention: str


@dataclass(frozen=True)
class Plan:
    """Every run of a grid, and the tasks that train them, longest first."""

    configs: tuple[RunConfig, ...]
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> float:
        """Training FLOPs that the tasks cost, a shared trunk counted once."""
        return sum(task_flops(task.configs) for task in self.tasks)

    @property
    def flops_apart(self) -> float:
        """What the same runs would cost if each were trained from the start."""
        return sum(task_flops((config,)) for config in self.configs)


def plan(grid: Grid, *, corpus: str, corpus_hash: str, device: str, numerics: Callable[[Shape], Numerics]) -> Plan:
    """Resolve every run of a grid.

    Raises SweepError when a token count is below one batch, naming it.
    """
    try:
        return _plan(grid, corpus, corpus_hash, device, numerics)
    except SweepError as error:
        text = str(error).removeprefix("recipe: ")
        raise SweepError(text if text.startswith(grid.where) else f"{grid.where}: {text}") from error


def _plan(grid: Grid, corpus: str, corpus_hash: str, device: str, numerics: Callable[[Shape], Numerics]) -> Plan:
    recipe = grid.recipe()
    configs: dict[str, RunConfig] = {}
    notes = list(grid.notes)
    for shape in grid.shapes:
        chosen = numerics(shape)
        for tokens in _token_counts(grid, shape):
            batch = recipe.batch_of(tokens, shape.context)
            _check_length(grid, shape, tokens, batch)
            tokens = max(1, round(tokens / batch)) * batch  # one identity
            for seed in grid.seeds:
                config = resolve(
                    shape, tokens, corpus=corpus, corpus_hash=corpus_hash, recipe=recipe, seed=seed,
                    data_seed=grid.data_seed, dtype=chosen.dtype, attention=chosen.attention, device=device,
                )  # fmt: skip
                configs.setdefault(config.run_id, config)
    merged = len(grid.shapes) * len(grid.tokens or grid.budgets) * len(grid.seeds) - len(configs)
    if merged:
        notes.append(f"{merged} runs have the same number of steps as another and are trained once.")
    tasks = group(configs.values())
    return Plan(tuple(configs.values()), tasks, (*notes, *_apart(tasks)))


def _apart(tasks: Iterable[Task]) -> Iterable[str]:
    """Why runs that differ in tokens alone do not all share a trunk: their warm-up or batch differs."""
    columns: dict[tuple, list[RunConfig]] = {}
    for task in tasks:
        if task.configs[0].schedule == "wsd":
            first = task.configs[0]
            columns.setdefault((first.shape(), first.seed, first.dtype, first.attention), []).append(first)
    kinds = {
        frozenset((first.batch_tokens, first.warmup_steps) for first in column)
        for column in columns.values()
        if len(column) > 1
    }
    for kind in sorted(kinds, key=sorted):
        batches, warmups = ({pair[i] for pair in kind} for i in (0, 1))
        if len(warmups) > 1:
            yield (
                f"a warm-up is at most a tenth of its run: runs with {_listed(warmups)} steps of it have trunks of their own."
            )
        if len(batches) > 1:
            yield f"the batch grows with D: runs with {_listed(batches)} tokens a batch have trunks of their own."


def _listed(numbers: Iterable[int]) -> str:
    *others, last = (f"{n:,}" for n in sorted(numbers))
    return f"{', '.join(others)} and {last}"


def group(configs: Iterable[RunConfig]) -> tuple[Task, ...]:
    """Tasks of runs that share a trunk, the costliest first; ties in the order of their names."""
    columns: dict[str, list[RunConfig]] = {}
    for config in configs:
        columns.setdefault(config.trunk_key, []).append(config)
    tasks = [Task(trunk, tuple(sorted(column, key=lambda c: c.tokens))) for trunk, column in columns.items()]
    costs = {task.trunk: task_flops(task.configs) for task in tasks}
    return tuple(sorted(tasks, key=lambda task: (-costs[task.trunk], task.trunk)))


def task_flops(configs: Iterable[RunConfig]) -> float:
    """Training FLOPs of runs that share a trunk: the trunk to its last branch point once, and every cooldown; head and
    attention counted."""
    column = list(configs)
    tokens = steps_trained(column) * column[0].batch_tokens
    return tokens * flops_per_token(column[0].shape()).total


def _token_counts(grid: Grid, shape: Shape) -> list[int]:
    if grid.tokens:
        return [round(tokens) for tokens in grid.tokens]
    params = count_parameters(shape).total
    return [round(budget / (6 * params)) for budget in grid.budgets]  # 6 N D = C


def _check_length(grid: Grid, shape: Shape, tokens: int, batch: int) -> None:
    if tokens < batch:
        size = f"d_model {shape.d_model}, {shape.n_layers} layers" if grid.budgets else "every size"
        raise SweepError(
            f"{grid.where}: a run of {tokens:,} tokens ({size}) is below one batch ({batch:,} tokens). "
            f"Raise {'budgets' if grid.budgets else 'tokens'}, or lower batch_tokens."
        )
