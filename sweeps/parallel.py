"""One large run on several processes, started by torchrun: data parallel, each process with its share of every batch.

    torchrun --nproc-per-node 2 -m sweeps.worker run DIR TRUNK

Gradients are sums over tokens in one flat buffer, so a single all-reduce makes them those of the whole batch, and every
process takes the same optimizer step: the losses are those of one process up to the order of summation. The first
process holds the lease and writes checkpoints and results; the others follow it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scaling.errors import SweepError
from sweeps.config import RunConfig
from sweeps.store import Store
from sweeps.worker import TRAIN, Ending, Job, corpus_of, load_train, read_task, run_when_free

_LEADING = "sweeps.parallel:train_leading"
_agreed_to_stop = False
_asks_to_stop: Callable[[], bool] = lambda: False  # noqa: E731  set while the first process trains


class ParallelStep:
    """A step that computes this process's share of a batch and adds the others' gradients to its own."""

    def __init__(self, inner: Any):
        self.inner, self.flat, self.machine_code = inner, inner.flat, inner.machine_code

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """As the inner step's: gradients of the summed loss of the whole batch, and its mean."""
        global _agreed_to_stop
        rank, size = dist.get_rank(), dist.get_world_size()
        mine = targets[rank::size]
        mean = self.inner.gradients(inputs[rank::size], mine)
        dist.all_reduce(self.flat.gradients)
        told = torch.stack((mean.double() * mine.numel(), mean.new_tensor(float(_asks_to_stop())).double()))
        dist.all_reduce(told)
        _agreed_to_stop = bool(told[1] > 0)
        return (told[0] / targets.numel()).to(mean.dtype)

    def window_losses(self, windows: Tensor) -> Tensor:
        """Each process evaluates all windows: the same numbers everywhere, nothing to exchange."""
        return self.inner.window_losses(windows)


def processes() -> int:
    """How many train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def share_of(config: RunConfig) -> RunConfig:
    """The configuration with this process's part of the batch. Raises SweepError when it cannot be divided."""
    contexts, size = config.batch_tokens // config.context, processes()
    if contexts % size:
        raise SweepError(f"parallel: a batch of {contexts} contexts cannot be shared by {size} processes.")
    return config if size == 1 else replace(config, batch_tokens=config.batch_tokens // size)


def shared(step: Any) -> Any:
    """The step itself, or its parallel form where several processes train together."""
    return step if processes() == 1 else ParallelStep(step)


def train_leading(configs, corpus, *, should_stop=None, **options) -> Iterator[Any]:
    """`train_trunk` in the first process: tells the others which runs to train, and stops when all have heard of it."""
    global _asks_to_stop, _agreed_to_stop
    train, _ = load_train(TRAIN)
    _tell({"trunk": configs[0].trunk_key, "runs": [config.run_id for config in configs]})
    _asks_to_stop, _agreed_to_stop = should_stop or (lambda: False), False
    yield from train(configs, corpus, should_stop=lambda: _agreed_to_stop, **options)


def __getattr__(name: str) -> Any:
    if name == "Interrupted":  # what `train_leading` raises, for whoever catches it
        from sweeps.training import Interrupted

        return Interrupted
    raise AttributeError(name)


def run(job: Job, trunks: list[str], stop: Callable[[], bool]) -> tuple[Ending, str]:
    """Train trunks with the other processes of torchrun; the ending of the last, or of the first that failed."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    if dist.get_rank() > 0:
        _follow(Store(job.folder))
        dist.destroy_process_group()
        return Ending.DONE, ""
    ending, reason = Ending.DONE, ""
    for trunk in trunks:
        leading = Job(job.folder, _LEADING, job.checkpoint_seconds)
        ending, reason = run_when_free(leading, trunk, read_task(Store(job.folder), trunk), stop)
        if ending in (Ending.FAILED, Ending.REFUSED, Ending.STORAGE):  # the others wait for us: torchrun ends them
            sys.stderr.write(f"{trunk}: {ending.value} {reason}\n")
            sys.stderr.flush()
            os._exit(1)
        if ending is not Ending.DONE:
            break
    _tell({"trunk": None})
    dist.destroy_process_group()
    return ending, reason


def _follow(store: Store) -> None:
    """Train what the first process trains, and write nothing."""
    from sweeps.training import Interrupted

    train, _ = load_train(TRAIN)
    while (message := _tell(None))["trunk"] is not None:
        wanted = [config for config in read_task(store, message["trunk"]) if config.run_id in message["runs"]]
        checkpoint = _ReadOnly(store, message["trunk"], wanted)
        options = {"checkpoint": checkpoint, "should_stop": lambda: _agreed_to_stop}
        try:
            for _ in train(wanted, corpus_of(wanted[0]), **options):
                pass
        except Interrupted:
            continue


class _ReadOnly:
    """The first process's checkpoint: read by all, written by it alone."""

    def __init__(self, store: Store, trunk: str, configs: list[RunConfig]):
        self._checkpoint = store.checkpoint(trunk, [config.run_id for config in configs])

    def load(self) -> dict | None:
        return self._checkpoint.load()

    def save(self, state: dict) -> None:
        pass


def _tell(message: dict | None) -> dict:
    """The first process's message, in every process."""
    box = [message]
    dist.broadcast_object_list(box, src=0)
    assert box[0] is not None
    return box[0]
