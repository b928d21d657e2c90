"""How a sweep shows itself while it runs."""

import io
import time

import pytest
from rich.console import Console

from scaling.accounting import Shape
from sweeps.cli.progress import SHOWN_TRUNKS, Estimate, LiveTable, PlainLines, format_seconds, headline, share_of
from sweeps.plan import group, task_flops
from sweeps.recipe import Recipe, resolve
from sweeps.runner import State
from sweeps.store import Result, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "sweep")


@pytest.fixture
def state():
    """Two equal trunks: one done in the last hundred seconds, one running."""
    shape = Shape(d_model=16, n_layers=2, n_heads=1, vocab_size=256, context=32)
    recipe = Recipe(batch_tokens=64)
    configs = [resolve(shape, 64000, corpus="c", corpus_hash="0", recipe=recipe, seed=seed) for seed in (0, 1)]
    tasks = group(configs)
    result = Result(configs[0].run_id, "done", None, {"loss": 2.0})
    state = State(2, {result.run_id: result}, {tasks[1].trunk: tasks[1]})
    state.flops_total = sum(task_flops(task.configs) for task in tasks)
    state.flops_done = state.flops_total / 2
    state.started = time.monotonic() - 100
    return state


def running(state):
    return next(iter(state.running))


def test_the_time_left_follows_from_what_was_done_since_the_start(store, state):
    estimate = Estimate(store)
    share, eta = estimate.share_and_eta(state, estimate.running(state))
    assert share == pytest.approx(0.5) and eta == pytest.approx(100, rel=0.05)
    store.write_progress(running(state), {"tokens_done": 32000, "tokens_total": 64000, "loss": 3.0})
    share, eta = estimate.share_and_eta(state, estimate.running(state))
    assert share == pytest.approx(0.75) and eta == pytest.approx(100 / 3, rel=0.05)


def test_what_was_done_before_this_sweep_is_not_its_speed(store, state):
    state.flops_resumed = state.flops_done
    estimate = Estimate(store)
    assert estimate.share_and_eta(state, estimate.running(state)) == (pytest.approx(0.5), None)
    store.write_progress(running(state), {"tokens_done": 6400, "tokens_total": 64000, "loss": 3.0})
    share, eta = estimate.share_and_eta(state, estimate.running(state))
    assert share == pytest.approx(0.55) and eta == pytest.approx(900, rel=0.05)


def test_the_headline_tells_counts_and_time(state):
    state.results["x"] = Result("x", "failed", "why", {})
    state.elsewhere["t"] = "process 1"
    text = headline(state, 0.25, 125.0)
    assert text == "1/2 done, 1 failed, 1 trunks held by others, 25% of the FLOPs, 2 min left"
    state.stopping = True
    assert headline(state, 0.25, None).endswith("stopping")


def test_the_live_table_draws_what_runs_and_the_whole(store, state):
    store.write_progress(running(state), {"tokens_done": 16000, "tokens_total": 64000, "loss": 3.25})
    out = io.StringIO()
    Console(file=out, width=110).print(LiveTable(store)._render(state))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    for word in ("d16L2-s", "N 15K", "1 run", "25%", "loss 3.250"):
        assert word in lines[0], lines
    assert "1/2 done" in lines[1] and "left" in lines[1]


def test_a_queue_of_many_is_cut_short(store, state):
    (task,) = state.running.values()
    state.running = {f"trunk-{i}": task for i in range(SHOWN_TRUNKS + 5)}
    out = io.StringIO()
    Console(file=out, width=110).print(LiveTable(store)._render(state))
    assert "and 5 more, running or queued" in out.getvalue()
    assert len(out.getvalue().splitlines()) == SHOWN_TRUNKS + 2


def test_plain_lines_go_to_standard_error(store, state, capsys):
    with PlainLines(store) as display:
        display.event("a: done, loss 2.0")
        display.change(state)
        display._due = 0.0
        display.change(state)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == "a: done, loss 2.0"
    assert captured.err.splitlines()[1].startswith("1/2 done, 50% of the FLOPs")


def test_shares_and_durations():
    assert share_of({}) == 0.0 and share_of({"tokens_done": 3, "tokens_total": 2}) == 1.0
    assert [format_seconds(s) for s in (0.04, 5, 60, 600, 8000, 400_000, None)] == [
        "0.0 s", "5.0 s", "60 s", "10 min", "2.2 h", "4.6 days", "unknown",
    ]  # fmt: skip
