"""Ray: one remote task for each trunk, retried by Ray when its node or process dies, on a cluster that exists already
or on a local one. The folder must be visible from every node under the same path."""

import os
import time
from typing import Any

from scaling.errors import SweepError
from sweeps import durable
from sweeps.config import RunConfig
from sweeps.executors import Ended, Task
from sweeps.grid import RaySettings
from sweeps.store import Store
from sweeps.worker import Ending, Job, StopRequest, reset_peak_memory, run_when_free

QUEUE = 1000  # tasks handed to Ray at once; it schedules them onto what is free


class RayExecutor:
    """Submits tasks to Ray. `max_retries` is Ray's own, for nodes and processes that die; an attempt that fails
    otherwise comes back to the runner."""

    def __init__(self, job: Job, settings: RaySettings, *, retries: int):
        self._ray = _import_ray()
        if not self._ray.is_initialized():
            self._connect(settings.address)
        self._job = Job(os.path.abspath(job.folder), job.train, job.checkpoint_seconds)
        options = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "max_retries": retries}
        self._remote = self._ray.remote(**options)(train_task)
        self._running: dict[Any, str] = {}  # object reference: trunk

    def free(self) -> int:
        return QUEUE - len(self._running)

    def submit(self, task: Task) -> None:
        configs = [config.to_dict() for config in task.configs]
        reference = self._remote.remote(self._job, task.trunk, configs, os.getcwd())
        self._running[reference] = task.trunk

    def poll(self, timeout: float) -> list[Ended]:
        if not self._running:
            time.sleep(timeout)
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        return [self._ended(reference) for reference in ready]

    def stop(self) -> None:
        """Running tasks see the stop file and save a checkpoint; those that wait are taken back."""
        durable.replace(Store(self._job.folder).stop_file, f"{time.time()}\n".encode())

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()

    def _connect(self, address: str | None) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SweepError(f"executor ray: no cluster at {address}: {error}") from error

    def _ended(self, reference: Any) -> Ended:
        trunk = self._running.pop(reference)
        try:
            ending, reason = self._ray.get(reference)
            return Ended(trunk, Ending(ending), reason)
        except self._ray.exceptions.RayError as error:
            return Ended(trunk, Ending.FAILED, f"its Ray task died: {type(error).__name__}: {str(error).strip()[:300]}")


def train_task(job: Job, trunk: str, configs: list[dict], folder: str) -> tuple[str, str]:
    """What runs on the cluster: the same attempt as everywhere, waiting for a lease that its dead predecessor holds."""
    os.chdir(folder)  # a corpus may be named by a relative path
    reset_peak_memory()
    stop = StopRequest(Store(job.folder))
    if stop():
        return Ending.INTERRUPTED.value, "stopped before it began"
    ending, reason = run_when_free(job, trunk, [RunConfig.from_dict(data) for data in configs], stop)
    return ending.value, reason


def _import_ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise SweepError("executor ray needs ray, which is not installed: pip install 'isoflop[ray]'") from error
    return ray
