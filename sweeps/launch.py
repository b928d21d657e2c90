"""From a grid.toml to a finished folder: plan, take the folder, run, and say how it ended. Torch-free."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from scaling.errors import SweepError
from sweeps import durable, leases, native
from sweeps.executors import EXECUTORS, Executor
from sweeps.grid import Grid, read_grid
from sweeps.plan import Numerics, Plan, plan, task_flops
from sweeps.probe import Machine, probe, shape_key
from sweeps.runner import Runner, State, Summary
from sweeps.store import Store
from sweeps.tracking import Tracking
from sweeps.worker import TRAIN, Job, describe

SWEEP_LEASE = "sweep"
JOIN_SECONDS = 60.0  # for the sweep that is joined to choose its numerics


@dataclass(frozen=True)
class Planned:
    """A plan, with the machine's answers behind it and the corpus's number of training tokens."""

    grid: Grid
    plan: Plan
    machine: Machine
    unique_tokens: int


def prepare(
    grid: Grid, store: Store, *, train: str = TRAIN, choose_seconds: float = 2.0, speed_seconds: float = 0.0
) -> Planned:
    """Load the corpus, settle the numerics (those recorded in the folder first) and resolve every run."""
    from sweeps.corpus import load_corpus

    corpus = load_corpus(grid.corpus)
    recorded = read_numerics(store)
    machine = _settled(grid, recorded) if not speed_seconds else None
    if machine is None:
        device, known = recorded or (grid.device, {})
        asked = grid if grid.device or device is None else _with_device(grid, device)
        machine = probe(
            asked, corpus=grid.corpus, corpus_hash=corpus.hash, known=known, train=train,
            choose_seconds=choose_seconds, speed_seconds=speed_seconds,
        )  # fmt: skip
    resolved = plan(
        grid, corpus=grid.corpus, corpus_hash=corpus.hash, device=machine.device,
        numerics=lambda shape: machine.numerics[shape_key(shape)],
    )  # fmt: skip
    resolved = replace(resolved, notes=(*machine.notes, *resolved.notes))
    return Planned(grid, resolved, machine, corpus.unique_tokens)


def launch(
    grid_file: str | Path,
    out: str | Path,
    *,
    executor: str = "local",
    workers: int | None = None,
    join: bool = False,
    train: str = TRAIN,
    slurm_setup: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_change: Callable[[State], None] = lambda state: None,
    on_event: Callable[[str], None] = lambda line: None,
) -> Summary:
    """Train every run of a grid that has no result yet, into the folder `out`.

    Raises SweepError when the grid is at fault, or when another sweep holds the folder and `join` was not asked for.
    """
    grid = read_grid(grid_file)
    store = Store(out)
    durable.make_folder(store.folder)
    with hold_folder(store, join):
        if join:
            _await_numerics(grid, store)
        else:
            _clear_stop(store)
            store.tidy_top()
        planned = prepare(grid, store, train=train)
        if executor == "local" and train == TRAIN and any(c.attention == "native" for c in planned.plan.configs):
            native.library()  # here, so that what is missing is said once and not by every run
        if not join:
            record_numerics(store, planned.machine)
            _write_plan(store, Path(grid_file), planned.plan)
        results, problems = store.results()
        for line in (*planned.plan.notes, *problems):
            on_event(line)
        if not join and (kept := store.keep_other_rows(results)) is not None:
            on_event(f"{store.runs_csv} held rows that are not of the runs in this folder; it is kept as {kept.name}.")
        tracking = Tracking(grid.track, store, on_event)
        engine = make_executor(executor, planned, store, workers=workers, train=train, slurm_setup=slurm_setup)
        runner = Runner(
            planned.plan.tasks,
            store,
            engine,
            retries=grid.retries,
            should_stop=lambda: should_stop() or store.stop_file.exists(),
            on_change=_both(on_change, lambda state: tracking.send(list(state.results.values()))),
            on_event=on_event,
            results=results,
        )
        summary = runner.run()
        tracking.send(runner.state.results.values())
        return summary


def _both(first: Callable[[State], None], second: Callable[[State], None]) -> Callable[[State], None]:
    def call(state: State) -> None:
        first(state)
        second(state)

    return call


def make_executor(
    name: str, planned: Planned, store: Store, *, workers: int | None, train: str, slurm_setup: str | None = None
) -> Executor:
    """The engine by its name, from the grid's settings and the command's."""
    grid, machine = planned.grid, planned.machine
    job = Job(str(store.folder), train, grid.checkpoint_seconds)
    if name == "local":
        from sweeps.executors.local import LocalExecutor

        count = workers or grid.workers or default_workers(grid, planned)
        return LocalExecutor(job, min(count, max(1, len(planned.plan.tasks))), gpus=machine.gpus)
    if name == "slurm":
        from sweeps.executors.slurm import SlurmExecutor

        return SlurmExecutor(job, grid.slurm, store, setup=slurm_setup)
    if name == "ray":
        from sweeps.executors.ray import RayExecutor

        return RayExecutor(job, grid.ray, retries=grid.retries)
    raise SweepError(f'unknown executor "{name}". Known: {", ".join(EXECUTORS)}.')


def default_workers(grid: Grid, planned: Planned) -> int:
    """One process a core; on GPUs `runs_per_device` each: by default one for models of 50M parameters and more, else
    up to eight, since a small model cannot fill a GPU."""
    cores = available_cores()
    gpus = planned.machine.gpus
    if not gpus:
        return cores
    largest = max(config.params for config in planned.plan.configs)
    packed = grid.runs_per_device or (1 if largest >= 50e6 else max(1, min(8, cores // gpus)))
    return gpus * packed


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def request_stop(out: str | Path, *, wait_seconds: float = 130.0) -> str:
    """Ask the sweep of a folder, and its workers on any machine, to save checkpoints and end. Returns what happened."""
    store = Store(out)
    if not store.folder.is_dir():
        raise SweepError(f"{store.folder}: there is no such sweep.")
    durable.replace(store.stop_file, f"{time.time()}\n".encode())
    cancelled = _cancel_jobs(store)
    holder = leases.owner(store.folder, SWEEP_LEASE)
    deadline = time.monotonic() + wait_seconds
    while leases.owner(store.folder, SWEEP_LEASE) is not None:
        if time.monotonic() > deadline:
            return f"asked {describe(holder)} to stop; it is still saving its checkpoints."
        time.sleep(0.2)
    if holder is None and not cancelled:
        return "no sweep is running there."
    stopped = [describe(holder)] if holder else []
    return "stopped " + " and ".join(stopped + ([f"Slurm jobs {', '.join(cancelled)}"] if cancelled else [])) + "."


def _cancel_jobs(store: Store) -> list[str]:
    if not (store.folder / "slurm").is_dir():
        return []
    from sweeps.executors.slurm import cancel_jobs

    return cancel_jobs(store)


class hold_folder:
    """The folder's own lease for as long as a sweep lasts; joiners go without."""

    def __init__(self, store: Store, join: bool):
        self._store, self._join, self._lease = store, join, None

    def __enter__(self) -> None:
        if self._join:
            return
        self._lease = leases.acquire(self._store.folder, SWEEP_LEASE)
        if self._lease is None:
            holder = describe(leases.owner(self._store.folder, SWEEP_LEASE))
            raise SweepError(
                f"{self._store.folder}: another sweep is writing into this folder: {holder}. Wait for it, stop it with "
                f"scale sweep --stop --out {self._store.folder}, or help it with --join."
            )

    def __exit__(self, *exception) -> None:
        if self._lease is not None:
            self._lease.release()


def _clear_stop(store: Store) -> None:
    try:
        store.stop_file.unlink(missing_ok=True)
    except OSError as error:
        raise durable.storage_error(store.stop_file, error) from error


def _write_plan(store: Store, grid_file: Path, plan: Plan) -> None:
    durable.replace(store.folder / "grid.toml", grid_file.read_bytes())
    content = {
        "tasks": [
            {"trunk": task.trunk, "flops": task_flops(task.configs), "runs": [config.run_id for config in task.configs]}
            for task in plan.tasks
        ]
    }
    durable.replace(store.plan_file, json.dumps(content).encode())


# Numerics are part of a run's identity: chosen once for a folder, and written down


def read_numerics(store: Store) -> tuple[str, dict[str, Numerics]] | None:
    """The device and the numerics recorded in a folder, or None. Raises SweepError when the record is damaged."""
    path = store.folder / "numerics.json"
    try:
        data = json.loads(path.read_bytes())
        shapes = {key: Numerics(dtype, attention) for key, (dtype, attention) in data["shapes"].items()}
        return str(data["device"]), shapes
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SweepError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SweepError(
            f"{path}: is damaged ({error}). Name device, dtype and attention in grid.toml as in runs.csv, or remove "
            "it: they are then chosen anew, which makes new runs."
        ) from error


def record_numerics(store: Store, machine: Machine) -> None:
    recorded = read_numerics(store)
    shapes = {**machine.numerics, **(recorded[1] if recorded else {})}
    content = {"device": machine.device, "shapes": {key: [n.dtype, n.attention] for key, n in sorted(shapes.items())}}
    durable.replace(store.folder / "numerics.json", json.dumps(content, indent=1).encode())


def _settled(grid: Grid, recorded: tuple[str, dict[str, Numerics]] | None) -> Machine | None:
    """The numerics, when nothing has to be asked of the machine: all named in the grid, or all recorded."""
    device, known = recorded or (None, {})
    device = grid.device or device
    if device is None:
        return None
    chosen = {}
    for shape in grid.shapes:
        past = known.get(shape_key(shape))
        dtype = grid.dtype or (past.dtype if past else None)
        attention = grid.attention or (past.attention if past else None)
        if dtype is None or attention is None:
            return None
        chosen[shape_key(shape)] = Numerics(dtype, attention)
    return Machine(device, _visible_gpus() if device == "cuda" else 0, chosen)


def _visible_gpus() -> int:
    """How many GPUs there are, without torch: what CUDA_VISIBLE_DEVICES names, else NVIDIA's device files."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([name for name in named.split(",") if name.strip()])
    return len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()])


def _with_device(grid: Grid, device: str) -> Grid:
    from dataclasses import replace

    return replace(grid, device=device)


def _await_numerics(grid: Grid, store: Store) -> None:
    """Whoever joins a sweep uses its choice, and waits a while for it to be made."""
    deadline = time.monotonic() + JOIN_SECONDS
    while _settled(grid, read_numerics(store)) is None and leases.owner(store.folder, SWEEP_LEASE) is not None:
        if time.monotonic() > deadline:
            raise SweepError(f"{store.folder}: the sweep there has not begun after {JOIN_SECONDS:.0f} seconds.")
        time.sleep(0.2)
