"""One task of the array, inside Slurm: train a trunk, and when asked to stop decide whether to come back.

SIGUSR1 comes before the time limit, SIGTERM at preemption, at the limit, and from scancel. After the checkpoint the
task asks Slurm to requeue it, unless the sweep is being stopped or the job was cancelled: then it says so and ends.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from sweeps.store import Store
from sweeps.worker import EXIT_INTERRUPTED, EXIT_STORAGE, TRAIN, Ending, Job, StopRequest, read_task, run_when_free


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m sweeps.executors.slurm_job")
    parser.add_argument("folder")
    parser.add_argument("tasks", help="file with one trunk a line; SLURM_ARRAY_TASK_ID says which")
    parser.add_argument("--train", default=TRAIN)
    parser.add_argument("--checkpoint-seconds", type=float, default=120.0)
    options = parser.parse_args(arguments)
    store = Store(options.folder)
    trunk = Path(options.tasks).read_text().splitlines()[int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))]
    stop = StopRequest(store)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, stop.set)
    job = Job(options.folder, options.train, options.checkpoint_seconds)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from sweeps import parallel

        ending, reason = parallel.run(job, [trunk], stop)
    else:
        ending, reason = run_when_free(job, trunk, read_task(store, trunk), stop)
    print(f"{trunk}: {ending.value} {reason}", flush=True)
    if ending is Ending.INTERRUPTED:
        return _come_back(store, trunk)
    return {Ending.DONE: 0, Ending.STORAGE: EXIT_STORAGE}.get(ending, 1)


def _come_back(store: Store, trunk: str) -> int:
    """Requeue this task; a job that was cancelled is no longer RUNNING, and stays cancelled."""
    job = this_job()
    if not store.stop_file.exists() and _ask(["squeue", "-h", "-j", job, "-o", "%T"]) == "RUNNING":
        store.record(trunk, "requeued", job=job)
        _ask(["scontrol", "requeue", job])
    else:
        store.record(trunk, Ending.CANCELLED.value, reason=f"Slurm job {job} was cancelled")
    return EXIT_INTERRUPTED


def this_job() -> str:
    """ARRAY_TASK: the plain number of an array's first task would mean the whole array."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def _ask(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{' '.join(command)}: {done.stderr.strip()}", flush=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
