"""The runner against an executor that trains nothing: order, resuming, retries, giving up, stopping."""

import os

import pytest

from sweeps import durable
from sweeps.executors import Ended
from sweeps.plan import group, task_flops
from sweeps.runner import Runner
from sweeps.store import Store
from sweeps.worker import Ending


class Script:
    """An executor that ends each attempt as a script says; "done" writes the results."""

    def __init__(self, store, *, slots=1, script=()):
        self.store, self.slots, self.script = store, slots, dict(script)
        self.started, self.waiting, self.stopped, self.closed = [], [], False, False

    def free(self):
        return self.slots - len(self.waiting)

    def submit(self, task):
        self.started.append(task.trunk)
        self.waiting.append(task)

    def poll(self, timeout):
        if not self.waiting:
            return []
        task = self.waiting.pop(0)
        endings = self.script.get(task.trunk) or [Ending.DONE]
        ending = endings.pop(0) if len(endings) > 1 else endings[0]
        if self.stopped:
            ending = Ending.INTERRUPTED
        if callable(ending):
            ending = ending(self.store, task)
        if ending is Ending.DONE:
            train(self.store, task.configs)
        return [Ended(task.trunk, ending, f"{ending.value} as scripted")]

    def stop(self):
        self.stopped = True

    def close(self):
        self.closed = True


def train(store, configs):
    for config in configs:
        store.write_result(config, "done", loss=2.0, loss_se=0.01)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "sweep")


@pytest.fixture
def tasks(make_config):
    """Three trunks of two branches; the lengths are such that warm-up is the same in a trunk."""
    return group(make_config(n, seed=seed) for n in (6400, 12800) for seed in (0, 1, 2))


def run(tasks, store, *, script=(), slots=1, **options):
    executor = Script(store, slots=slots, script=script)
    events = []
    runner = Runner(tasks, store, executor, on_event=events.append, tick=0.0, **options)
    summary = runner.run()
    assert executor.closed
    return summary, executor, events


def test_everything_is_trained_longest_first_and_tabulated(tasks, store):
    summary, executor, events = run(tasks, store)
    assert (summary.done, summary.missing, summary.stopped) == (6, 0, False)
    costs = {task.trunk: task_flops(task.configs) for task in tasks}
    assert [costs[trunk] for trunk in executor.started] == sorted(costs.values(), reverse=True)
    assert len(store.runs_csv.read_text().splitlines()) == 7
    assert sum("done, loss 2.0000" in event for event in events) == 6


def test_what_has_a_result_is_not_trained_again(tasks, store, make_config):
    train(store, tasks[0].configs)
    train(store, tasks[1].configs[:1])
    summary, executor, _ = run(tasks, store)
    assert executor.started == [task.trunk for task in tasks[1:]]
    assert summary.done == 6
    again, executor, _ = run(tasks, store)
    assert executor.started == [] and again.done == 6


def test_a_failed_attempt_is_repeated_at_once_and_others_go_on(tasks, store):
    first = tasks[0].trunk
    summary, executor, events = run(tasks, store, script={first: [Ending.FAILED, Ending.FAILED, Ending.DONE]})
    assert executor.started[:3] == [first] * 3
    assert summary.done == 6
    assert sum("trying again" in event for event in events) == 2


def test_attempts_that_get_nowhere_end_in_failed_rows_with_the_reason(tasks, store):
    first = tasks[0]
    summary, executor, _ = run(tasks, store, script={first.trunk: [Ending.FAILED]}, retries=2)
    assert executor.started.count(first.trunk) == 3
    assert (summary.done, summary.failed, summary.missing) == (4, 2, 0)
    assert "attempt 3 of 3" in summary.failures[0].reason and "as scripted" in summary.failures[0].reason
    again, executor, _ = run(tasks, store)
    assert executor.started == [first.trunk] and again.done == 6


def test_attempts_that_get_further_do_not_count_against_the_limit(tasks, store):
    first = tasks[0]

    def one_more(store, task):
        missing = [config for config in task.configs if store.result(config.run_id) is None]
        train(store, missing[:1])
        return Ending.FAILED

    def checkpoint(store, task):
        folder = durable.make_folder(store.trunk_folder(task.trunk))
        (folder / f"checkpoint-{len(list(folder.iterdir())) + 1:08d}.pt").write_bytes(b"")
        return Ending.FAILED

    script = {first.trunk: [checkpoint, checkpoint, checkpoint, one_more, checkpoint, Ending.DONE]}
    summary, _, _ = run(tasks, store, script=script, retries=0)
    assert summary.done == 6


def test_a_refused_configuration_is_not_tried_twice(tasks, store):
    first = tasks[0]
    summary, executor, _ = run(tasks, store, script={first.trunk: [Ending.REFUSED]}, retries=5)
    assert executor.started.count(first.trunk) == 1 and summary.failed == 2


def test_a_trunk_that_another_process_holds_is_taken_from_its_results(tasks, store):
    first = tasks[0]

    def held(store, task):
        train(store, task.configs)  # the other process finishes it
        return Ending.LOCKED

    summary, executor, _ = run(tasks, store, script={first.trunk: [held]})
    assert executor.started.count(first.trunk) == 1
    assert summary.done == 6


def test_an_ending_without_all_results_counts_as_failed(tasks, store):
    first = tasks[0]
    summary, _, _ = run(tasks, store, script={first.trunk: [lambda s, t: Ending.CANCELLED]}, retries=0)
    assert (summary.done, summary.missing) == (4, 2)


def test_stopping_loses_nothing_and_says_what_is_left(tasks, store):
    calls = iter(range(1000))
    summary, executor, _ = run(tasks, store, should_stop=lambda: next(calls) >= 2)
    assert executor.stopped and summary.stopped
    assert summary.done == 4 and summary.missing == 2
    assert len(store.runs_csv.read_text().splitlines()) == 5
    again, _, _ = run(tasks, store)
    assert again.done == 6


def test_a_disk_that_cannot_be_written_ends_the_sweep_with_its_reason(tasks, store):
    summary, executor, _ = run(tasks, store, script={tasks[1].trunk: [Ending.STORAGE]})
    assert executor.stopped
    assert summary.storage_problem == "storage as scripted"
    assert summary.failed == 0 and summary.missing >= 2


def test_a_fault_in_writing_the_table_is_told_and_repaired_by_the_next_sweep(tasks, store, monkeypatch):
    def fail(stage, path):
        if path.name == "runs.csv" and stage == "rename":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "fault_point", fail)
    summary, _, _ = run(tasks, store)
    assert "no space left" in summary.storage_problem
    monkeypatch.undo()
    again, _, _ = run(tasks, store)
    assert again.done == 6 and len(store.runs_csv.read_text().splitlines()) == 7


def test_what_killed_writers_left_behind_is_removed(tasks, store):
    run(tasks, store)
    folder = durable.make_folder(store.trunk_folder(tasks[0].trunk))
    left = [
        folder / name for name in ("checkpoint-00000001.pt", "checkpoint-00000001.pt.sha256", ".progress.json.1.a.tmp")
    ]
    asked = folder / ".lease.2.77.abc.tmp"  # another process may be at it this moment
    for path in (*left, asked):
        path.write_bytes(b"x")
    os.utime(left[2], (1, 1))
    run(tasks, store)
    assert not any(path.exists() for path in left) and asked.exists()
    os.utime(asked, (1, 1))
    store.tidy(tasks[0].trunk, [])
    assert not asked.exists()


def test_diverged_runs_are_results_like_others(tasks, store):
    store.write_result(tasks[0].configs[0], "diverged", reason="the loss is nan")
    summary, _, _ = run(tasks, store)
    assert (summary.done, summary.diverged) == (5, 1)


def test_several_tasks_are_kept_running(tasks, store):
    most = []
    executor = Script(store, slots=2)
    runner = Runner(tasks, store, executor, on_change=lambda state: most.append(len(state.running)), tick=0.0)
    runner.run()
    assert max(most) == 1 and len(executor.started) == 3  # one of the two has just ended when the state is shown
