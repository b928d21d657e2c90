"""The process that trains: one task is one trunk with its branches.

    python -m sweeps.worker serve DIR              tasks on standard input, endings on standard output, one JSON a line
    python -m sweeps.worker run DIR TRUNK ...      the tasks named, one after the other (a batch job)

Both take the trunk's lease, train the runs that have no final result, write each result as soon as it ends, and save
checkpoints. SIGTERM, SIGINT and SIGUSR1 ask for a checkpoint and an orderly end. Torch comes in with the training
function alone.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from scaling.errors import ScalingError, SweepError
from sweeps import durable, leases
from sweeps.config import RunConfig
from sweeps.store import FINAL, Store

TRAIN = "sweeps.training:train_trunk"
PROGRESS_SECONDS = 1.0
LOCKED_SECONDS = 3 * leases.PATIENCE_SECONDS
EXIT_INTERRUPTED = 75  # EX_TEMPFAIL: give it again, it goes on from its checkpoint
EXIT_LOCKED = 73
EXIT_STORAGE = 74  # EX_IOERR


class Ending(Enum):
    """How one attempt at a task ended."""

    DONE = "done"  # every run of the trunk has a final result
    INTERRUPTED = "interrupted"  # asked to stop; a checkpoint is saved
    LOCKED = "locked"  # another process is training this trunk
    STORAGE = "storage"  # the folder cannot be written
    FAILED = "failed"  # worth another attempt
    CANCELLED = "cancelled"  # by hand, in the engine: not taken up again by this sweep
    REFUSED = "refused"  # the configuration or the corpus is at fault: the same would happen again


EXITS = {
    Ending.DONE: 0,
    Ending.INTERRUPTED: EXIT_INTERRUPTED,
    Ending.LOCKED: EXIT_LOCKED,
    Ending.STORAGE: EXIT_STORAGE,
}


@dataclass(frozen=True)
class Job:
    """What a worker must know besides its task."""

    folder: str
    train: str = TRAIN
    checkpoint_seconds: float = 120.0


def load_train(name: str) -> tuple[Callable, type[BaseException] | None]:
    """The training function "module:function" and the module's Interrupted exception."""
    module_name, _, function = name.partition(":")
    try:
        module = importlib.import_module(module_name)
        return getattr(module, function or "train_trunk"), getattr(module, "Interrupted", None)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "torch":
            raise SweepError("Training needs torch, which is not installed: pip install 'isoflop[train]'") from error
        if error.name and module_name.startswith(error.name):
            raise SweepError(f"--train {name}: there is no module {error.name}.") from error
        raise
    except AttributeError as error:
        raise SweepError(f"--train {name}: {module_name} has no function {function}.") from error


def run_task(
    job: Job, trunk: str, configs: list[RunConfig], *, should_stop: Callable[[], bool] = lambda: False
) -> tuple[Ending, str]:
    """Train what is missing of one trunk. Every way it can end is an Ending with its reason; nothing is raised but a
    request to exit."""
    store = Store(job.folder)
    try:
        lease = leases.acquire(durable.make_folder(store.trunk_folder(trunk)))
        if lease is None:
            return Ending.LOCKED, f"{trunk} is being trained by {describe(leases.owner(store.trunk_folder(trunk)))}"
        try:
            return _train_missing(store, job, trunk, configs, lambda: lease.lost or should_stop())
        finally:
            lease.release()
    except durable.StorageError as error:
        return Ending.STORAGE, str(error)


def run_when_free(job: Job, trunk: str, configs: list[RunConfig], stop: Callable[[], bool]) -> tuple[Ending, str]:
    """`run_task`, waiting for a lease that a predecessor on a dead machine may still seem to hold."""
    deadline = time.monotonic() + LOCKED_SECONDS
    while True:
        ending, reason = run_task(job, trunk, configs, should_stop=stop)
        if ending is not Ending.LOCKED or time.monotonic() > deadline:
            return ending, reason
        if stop():
            return Ending.INTERRUPTED, reason
        time.sleep(2.0)


def _train_missing(store: Store, job: Job, trunk: str, configs: list[RunConfig], should_stop) -> tuple[Ending, str]:
    missing = [c for c in configs if (result := store.result(c.run_id)) is None or result.status not in FINAL]
    if not missing:
        return Ending.DONE, ""
    store.tidy(trunk, [c.run_id for c in missing])
    store.record(trunk, "started", runs=[c.run_id for c in missing], **leases.this_process())
    interrupted: type[BaseException] | tuple = ()
    try:
        train, interrupted = load_train(job.train)
        interrupted = interrupted or ()
        _train(store, job, trunk, missing, train, should_stop)
        ending, reason = Ending.DONE, ""
    except interrupted:
        ending, reason = Ending.INTERRUPTED, "asked to stop"
    except durable.StorageError as error:
        ending, reason = Ending.STORAGE, str(error)
    except ScalingError as error:
        ending, reason = Ending.REFUSED, str(error)
    except Exception as error:  # a defect, or memory: the attempt failed, its traceback is kept, others go on
        text = traceback.format_exc()
        sys.stderr.write(text)
        storage = _storage_cause(error)
        ending = Ending.STORAGE if storage else Ending.FAILED
        reason = str(storage) if storage else f"{type(error).__name__}: {error} [{_place(error)}]"
        if not storage:
            store.record(trunk, "traceback", text=text[-4000:])
    store.record(trunk, ending.value, reason=reason)
    return ending, reason


def _train(store: Store, job: Job, trunk: str, missing: list[RunConfig], train, should_stop) -> None:
    by_id = {config.run_id: config for config in missing}
    checkpoint = store.checkpoint(trunk, by_id, warn=lambda text: store.record(trunk, "warning", text=text))
    outcomes = train(
        missing,
        corpus_of(missing[0]),
        checkpoint=checkpoint,
        checkpoint_seconds=job.checkpoint_seconds,
        on_progress=_progress_writer(store, trunk),
        should_stop=should_stop,
    )
    for outcome in outcomes:
        if by_id.pop(outcome.config.run_id, None) is None:
            raise SweepError(f"{job.train} returned {outcome.config.run_id}, which it was not asked for or gave twice.")
        store.write_result(
            outcome.config, outcome.status, row=outcome.row, reason=outcome.reason,
            loss=outcome.loss, loss_se=outcome.loss_se, curve=outcome.curve,
        )  # fmt: skip
    if by_id:
        raise SweepError(f"{job.train} ended without a result for {', '.join(by_id)}.")
    checkpoint.clear()


_corpora: dict[str, Any] = {}


def corpus_of(config: RunConfig) -> Any:
    """The corpus of a run, loaded once a process, and the very one that was planned with."""
    if config.corpus not in _corpora:
        from sweeps.corpus import load_corpus

        _corpora[config.corpus] = load_corpus(config.corpus)
    corpus = _corpora[config.corpus]
    if corpus.hash != config.corpus_hash:
        raise SweepError(
            f"corpus {config.corpus} has changed: its hash is {corpus.hash}, the sweep was planned with "
            f"{config.corpus_hash}. Give the sweep command again: it plans anew."
        )
    return corpus


def _progress_writer(store: Store, trunk: str) -> Callable:
    last = -PROGRESS_SECONDS

    def write(progress) -> None:
        nonlocal last
        if time.monotonic() - last < PROGRESS_SECONDS:
            return
        last = time.monotonic()
        store.write_progress(
            trunk,
            {
                "tokens_done": progress.tokens_done,
                "tokens_total": progress.tokens_total,
                "loss": progress.loss,
                "run_id": progress.config.run_id,
            },
        )

    return write


def _storage_cause(error: BaseException) -> OSError | None:
    """The disk error behind an exception, if one is."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in durable.STORAGE_ERRORS:
            return seen
        seen = seen.__cause__
    return None


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else "unknown place"


def describe(owner: dict | None) -> str:
    """The holder of a lease, for people."""
    if owner is None:
        return "no one"
    return f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}"


class StopRequest:
    """Set by a signal, by the end of the parent, or by the sweep's stop file (looked for once a second)."""

    def __init__(self, store: Store):
        self._store, self._event, self._looked = store, threading.Event(), 0.0

    def set(self, *ignored) -> None:
        self._event.set()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._looked > 1.0:
            self._looked = now
            if self._store.stop_file.exists():
                self._event.set()
        return self._event.is_set()


def serve(job: Job) -> None:
    """Tasks from standard input until it closes. When the parent dies its end of the pipe closes, and we stop too."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever training prints goes to the log, not among the answers
    stop = StopRequest(Store(job.folder))
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, stop.set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    with contextlib.suppress(BrokenPipeError):
        for message in _messages(stop):
            reset_peak_memory()
            configs = [RunConfig.from_dict(data) for data in message["configs"]]
            ending, reason = run_task(job, message["trunk"], configs, should_stop=stop)
            answers.write(json.dumps({"trunk": message["trunk"], "ending": ending.value, "reason": reason}) + "\n")


def _messages(stop: StopRequest) -> Iterator[dict]:
    """Lines of standard input, read by a thread so that its end is seen during training as well."""
    import queue

    lines: queue.SimpleQueue = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        stop.set()
        lines.put(None)

    threading.Thread(target=read, name="tasks", daemon=True).start()
    while not stop():
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=0.5)
            if line is None:
                return
            yield json.loads(line)


def reset_peak_memory() -> None:
    """Peak memory is measured for each task, where the system lets us begin anew (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def read_task(store: Store, trunk: str) -> list[RunConfig]:
    """The runs of a trunk from task.json, which the runner wrote for workers that it cannot speak to."""
    path = store.trunk_folder(trunk) / "task.json"
    try:
        return [RunConfig.from_dict(item) for item in json.loads(path.read_bytes())]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SweepError(f"{path} is missing or damaged ({error}). Give the sweep command again.") from error


def write_task(store: Store, trunk: str, configs: Iterable[RunConfig]) -> None:
    content = json.dumps([config.to_dict() for config in configs]).encode()
    durable.replace(durable.make_folder(store.trunk_folder(trunk)) / "task.json", content)


def run(job: Job, trunks: list[str]) -> int:
    """Tasks by name, as a batch job; the exit status tells the engine what to do."""
    store = Store(job.folder)
    stop = StopRequest(store)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, stop.set)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from sweeps import parallel

        return EXITS.get(parallel.run(job, trunks, stop)[0], 1)
    worst = 0
    for trunk in trunks:
        if stop():
            return EXIT_INTERRUPTED
        ending, reason = run_task(job, trunk, read_task(store, trunk), should_stop=stop)
        sys.stderr.write(f"{trunk}: {ending.value} {reason}\n")
        worst = max(worst, EXITS.get(ending, 1))
    return worst


def main(arguments: list[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m sweeps.worker")
    parser.add_argument("mode", choices=["serve", "run"])
    parser.add_argument("folder")
    parser.add_argument("trunks", nargs="*")
    parser.add_argument("--train", default=TRAIN)
    parser.add_argument("--checkpoint-seconds", type=float, default=120.0)
    options = parser.parse_args(arguments)
    job = Job(options.folder, options.train, options.checkpoint_seconds)
    if options.mode == "serve":
        serve(job)
        sys.stderr.flush()
        os._exit(0)  # a thread still waits for standard input, which the interpreter cannot close while it does
    return run(job, options.trunks)


if __name__ == "__main__":
    sys.exit(importlib.import_module("sweeps.worker").main(sys.argv[1:]))  # one module, whoever else imports it
