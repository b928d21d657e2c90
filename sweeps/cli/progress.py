"""How a sweep shows itself: a live table on a terminal, plain lines elsewhere. Always on standard error."""

import sys
import time
from typing import Protocol

from scaling.quantities import format_quantity
from sweeps.runner import State
from sweeps.store import Store

REFRESH_SECONDS = 0.5
PLAIN_SECONDS = 30.0
SHOWN_TRUNKS = 16


class Display(Protocol):
    def __enter__(self) -> "Display": ...
    def __exit__(self, *exception) -> None: ...
    def change(self, state: State) -> None: ...
    def event(self, line: str) -> None: ...


class Estimate:
    """Work done as a share of the whole, and the time left at the rate since the sweep began."""

    def __init__(self, store: Store):
        self._store = store
        self._begun: dict[str, float] = {}  # share of a trunk that was done when it was first seen

    def running(self, state: State) -> dict[str, dict]:
        """Progress of what runs, by trunk."""
        return {trunk: self._store.progress(trunk) or {} for trunk in state.running}

    def share_and_eta(self, state: State, progress: dict[str, dict]) -> tuple[float, float | None]:
        """(share of the FLOPs done, seconds left or None while nothing can be said)."""
        partial = resumed = 0.0
        for trunk, values in progress.items():
            share = share_of(values)
            self._begun.setdefault(trunk, share if values.get("time", 0) < time.time() - 60 else 0.0)
            cost = _cost(state, trunk)
            partial += share * cost
            resumed += min(share, self._begun[trunk]) * cost
        done = state.flops_done + partial
        gained = done - state.flops_resumed - resumed
        elapsed = time.monotonic() - state.started
        total = state.flops_total or 1.0
        if gained <= 0 or elapsed < 2:
            return min(1.0, done / total), None
        return min(1.0, done / total), max(0.0, (state.flops_total - done) * elapsed / gained)


def share_of(progress: dict) -> float:
    """How far a trunk is, from its progress file."""
    total = progress.get("tokens_total") or 0
    return min(1.0, progress.get("tokens_done", 0) / total) if total else 0.0


def _cost(state: State, trunk: str) -> float:
    from sweeps.plan import task_flops

    return task_flops(state.running[trunk].configs)


def headline(state: State, share: float, eta: float | None) -> str:
    """Where the sweep stands, in a line."""
    parts = [f"{state.count('done')}/{state.runs} done"]
    parts += [f"{n} {status}" for status in ("diverged", "failed") if (n := state.count(status))]
    if state.elsewhere:
        parts.append(f"{len(state.elsewhere)} trunks held by others")
    left = "stopping" if state.stopping else f"{format_seconds(eta)} left" if eta is not None else "estimating"
    return f"{', '.join(parts)}, {share:.0%} of the FLOPs, {left}"


def format_seconds(seconds: float | None) -> str:
    """A duration as people read it."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} days"


class PlainLines:
    """One line for each event, and where the sweep stands every half minute."""

    def __init__(self, store: Store):
        self._estimate, self._due = Estimate(store), time.monotonic() + PLAIN_SECONDS

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, *exception) -> None:
        pass

    def event(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def change(self, state: State) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PLAIN_SECONDS
            self.event(headline(state, *self._estimate.share_and_eta(state, self._estimate.running(state))))


class LiveTable:
    """What runs now, with bars, above one bar for the whole; finished runs scroll by above it."""

    def __init__(self, store: Store):
        from rich.console import Console
        from rich.live import Live

        self._estimate = Estimate(store)
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._due = 0.0

    def __enter__(self) -> "LiveTable":
        self._live.start()
        return self

    def __exit__(self, *exception) -> None:
        self._live.stop()

    def event(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def change(self, state: State) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + REFRESH_SECONDS
            self._live.update(self._render(state))

    def _render(self, state: State):
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self._estimate.running(state)
        share, eta = self._estimate.share_and_eta(state, progress)
        grid = Table.grid(padding=(0, 2), expand=False)
        shown = sorted(state.running, key=lambda trunk: -progress[trunk].get("time", 0.0))[:SHOWN_TRUNKS]
        for trunk in shown:
            task, values = state.running[trunk], progress[trunk]
            size = f"N {format_quantity(task.configs[0].params, digits=3)}"
            loss = f"loss {values['loss']:.3f}" if isinstance(values.get("loss"), float) else "starting"
            runs = f"{len(task.configs)} run{'s' if len(task.configs) > 1 else ''}"
            bar = ProgressBar(total=1.0, completed=share_of(values), width=24)
            grid.add_row(Text(trunk.rpartition("-")[0]), size, runs, bar, f"{share_of(values):4.0%}", loss)
        if len(state.running) > len(shown):
            grid.add_row(f"and {len(state.running) - len(shown)} more, running or queued")
        bar = ProgressBar(total=1.0, completed=share, width=24, complete_style="green")
        outer = Table.grid(padding=(0, 2))
        outer.add_row(bar, headline(state, share, eta))
        whole = Table.grid()
        whole.add_row(grid)
        whole.add_row(outer)
        return whole


def display_for(store: Store) -> Display:
    """A live table on a terminal, plain lines otherwise."""
    return LiveTable(store) if sys.stderr.isatty() else PlainLines(store)
