"""The loop that keeps an executor busy: longest first, resume by default, failures retried, results gathered.

It knows nothing of training: tasks go to an executor, endings come back, and results are read from the store.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sweeps import durable
from sweeps.executors import Ended, Executor, Task
from sweeps.plan import task_flops
from sweeps.store import FINAL, Result, Store
from sweeps.worker import Ending

TICK_SECONDS = 0.5
LOCKED_SECONDS = 1.0  # before a trunk that another process holds is tried again
TABLE_SHARE = 0.05  # of the time at most goes into rewriting runs.csv
STOP_SECONDS = 120.0  # for running tasks to save their checkpoints


@dataclass
class State:
    """Where a sweep stands; what a display shows."""

    runs: int
    results: dict[str, Result]
    running: dict[str, Task] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)  # trunks that other processes hold, and who
    flops_total: float = 0.0
    flops_done: float = 0.0  # of the tasks' costs, finished ones
    flops_resumed: float = 0.0  # of those, finished before this sweep began
    started: float = field(default_factory=time.monotonic)
    stopping: bool = False

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.results.values())


@dataclass(frozen=True)
class Summary:
    """How a sweep ended."""

    done: int
    diverged: int
    failed: int
    missing: int
    stopped: bool
    storage_problem: str | None
    failures: tuple[Result, ...]
    seconds: float


class Runner:
    """Runs tasks through an executor until every run has a result, or until it is asked to stop."""

    def __init__(
        self,
        tasks: Iterable[Task],
        store: Store,
        executor: Executor,
        *,
        retries: int = 2,
        should_stop: Callable[[], bool] = lambda: False,
        on_change: Callable[[State], None] = lambda state: None,
        on_event: Callable[[str], None] = lambda line: None,
        results: dict[str, Result] | None = None,
        tick: float = TICK_SECONDS,
    ):
        self._tasks = {task.trunk: task for task in tasks}
        self._store, self._executor, self._retries = store, executor, retries
        self._should_stop, self._on_change, self._on_event, self._tick = should_stop, on_change, on_event, tick
        self._all = results if results is not None else store.results()[0]
        self._cost = {trunk: task_flops(task.configs) for trunk, task in self._tasks.items()}
        self._queue = deque(task for task in self._tasks.values() if self._missing(task))
        self._locked: dict[str, float] = {}  # trunk: when to try again
        self._failures: dict[str, int] = {}
        self._marks: dict[str, tuple] = {}  # how far a trunk was when its attempt began
        self._storage_problem: str | None = None
        self._table_due, self._table_stale = 0.0, True
        self._stop_deadline = float("inf")
        for task in self._tasks.values():
            if not self._missing(task):
                store.clear_trunk(task.trunk)
        wanted = {config.run_id for task in self._tasks.values() for config in task.configs}
        self.state = State(len(wanted), {run_id: r for run_id, r in self._all.items() if run_id in wanted})
        self.state.flops_total = sum(self._cost.values())
        self.state.flops_done = self.state.flops_resumed = self.state.flops_total - sum(
            self._cost[task.trunk] for task in self._queue
        )

    def run(self) -> Summary:
        """Raises nothing of its own; a disk that cannot be written ends the sweep and is told in the summary."""
        try:
            while self._step():
                pass
        finally:
            self._executor.close()
        try:
            self._gather_all()
            self._write_table()
        except durable.StorageError as error:
            self._storage_problem = self._storage_problem or str(error)
        return self._summary()

    def _step(self) -> bool:
        self._heed_stop()
        if not self.state.stopping:
            self._submit_ready()
        if not self.state.running and (self.state.stopping or not (self._queue or self._locked)):
            return False
        if time.monotonic() > self._stop_deadline:
            return False
        for ended in self._executor.poll(self._tick if self.state.running else min(self._tick, 0.2)):
            self._handle(ended)
        self._on_change(self.state)
        self._write_table_if_due()
        return True

    def _heed_stop(self) -> None:
        if not self.state.stopping and (self._storage_problem or self._should_stop()):
            self.state.stopping = True
            self._stop_deadline = time.monotonic() + STOP_SECONDS
            self._executor.stop()

    def _submit_ready(self) -> None:
        now = time.monotonic()
        for trunk, due in list(self._locked.items()):
            if due <= now:
                del self._locked[trunk]
                self._gather(self._tasks[trunk])
                self._queue.append(self._tasks[trunk])
        while self._queue and self._executor.free() > 0:
            task = self._queue.popleft()
            if not self._missing(task):
                self._finish(task)
                continue
            self._marks[task.trunk] = self._mark(task)
            self.state.running[task.trunk] = task
            self._executor.submit(task)

    def _handle(self, ended: Ended) -> None:
        task = self.state.running.pop(ended.trunk)
        self.state.elsewhere.pop(ended.trunk, None)
        self._gather(task)
        handler = {
            Ending.DONE: self._done,
            Ending.INTERRUPTED: self._interrupted,
            Ending.LOCKED: self._held_elsewhere,
            Ending.STORAGE: self._storage,
            Ending.FAILED: self._failed,
            Ending.CANCELLED: self._cancelled,
            Ending.REFUSED: self._refused,
        }[ended.ending]
        handler(task, ended.reason)

    def _done(self, task: Task, reason: str) -> None:
        if self._missing(task):
            self._failed(task, "it ended without all its results")
        else:
            self._finish(task)

    def _interrupted(self, task: Task, reason: str) -> None:
        if self.state.stopping:
            self._on_event(f"{task.trunk}: {reason}")
        self._queue.append(task)

    def _cancelled(self, task: Task, reason: str) -> None:
        self._on_event(f"{task.trunk}: {reason}; it goes on from its checkpoint with the next sweep.")

    def _held_elsewhere(self, task: Task, reason: str) -> None:
        self.state.elsewhere[task.trunk] = reason
        self._locked[task.trunk] = time.monotonic() + LOCKED_SECONDS

    def _storage(self, task: Task, reason: str) -> None:
        self._storage_problem = reason
        self._queue.append(task)

    def _refused(self, task: Task, reason: str) -> None:
        self._give_up(task, reason)

    def _failed(self, task: Task, reason: str) -> None:
        """Another attempt, unless this one and as many before it as are allowed got nowhere."""
        got_somewhere = self._mark(task) != self._marks.get(task.trunk)
        self._failures[task.trunk] = 0 if got_somewhere else self._failures.get(task.trunk, 0) + 1
        attempts = self._failures[task.trunk]
        if attempts > self._retries:
            self._give_up(task, f"{reason} (attempt {attempts} of {self._retries + 1} without progress)")
            return
        self._on_event(f"{task.trunk}: {reason}; trying again from its checkpoint.")
        self._queue.appendleft(task)

    def _give_up(self, task: Task, reason: str) -> None:
        try:
            for config in self._missing(task):
                self._store.write_result(config, "failed", reason=reason)
        except durable.StorageError as error:
            self._storage(task, str(error))
            return
        self._gather(task)
        self._on_event(f"{task.trunk}: failed: {reason}")
        self._finish(task)

    def _finish(self, task: Task) -> None:
        if not self._missing(task):
            self._store.clear_trunk(task.trunk)
        self.state.flops_done += self._cost[task.trunk]

    def _missing(self, task: Task) -> list:
        return [c for c in task.configs if (r := self._all.get(c.run_id)) is None or r.status not in FINAL]

    def _mark(self, task: Task) -> tuple:
        """Changes whenever a trunk gets further: its results, and its newest checkpoint."""
        folder = self._store.trunk_folder(task.trunk)
        names = os.listdir(folder) if folder.is_dir() else []
        newest = max((name for name in names if name.startswith("checkpoint-") and name.endswith(".pt")), default="")
        return len(self._missing(task)), newest

    def _gather(self, task: Task) -> None:
        for config in self._missing(task):
            result = self._store.result(config.run_id)
            if result is not None and result != self._all.get(config.run_id):
                self._all[config.run_id] = self.state.results[config.run_id] = result
                self._table_stale = True
                self._on_event(describe_result(result))

    def _gather_all(self) -> None:
        """What other processes have written since, so that the last to end leaves a table of everything."""
        for task in self._tasks.values():
            if self._missing(task):
                self._gather(task)

    def _write_table_if_due(self) -> None:
        """After every change, as long as writing stays a small share of the time."""
        if not self._table_stale or time.monotonic() < self._table_due:
            return
        try:
            self._write_table()
        except durable.StorageError as error:
            self._storage_problem = str(error)

    def _write_table(self) -> None:
        begun = time.monotonic()
        self._store.write_table(self._all)
        self._table_stale = False
        self._table_due = time.monotonic() + (time.monotonic() - begun) / TABLE_SHARE

    def _summary(self) -> Summary:
        state = self.state
        failures = tuple(result for result in state.results.values() if result.status == "failed")
        done, diverged = state.count("done"), state.count("diverged")
        return Summary(
            done=done,
            diverged=diverged,
            failed=len(failures),
            missing=state.runs - done - diverged - len(failures),
            stopped=state.stopping,
            storage_problem=self._storage_problem,
            failures=failures,
            seconds=time.monotonic() - state.started,
        )


def describe_result(result: Result) -> str:
    """One finished run in a line."""
    row = result.row
    head = f"{result.run_id}: {result.status}"
    if result.status == "done":
        return f"{head}, loss {row['loss']:.4f}"
    return f"{head}: {result.reason}"
