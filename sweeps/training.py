"""Train a trunk and its branches: the runs of one column (N, seed) share every step before their cooldowns.

The trunk runs at the constant rate. Where a run's cooldown starts its state is set aside, the cooldown is run to the
run's last step, the held-out loss is taken, and the trunk goes on from the state set aside. Since batches are a
function of the step alone, each run ends with the very bits that it would have on its own. A cosine run is a branch of
a trunk without steps.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from scaling.errors import SweepError
from sweeps.batches import Batches
from sweeps.config import RunConfig
from sweeps.corpus import Corpus
from sweeps.evaluation import CURVE_WINDOWS, Evaluator, HeldOut
from sweeps.recipe import branch_step, schedule_factor, steps_trained
from sweeps.rows import Cost, bits_per_byte, describe
from sweeps.steps import make_step

STATE_FORMAT = 1
EXPLODED = 0.5  # nats above ln V, the loss of a model that knows nothing, for the running mean of the training loss
_DECAY = 0.98  # of that running mean
_CURVE_RATIO = math.sqrt(2)  # between the token counts of the training curve
_CURVE_START = 256  # steps
_PROGRESS_SECONDS = 0.25


class Interrupted(Exception):
    """Training was asked to stop; a checkpoint has been saved when there was one to save to."""


class Checkpoint(Protocol):
    """Where the state of a trunk is kept: tensors and plain values only."""

    def load(self) -> dict | None: ...

    def save(self, state: dict) -> None: ...


@dataclass(frozen=True)
class Progress:
    """How far a column is: tokens of all its trunk and branches together, and the run being trained."""

    tokens_done: int
    tokens_total: int
    loss: float
    config: RunConfig


@dataclass(frozen=True)
class RunOutcome:
    """How one run ended. `loss` is None unless `status` is "done"; `row` holds what the runs table wants to know."""

    config: RunConfig
    status: str  # "done" or "diverged"
    reason: str | None
    loss: float | None
    loss_se: float | None
    row: dict[str, Any]
    curve: list[dict[str, Any]] = field(repr=False)


def train_trunk(
    configs: Sequence[RunConfig],
    corpus: Corpus,
    *,
    checkpoint: Checkpoint | None = None,
    checkpoint_seconds: float = 120.0,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[RunOutcome]:
    """Train runs that share a trunk; yields one outcome each, in ascending tokens, as each ends.

    The state is saved every `checkpoint_seconds` and at every branch point; with a `checkpoint` that loads a state,
    training goes on from it and ends with the same bits. A loss that is not finite or explodes ends its run as
    "diverged"; in the trunk it ends all runs that are left.

    Raises Interrupted once `should_stop()` is true and the state is saved; SweepError for configurations that do not
    share a trunk, a corpus other than theirs, or a checkpoint of another trunk.
    """
    column = _Column(configs, corpus)
    column.watch(checkpoint, checkpoint_seconds, on_progress, should_stop)
    if checkpoint is not None and (state := checkpoint.load()) is not None:
        column.restore(state)
    for config in column.configs:
        yield column.outcome(config)


class _Column:
    """The trunk's state, the branch that is being run, and the outcomes so far."""

    def __init__(self, configs: Sequence[RunConfig], corpus: Corpus):
        self.configs = sorted(configs, key=lambda config: config.tokens)
        _check(self.configs, corpus)
        first = self.configs[0]
        self.corpus = corpus
        self.step = make_step(first)
        self.batches = Batches(
            corpus.train, context=first.context, batch_tokens=first.batch_tokens, seed=first.data_seed
        )
        self.evaluator = Evaluator(corpus, context=first.context, device=first.device)
        self.position = 0  # the step to be trained next
        self.branch: int | None = None  # tokens of the run whose cooldown is being run
        self.trunk: dict[str, Tensor] = {}  # the trunk's state while a branch runs
        self.mean = math.log(first.vocab_size)  # running mean of the training loss
        self.trunk_mean, self.trunk_position = self.mean, 0
        self.reason: str | None = None  # why the trunk diverged
        self.curve: list[dict[str, Any]] = []  # of the trunk
        self.outcomes: dict[int, RunOutcome] = {}
        self.steps_done = 0  # trunk and branches
        self.spent = Cost()
        self.watch(None, math.inf, None, None)

    def watch(self, checkpoint, seconds, on_progress, should_stop) -> None:
        self.checkpoint, self.seconds = checkpoint, seconds
        self.on_progress, self.should_stop = on_progress, should_stop
        self.saved_at = self.told_at = time.monotonic()
        self.steps_total = steps_trained(self.configs)

    # Running

    def outcome(self, config: RunConfig) -> RunOutcome:
        """Train until this run has ended; at once when a restored state holds its outcome."""
        if config.tokens not in self.outcomes:
            if self.branch is None and self.reason is None:
                self._run_trunk(config)
            if self.branch is None and self.reason is None:
                self._enter(config)
            self._run_branch(config)
        return self.outcomes[config.tokens]

    def _run_trunk(self, config: RunConfig) -> None:
        end = branch_step(config)
        while self.position < end:
            if not self._train(config):
                self.reason = self.failure
                return
            tokens = self.position * config.batch_tokens
            if self._curve_due():
                loss = self._held_out(CURVE_WINDOWS).loss
                self.curve.append({"tokens": tokens, "loss": loss, "part": "trunk"})

    def _enter(self, config: RunConfig) -> None:
        """Set the trunk aside and start the cooldown of a run."""
        self.trunk, self.branch = self.step.flat.state(), config.tokens
        self.trunk_mean, self.trunk_position = self.mean, self.position
        if self.position:
            self._save()

    def _run_branch(self, config: RunConfig) -> None:
        held_out, reason = None, self.reason
        while reason is None and self.position < config.steps:
            reason = None if self._train(config) else self.failure
        if reason is None:
            held_out = self._held_out()
            if not math.isfinite(held_out.loss):
                held_out, reason = None, f"the held-out loss is {held_out.loss}"
        self._finish(config, held_out, reason)
        if self.branch is not None:
            self.step.flat.restore(self.trunk)
            self.position, self.mean = self.trunk_position, self.trunk_mean
            self.branch, self.trunk = None, {}
        self._save()

    def _train(self, config: RunConfig) -> bool:
        """One step; False, with `failure` set, when the loss is lost."""
        inputs, targets = self.batches.at(self.position)
        mean_loss = self.step.gradients(inputs, targets)
        self.step.flat.update(self.position, schedule_factor(self.position, config), inputs.numel())
        loss = float(mean_loss)
        self.position += 1
        self.steps_done += 1
        self.mean = _DECAY * self.mean + (1 - _DECAY) * loss
        self.spent.steps += 1
        if not self.mean < math.log(config.vocab_size) + EXPLODED:
            tokens = self.position * config.batch_tokens
            what = f"rose to {loss:.2f}" if math.isfinite(loss) else f"is {loss}"
            where = f"at step {self.position} ({tokens:,} tokens)"
            self.failure = f"the training loss {what} {where}; lower the learning rate"
            return False
        self._tick(config)
        return True

    def _tick(self, config: RunConfig) -> None:
        now = time.monotonic()
        if self.on_progress is not None and now - self.told_at >= _PROGRESS_SECONDS:
            self.told_at = now
            done, total = (steps * config.batch_tokens for steps in (self.steps_done, self.steps_total))
            self.on_progress(Progress(done, total, self.mean, config))
        if self.checkpoint is not None and now - self.saved_at >= self.seconds:
            self._save()
        if self.should_stop is not None and self.should_stop():
            self._save()
            raise Interrupted(f"stopped at step {self.position}")

    def _curve_due(self) -> bool:
        """True at steps 256, 362, 512, ... : a ratio of sqrt 2 between neighbours."""
        place = round(math.log(max(self.position, 1) / _CURVE_START, _CURVE_RATIO))
        return place >= 0 and self.position == round(_CURVE_START * _CURVE_RATIO**place)

    def _held_out(self, windows: int | None = None) -> HeldOut:
        with self.spent.evaluating():
            return self.evaluator.evaluate(self.step, windows=windows)

    def _finish(self, config: RunConfig, held_out: HeldOut | None, reason: str | None) -> None:
        self.spent.count()
        tokens = self.position * config.batch_tokens
        row = describe(config, self.corpus, self.batches, self.spent, steps=self.position)
        loss = None if held_out is None else held_out.loss
        curve = [point for point in self.curve if point["tokens"] <= tokens]
        if held_out is not None:
            curve.append({"tokens": tokens, "loss": loss, "part": "end"})
            row["bits_per_byte"] = bits_per_byte(held_out.loss, self.corpus)
            row["validation_tokens"] = held_out.tokens
        self.outcomes[config.tokens] = RunOutcome(
            config=config,
            status="diverged" if held_out is None else "done",
            reason=reason,
            loss=loss,
            loss_se=None if held_out is None else held_out.loss_se,
            row=row,
            curve=curve,
        )
        self.spent = Cost()

    # State

    def _save(self) -> None:
        self.saved_at = time.monotonic()
        if self.checkpoint is not None:
            self.checkpoint.save(self.state())

    def state(self) -> dict[str, Any]:
        """Everything that is needed to go on with the same bits: tensors and plain values only."""
        return {
            "format": STATE_FORMAT,
            "trunk_key": self.configs[0].trunk_key,
            "machine_code": self.step.machine_code,
            "weights": self.step.flat.state(),
            "trunk": dict(self.trunk),
            "position": self.position,
            "branch": self.branch,
            "mean": self.mean,
            "trunk_mean": self.trunk_mean,
            "trunk_position": self.trunk_position,
            "reason": self.reason,
            "curve": [dict(point) for point in self.curve],
            "steps_done": self.steps_done,
            "spent": self.spent.to_dict(),
            "outcomes": {
                tokens: {
                    "status": o.status, "reason": o.reason, "loss": o.loss, "loss_se": o.loss_se,
                    "row": dict(o.row), "curve": [dict(point) for point in o.curve],
                }
                for tokens, o in self.outcomes.items()
            },
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`; one that has passed the branch point of a run without an outcome is not used."""
        key = self.configs[0].trunk_key
        if state.get("format") != STATE_FORMAT or state.get("trunk_key") != key:
            found = state.get("trunk_key")
            raise SweepError(f"checkpoint: it belongs to {found}, not to {key}. Remove it to start again.")
        if state.get("machine_code") != self.step.machine_code:
            warnings.warn(
                f"{key}: its checkpoint was written by a step compiled otherwise or for another processor; the last digits of "
                "its losses will not be those of one machine.",
                stacklevel=4,
            )
        by_tokens = {config.tokens: config for config in self.configs}
        known = {t: values for t, values in state["outcomes"].items() if t in by_tokens}
        at = state["position"] if state["branch"] is None else state["trunk_position"]
        open_runs = [config for t, config in by_tokens.items() if t not in known and t != state["branch"]]
        if state["reason"] is None and any(branch_step(config) < at for config in open_runs):
            return
        self.outcomes = {t: RunOutcome(config=by_tokens[t], **values) for t, values in known.items()}
        self.mean, self.trunk_mean, self.trunk_position = state["mean"], state["trunk_mean"], at
        self.reason, self.curve, self.steps_done = state["reason"], list(state["curve"]), state["steps_done"]
        if state["branch"] is not None and state["branch"] not in by_tokens:  # that run is no longer wanted
            self.step.flat.restore(state["trunk"])
            self.position, self.mean = at, self.trunk_mean
            return
        self.step.flat.restore(state["weights"])
        self.position, self.branch, self.trunk = state["position"], state["branch"], dict(state["trunk"])
        self.spent = Cost(**state["spent"])


def _check(configs: list[RunConfig], corpus: Corpus) -> None:
    if not configs:
        raise SweepError("training: no run was asked for.")
    if len({config.trunk_key for config in configs}) > 1 or len({config.tokens for config in configs}) < len(configs):
        ids = ", ".join(config.run_id for config in configs)
        raise SweepError(f"training: {ids} do not share a trunk. Only wsd runs that differ in tokens alone do.")
    for config in configs:
        if config.corpus_hash != corpus.hash:
            raise SweepError(
                f"training: {config.run_id} was planned on the corpus {config.corpus} with hash {config.corpus_hash}, "
                f"but that corpus now has hash {corpus.hash}. Plan the sweep again."
            )
        if config.steps > len(corpus.train) // config.batch_tokens:
            warnings.warn(
                f"{config.run_id}: {config.realised_tokens:,} tokens repeat the {corpus.unique_tokens:,} of "
                f"{config.corpus}; unique_tokens records it.",
                stacklevel=4,
            )
