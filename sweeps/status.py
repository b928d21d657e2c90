"""Where a sweep stands, read from its folder: finished runs, trunks being trained, what is left. Torch-free."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from scaling.errors import SweepError
from sweeps import durable, leases
from sweeps.store import FINAL, Result, Store
from sweeps.worker import describe


@dataclass(frozen=True)
class Running:
    """A trunk that a process holds."""

    trunk: str
    owner: str
    share: float  # of its tokens
    loss: float | None
    silent_seconds: float | None  # since its last progress


@dataclass(frozen=True)
class Status:
    """Everything that `scale status` tells."""

    folder: str
    counts: dict[str, int]
    flops_total: float
    flops_done: float
    seconds_left: float | None
    holder: str | None
    running: tuple[Running, ...]
    failed: tuple[tuple[str, str, str], ...]  # run_id, status, reason
    problems: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.flops_done / self.flops_total if self.flops_total else 0.0

    def to_dict(self) -> dict:
        data = asdict(self)
        data["failed"] = [dict(zip(("run_id", "status", "reason"), item, strict=True)) for item in self.failed]
        return data


def read_status(folder: str | Path) -> Status:
    """Raises SweepError when the folder holds no sweep."""
    store = Store(folder)
    plan = durable.read_json(store.plan_file)
    if not isinstance(plan, dict) or not isinstance(plan.get("tasks"), list):
        raise SweepError(f"{store.folder}: no sweep was begun here (there is no readable plan.json).")
    tasks = [task for task in plan["tasks"] if _is_task(task)]
    results, problems = store.results()
    wanted = {run_id for task in tasks for run_id in task["runs"]}
    running = tuple(r for task in tasks if (r := _running(store, task, results)) is not None)
    holder = leases.owner(store.folder, "sweep")
    done, total = _flops(tasks, results, running)
    return Status(
        folder=str(store.folder),
        counts=_counts(tasks, results, running),
        flops_total=total,
        flops_done=done,
        seconds_left=_seconds_left(store, tasks, results, running, total - done),
        holder=describe(holder) if holder else None,
        running=running,
        failed=tuple(
            (result.run_id, result.status, result.reason or "")
            for result in results.values()
            if result.run_id in wanted and result.status != "done"
        ),
        problems=tuple(problems),
    )


def _is_task(task: object) -> bool:
    return (
        isinstance(task, dict)
        and isinstance(task.get("trunk"), str)
        and isinstance(task.get("flops"), int | float)
        and isinstance(task.get("runs"), list)
        and all(isinstance(run_id, str) for run_id in task["runs"])
    )


def _missing(task: dict, results: dict[str, Result]) -> list[str]:
    return [run_id for run_id in task["runs"] if (r := results.get(run_id)) is None or r.status not in FINAL]


def _running(store: Store, task: dict, results: dict[str, Result]) -> Running | None:
    if not _missing(task, results):
        return None
    folder = store.trunk_folder(task["trunk"])
    owner = leases.owner(folder)
    if owner is None:
        return None
    progress = store.progress(task["trunk"]) or {}
    total = progress.get("tokens_total") or 0
    return Running(
        trunk=task["trunk"],
        owner=describe(owner),
        share=min(1.0, progress.get("tokens_done", 0) / total) if total else 0.0,
        loss=progress.get("loss"),
        silent_seconds=time.time() - progress["time"] if "time" in progress else None,
    )


def _counts(tasks: list[dict], results: dict[str, Result], running: tuple[Running, ...]) -> dict[str, int]:
    held = {r.trunk for r in running}
    counts = dict.fromkeys(("done", "diverged", "failed", "running", "waiting"), 0)
    for task in tasks:
        for run_id in task["runs"]:
            result = results.get(run_id)
            if result is not None and (result.status in FINAL or task["trunk"] not in held):
                counts[result.status] += 1
            else:
                counts["running" if task["trunk"] in held else "waiting"] += 1
    return counts


def _flops(tasks: list[dict], results: dict[str, Result], running: tuple[Running, ...]) -> tuple[float, float]:
    """(done, total): a finished trunk counts whole, one that is being trained by its share."""
    shares = {r.trunk: r.share for r in running}
    done = sum(t["flops"] * (1.0 if not _missing(t, results) else shares.get(t["trunk"], 0.0)) for t in tasks)
    return done, sum(task["flops"] for task in tasks)


def _seconds_left(
    store: Store, tasks: list[dict], results: dict[str, Result], running: tuple[Running, ...], left: float
) -> float | None:
    """From the FLOPs of running trunks and the time since each was taken up; None when nothing runs."""
    rate = 0.0
    costs = {task["trunk"]: task["flops"] for task in tasks}
    for r in running:
        begun = next((e for e in reversed(store.attempts(r.trunk)) if e.get("event") == "started"), None)
        progress = store.progress(r.trunk) or {}
        seconds = progress.get("time", 0) - _epoch(begun)
        if begun is not None and seconds > 1 and r.share > 0:
            rate += r.share * costs[r.trunk] / seconds
    return left / rate if rate > 0 and left > 0 else None


def _epoch(event: dict | None) -> float:
    import calendar

    try:
        return calendar.timegm(time.strptime((event or {}).get("time", ""), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return 0.0
