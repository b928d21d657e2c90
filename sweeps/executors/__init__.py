"""Where tasks are executed. One task is one trunk with its branches; the engine schedules and, where it can, retries.

Everything that matters is in the run folders: an executor only starts attempts and says which have ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sweeps.config import RunConfig
from sweeps.worker import Ending


@dataclass(frozen=True)
class Task:
    """A trunk and the runs that are to come out of it."""

    trunk: str
    configs: tuple[RunConfig, ...]


@dataclass(frozen=True)
class Ended:
    """An attempt at a task has ended."""

    trunk: str
    ending: Ending
    reason: str = ""


class Executor(Protocol):
    """One engine. The runner offers tasks while `free()` is above zero and polls for endings."""

    def free(self) -> int:
        """How many more tasks can be submitted now."""

    def submit(self, task: Task) -> None:
        """Begin an attempt at a task."""

    def poll(self, timeout: float) -> Sequence[Ended]:
        """Attempts that have ended, waiting at most `timeout` seconds for the first."""

    def stop(self) -> None:
        """Ask what is running to save a checkpoint and end; `poll` reports it."""

    def close(self) -> None:
        """Give everything back; what still runs is killed, and goes on from its checkpoint another time."""


EXECUTORS = ("local", "slurm", "ray")
