"""Processes on this machine: one per core, one thread each, kept for many tasks so that torch is imported once."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

from sweeps import durable
from sweeps.executors import Ended, Task
from sweeps.worker import Ending, Job

CLOSE_SECONDS = 10.0
_SINGLE_THREADED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class LocalExecutor:
    """`workers` processes that are fed tasks through pipes. A process that dies ends its attempt with the reason, and
    a new one takes its place. On machines with several GPUs worker i sees GPU i modulo their number."""

    def __init__(self, job: Job, workers: int, *, gpus: int = 0, threads: int = 1):
        self._job, self._gpus, self._threads = job, gpus, threads
        self._selector = selectors.DefaultSelector()
        self._slots: list[_Worker | None] = [None] * workers
        self._stopping = False
        self._log_folder = durable.make_folder(Path(job.folder) / "logs")

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._slots if worker is not None]

    def free(self) -> int:
        return 0 if self._stopping else sum(worker is None or worker.trunk is None for worker in self._slots)

    def submit(self, task: Task) -> None:
        index = next(i for i, worker in enumerate(self._slots) if worker is None or worker.trunk is None)
        worker = self._slots[index] or self._start(index)
        worker.trunk = task.trunk
        message = json.dumps({"trunk": task.trunk, "configs": [config.to_dict() for config in task.configs]}) + "\n"
        with contextlib.suppress(BrokenPipeError):  # it has just died: poll sees the closed pipe
            assert worker.process.stdin is not None
            worker.process.stdin.write(message.encode())
            worker.process.stdin.flush()

    def poll(self, timeout: float) -> list[Ended]:
        ended: list[Ended] = []
        if not self._selector.get_map():
            time.sleep(timeout)
            return ended
        for key, _ in self._selector.select(timeout):
            ended += self._read(key.data)
        return ended

    def stop(self) -> None:
        self._stopping = True
        for worker in self._slots:
            if worker is not None:
                with contextlib.suppress(ProcessLookupError):
                    worker.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Idle workers end when their input closes; after ten seconds whatever is left is killed."""
        workers = [worker for worker in self._slots if worker is not None]
        for worker in workers:
            with contextlib.suppress(OSError):
                assert worker.process.stdin is not None
                worker.process.stdin.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            self._forget(worker)
        self._selector.close()

    def _start(self, index: int) -> "_Worker":
        threads = str(self._threads)
        environment = {**os.environ, **dict.fromkeys(_SINGLE_THREADED, threads), "PYTHONUNBUFFERED": "1"}
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = str(index % self._gpus)
        command = [sys.executable, "-m", "sweeps.worker", "serve", self._job.folder, "--train", self._job.train]
        command += ["--checkpoint-seconds", str(self._job.checkpoint_seconds)]
        log = open(self._log_folder / f"worker-{index}.log", "ab")  # noqa: SIM115  closed below, the child keeps its own
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, bufsize=0
            )
        finally:
            log.close()
        worker = _Worker(index, process)
        self._slots[index] = worker
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        return worker

    def _read(self, worker: "_Worker") -> list[Ended]:
        assert worker.process.stdout is not None
        data = os.read(worker.process.stdout.fileno(), 65536)
        if not data:
            return self._bury(worker)
        *lines, worker.unread = (worker.unread + data).split(b"\n")
        answers = [json.loads(line) for line in lines]
        if answers:
            worker.trunk = None
        return [Ended(answer["trunk"], Ending(answer["ending"]), answer["reason"]) for answer in answers]

    def _bury(self, worker: "_Worker") -> list[Ended]:
        status = worker.process.wait()
        self._forget(worker)
        if worker.trunk is None:
            return []
        if status == 0 and self._stopping:
            return [Ended(worker.trunk, Ending.INTERRUPTED, "stopped before it began")]
        return [Ended(worker.trunk, Ending.FAILED, f"the worker {cause_of_death(status)}")]

    def _forget(self, worker: "_Worker") -> None:
        if self._slots[worker.index] is not worker:
            return
        self._slots[worker.index] = None
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.process.stdout)
        for stream in (worker.process.stdin, worker.process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


class _Worker:
    def __init__(self, index: int, process: subprocess.Popen):
        self.index, self.process = index, process
        self.trunk: str | None = None
        self.unread = b""


def cause_of_death(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}; its log is in logs/"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
