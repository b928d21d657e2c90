"""Slurm: one array job, a task of the array for each trunk, told what to do by the run folders alone.

The job script is ours and holds nothing but quoted words; every setting goes to sbatch as an argument of its own, never
through a shell. Slurm requeues tasks of a node that fails; a task near its time limit or preempted saves a checkpoint
and requeues itself (`slurm_job`). What has finished is read from the store, so no accounting database is needed.
"""

import getpass
import hashlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from scaling.errors import SweepError
from sweeps import durable
from sweeps.executors import Ended, Task
from sweeps.grid import SlurmSettings
from sweeps.store import FINAL, Store
from sweeps.worker import Ending, Job, write_task

POLL_SECONDS = 5.0
GONE_POLLS = 2  # a task must be missing from the queue so many times in a row: a requeue is not instantaneous
_JOB = re.compile(r"(\d+)(?:_(\d+))?")


class SlurmExecutor:
    """Submits array jobs and watches the queue. Tasks that are queued or running already, from an earlier call of the
    command, are taken up again and not submitted twice."""

    def __init__(
        self,
        job: Job,
        settings: SlurmSettings,
        store: Store,
        *,
        setup: str | None = None,
        poll_seconds: float | None = None,
    ):
        self._job, self._settings, self._store, self._setup = job, settings, store, setup
        self._poll_seconds, self._next_poll = poll_seconds or POLL_SECONDS, 0.0
        self._folder = durable.make_folder(store.folder / "slurm").absolute()
        if setup is not None and not Path(setup).is_file():
            raise SweepError(f"--slurm-setup {setup}: there is no such file.")
        self._array_size = _max_array_size()
        self._processes = settings.processes or max(1, settings.gpus)
        self._live = live_tasks(store)  # trunk: job id of what is in the queue
        self._tasks: dict[str, Task] = {}
        self._unsent: list[Task] = []
        self._absent: dict[str, int] = {}
        self._ended: deque[Ended] = deque()

    def free(self) -> int:
        return self._array_size

    def submit(self, task: Task) -> None:
        self._tasks[task.trunk] = task
        if task.trunk not in self._live:
            self._unsent.append(task)

    def poll(self, timeout: float) -> list[Ended]:
        while self._unsent:
            self._send(self._unsent[: self._array_size])
            del self._unsent[: self._array_size]
        if not self._ended:
            time.sleep(timeout)
        if time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + self._poll_seconds
            self._look()
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def stop(self) -> None:
        """With `--stop` the jobs are cancelled (they save checkpoints); a mere Ctrl-C leaves them running."""
        cancelled = cancel_jobs(self._store) if self._store.stop_file.exists() else []
        word = "cancelled" if cancelled else "left running in Slurm; scale status shows it, scale sweep --stop ends it"
        for trunk in list(self._tasks):
            self._end(trunk, Ending.INTERRUPTED, word)
        self._unsent.clear()

    def close(self) -> None:
        """Jobs outlive the command."""

    def _send(self, tasks: list[Task]) -> None:
        number = _next_number(self._folder)
        for task in tasks:
            write_task(self._store, task.trunk, task.configs)
        names = self._folder / f"tasks-{number}.txt"
        durable.replace(names, "".join(f"{task.trunk}\n" for task in tasks).encode())
        script = self._folder / f"job-{number}.sh"
        durable.replace(script, self._script(names).encode())
        job_id = _run(["sbatch", "--parsable", *self._options(number, len(tasks)), str(script)]).partition(";")[0]
        self._live.update({task.trunk: f"{job_id}_{i}" for i, task in enumerate(tasks)})

    def _options(self, number: int, count: int) -> list[str]:
        s = self._settings
        limit = f"%{s.max_parallel}" if s.max_parallel else ""
        log = str(self._folder / f"log-{number}").replace("%", "%%")
        options = [
            f"--job-name={job_name(self._store)}-{number}",
            f"--array=0-{count - 1}{limit}",
            "--requeue",
            "--open-mode=append",
            f"--output={log}-%a.txt",
            f"--signal=B:{'USR1' if self._processes == 1 else 'TERM'}@{s.signal_seconds}",  # torchrun passes TERM on
            f"--cpus-per-task={s.cpus}",
        ]
        named = {"partition": s.partition, "account": s.account, "qos": s.qos, "time": s.time, "mem": s.memory}
        options += [f"--{name}={value}" for name, value in named.items() if value]
        options += [f"--gres=gpu:{s.gpus}"] if s.gpus else []
        return [*options, *s.extra]

    def _script(self, names: Path) -> str:
        command = [sys.executable, "-m"]
        if self._processes > 1:
            command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={self._processes}", "-m"]
        command += ["sweeps.executors.slurm_job", str(self._store.folder.absolute()), str(names)]
        command += ["--train", self._job.train, "--checkpoint-seconds", str(self._job.checkpoint_seconds)]
        threads = max(1, self._settings.cpus // self._processes)
        lines = [
            "#!/bin/sh",
            f"cd {shlex.quote(os.getcwd())} || exit 1",
            f"export OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads} PYTHONUNBUFFERED=1",
        ]
        if self._setup is not None:
            lines.append(f". {shlex.quote(str(Path(self._setup).absolute()))}")
        return "\n".join([*lines, f"exec {shlex.join(command)}", ""])

    def _look(self) -> None:
        live = live_tasks(self._store)
        for trunk, task in list(self._tasks.items()):
            if self._is_done(task):
                self._end(trunk, Ending.DONE, "")
            elif trunk in live:
                self._absent.pop(trunk, None)
            else:
                self._absent[trunk] = self._absent.get(trunk, 0) + 1
                if self._absent[trunk] >= GONE_POLLS:
                    self._end(trunk, *self._last_words(trunk))

    def _is_done(self, task: Task) -> bool:
        results = (self._store.result(config.run_id) for config in task.configs)
        return all(result is not None and result.status in FINAL for result in results)

    def _last_words(self, trunk: str) -> tuple[Ending, str]:
        """Why a task left the queue unfinished: what its worker wrote last."""
        known = {ending.value: ending for ending in Ending}
        attempts = [event for event in self._store.attempts(trunk) if event["event"] in {*known, "started"}]
        if not attempts or attempts[-1]["event"] == "started":
            return Ending.FAILED, f"its Slurm job ended without a word; its output is in {self._folder.name}/"
        return known[attempts[-1]["event"]], str(attempts[-1].get("reason", ""))

    def _end(self, trunk: str, ending: Ending, reason: str) -> None:
        del self._tasks[trunk]
        self._live.pop(trunk, None)
        self._absent.pop(trunk, None)
        self._ended.append(Ended(trunk, ending, reason))


def job_name(store: Store) -> str:
    """The same for every job of a folder, and of no other."""
    return "isoflop-" + hashlib.sha256(str(store.folder.absolute()).encode()).hexdigest()[:10]


def live_tasks(store: Store) -> dict[str, str]:
    """Trunks of a folder that are in the queue, with the job that has each."""
    prefix = job_name(store)
    lines = _run(["squeue", "-h", "-r", "-u", getpass.getuser(), "-o", "%i %T %j"]).splitlines()
    live = {}
    for line in lines:
        job_id, _, rest = line.partition(" ")
        state, _, name = rest.partition(" ")
        match = _JOB.fullmatch(job_id)
        if match and name.startswith(f"{prefix}-") and state not in ("COMPLETING", "CANCELLED", "COMPLETED", "FAILED"):
            trunk = _trunk_of(store, name.rpartition("-")[2], match[2])
            if trunk:
                live[trunk] = job_id
    return live


def cancel_jobs(store: Store) -> list[str]:
    """Cancel every job of a folder; those that run save a checkpoint within Slurm's KillWait. Returns their numbers."""
    if not _has("squeue"):
        return []
    jobs = sorted(set(live_tasks(store).values()))
    if jobs:
        _run(["scancel", *jobs])
    return sorted({job.partition("_")[0] for job in jobs})


def _trunk_of(store: Store, number: str, index: str | None) -> str | None:
    try:
        names = (store.folder / "slurm" / f"tasks-{int(number)}.txt").read_text().splitlines()
        return names[int(index or 0)]
    except (OSError, ValueError, IndexError):
        return None


def _next_number(folder: Path) -> int:
    numbers = [int(match[1]) for name in os.listdir(folder) if (match := re.fullmatch(r"tasks-(\d+)\.txt", name))]
    return max(numbers, default=0) + 1


def _max_array_size() -> int:
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", _run(["scontrol", "show", "config"]))
    return max(1, int(match[1]) - 1) if match else 1000


def _has(program: str) -> bool:
    import shutil

    return shutil.which(program) is not None


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError as error:
        raise SweepError(
            f"executor slurm: {command[0]} is not on the PATH. Run this where jobs are submitted."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SweepError(f"executor slurm: {command[0]} did not answer within two minutes.") from error
    if done.returncode:
        raise SweepError(f"executor slurm: {command[0]}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout.strip()
