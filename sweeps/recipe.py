"""The recipe: learning rate by width, batch, warm-up and schedule; each rule with its source. Torch-free.

`resolve` turns a shape and a token count into a complete `RunConfig`; a grid overrides whatever it names.
"""

import math
from dataclasses import dataclass, fields

from scaling.accounting import Shape
from scaling.errors import SweepError
from sweeps.config import RunConfig

SCHEDULES = ("wsd", "cosine")
COOLDOWN_SHAPES = ("1-sqrt", "linear")
DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("fused", "explicit", "native")
NATIVE_POSITIONS = ("learned", "sinusoidal", "none")
NATIVE_SCORES_LIMIT = 2**28  # bytes of attention weights that the compiled step keeps for its backward pass
NATIVE_ROWS = 512  # tokens side by side at the most, but for a longer context
MAX_WARMUP_SHARE = 0.1  # of a run: longer warm-ups bend the fitted exponents (Porian et al. 2024)
EMBEDDING_RATE = 10.0  # measured in docs/training.md
SMALL_BATCH = 256
_BATCH_EXPONENT = 0.38
_SMALL_BATCH_BEST_AT = 25e6 / 2 ** (1 / 0.38)  # tokens; at 25M the rule gives 512, midway to four times as many
COSINE_FLOOR = 0.1  # a cosine ends at this share of its peak (Hoffmann et al. 2022, appendix B)


@dataclass(frozen=True)
class Recipe:
    """What a grid may override, with the defaults that docs/training.md measures."""

    batch_tokens: int | None = None  # None: by D, see `batch_for`
    schedule: str = "wsd"
    warmup_steps: int = 40
    cooldown_fraction: float = 0.18  # Hägele et al. 2024
    cooldown_shape: str = "1-sqrt"  # Hägele et al. 2024
    learning_rate: float = 2.5e-3  # of matrices at base_width; at SMALL_BATCH where the batch goes by D
    base_width: int = 64
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 0.3

    def __post_init__(self) -> None:
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("cooldown_shape", self.cooldown_shape, COOLDOWN_SHAPES)
        if self.batch_tokens is not None:
            _within("batch_tokens", self.batch_tokens, self.batch_tokens > 0, "above zero")
        for name in ("base_width", "learning_rate", "clip"):
            _within(name, getattr(self, name), getattr(self, name) > 0, "above zero")
        for name in ("warmup_steps", "weight_decay"):
            _within(name, getattr(self, name), getattr(self, name) >= 0, "zero or more")
        for name in ("beta1", "beta2"):
            _within(name, getattr(self, name), 0 <= getattr(self, name) < 1, "in [0, 1)")
        _within("cooldown_fraction", self.cooldown_fraction, 0 <= self.cooldown_fraction <= 0.9, "in [0, 0.9]")

    def batch_of(self, tokens: float, context: int) -> int:
        """Tokens a batch of a run: as given, else by D."""
        return self.batch_tokens or batch_for(tokens, context)


RECIPE_KEYS = tuple(field.name for field in fields(Recipe))


def resolve(
    shape: Shape,
    tokens: int,
    *,
    corpus: str,
    corpus_hash: str,
    recipe: Recipe | None = None,
    seed: int = 0,
    data_seed: int | None = None,
    dtype: str = "float32",
    attention: str = "explicit",
    device: str = "cpu",
) -> RunConfig:
    """The complete configuration of one run. `data_seed` follows `seed` unless given.

    Raises SweepError when the run is shorter than one batch, or the batch is not a whole number of contexts.
    """
    recipe = recipe or Recipe()
    batch = recipe.batch_of(tokens, shape.context)
    rate = recipe.learning_rate * (1.0 if recipe.batch_tokens else math.sqrt(batch / batch_for(0, shape.context)))
    _one_of("dtype", dtype, DTYPES)
    _one_of("attention", attention, ATTENTIONS)
    if attention == "native" and (reason := why_not_native(shape, dtype, device)):
        raise SweepError(f'recipe: attention = "native" {reason}. Set attention = "fused".')
    if batch % shape.context:
        raise SweepError(f"recipe: batch_tokens = {batch:,} is not a multiple of the context {shape.context:,}.")
    if tokens < batch:
        raise SweepError(
            f"recipe: tokens = {tokens:,} is less than one batch of {batch:,}. "
            "Give more tokens, or a smaller batch_tokens."
        )
    return RunConfig(
        d_model=shape.d_model,
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        d_ff=shape.ff_width,
        vocab_size=shape.vocab_size,
        context=shape.context,
        positions=shape.positions,
        corpus=corpus,
        corpus_hash=corpus_hash,
        tokens=tokens,
        batch_tokens=batch,
        schedule=recipe.schedule,
        warmup_steps=warmup_for(round(tokens / batch), longest=recipe.warmup_steps),
        cooldown_fraction=recipe.cooldown_fraction,
        cooldown_shape=recipe.cooldown_shape,
        learning_rate=rate,
        base_width=recipe.base_width,
        weight_decay=recipe.weight_decay,
        beta1=recipe.beta1,
        beta2=recipe.beta2,
        clip=recipe.clip,
        seed=seed,
        data_seed=seed if data_seed is None else data_seed,
        dtype=dtype,
        attention=attention,
        device=device,
    )


def why_not_native(shape: Shape, dtype: str, device: str) -> str | None:
    """What keeps the compiled step from training such a run, or None."""
    if dtype != "float32":
        return f"is float32, not {dtype}"
    if device != "cpu":
        return f"is for a CPU, not {device}"
    if shape.positions not in NATIVE_POSITIONS:
        return f"knows {', '.join(NATIVE_POSITIONS)} positions, not {shape.positions}"
    kept = 4 * shape.n_layers * shape.n_heads * shape.context * max(shape.context, NATIVE_ROWS)
    if kept > NATIVE_SCORES_LIMIT:
        return (
            f"would keep {kept / 2**20:,.0f} MiB of attention weights for {shape.n_layers} layers of {shape.n_heads} heads at "
            f"a context of {shape.context:,}, more than {NATIVE_SCORES_LIMIT / 2**20:,.0f}"
        )
    return None


def heads_for(d_model: int, *, head_width: int = 32) -> int:
    """Heads about 32 wide, but at least two where the width allows: the largest such count that divides d_model.

    Wider heads are fewer, and cheaper on a CPU; one alone cost 1.5 % of loss at d_model = 32.
    """
    return max(h for h in range(1, max(2, d_model // head_width) + 1) if d_model % h == 0)


def batch_for(tokens: float, context: int) -> int:
    """Tokens a batch for a run of D tokens: 256, four times as many from 25M, 16 times from 950M, and so on.

    The best batch grows about as D^0.38 (docs/training.md); in steps of four, runs of one step share their trunks. The
    learning rate grows with its square root (Malladi et al. 2022). Rounded up to whole contexts.
    """
    wanted = (tokens / _SMALL_BATCH_BEST_AT) ** _BATCH_EXPONENT if tokens > 0 else 0.0
    step = max(0, math.floor(math.log(2 * wanted, 4))) if wanted > 0 else 0
    return -(-SMALL_BATCH * 4**step // context) * context


def warmup_for(steps: int, *, longest: int = Recipe.warmup_steps) -> int:
    """Warm-up steps of a run: `longest`, but never more than a tenth of it."""
    return min(longest, int(MAX_WARMUP_SHARE * steps))


def rate_of(group: str, config: RunConfig) -> float:
    """Learning rate of a group of parameters, as a share of the recipe's.

    Hidden matrices and the head fall as 1/width, embeddings and norms do not (Yang et al. 2022, table 8, Adam). An
    embedding's row is touched by few tokens of a batch, and its entries are of order one: its rate is a constant times
    higher, as in nanochat.
    """
    return {"matrix": config.base_width / config.d_model, "embedding": EMBEDDING_RATE, "norm": 1.0}[group]


def cooldown_steps(steps: int, fraction: float) -> int:
    """Steps of the final decay."""
    return round(fraction * steps)


def schedule_factor(step: int, config: RunConfig) -> float:
    """The learning rate at a step, counted from 0, as a share of the peak.

    wsd: linear warm-up, constant, then 1 - sqrt(x) or 1 - x over the last share (Hägele et al. 2024, eq. 1); cosine:
    linear warm-up, then half a cosine down to a tenth. Both end with the run's last step.
    """
    steps, warmup = config.steps, config.warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "cosine":
        x = (step - warmup) / max(1, steps - warmup)
        return COSINE_FLOOR + (1 - COSINE_FLOOR) * 0.5 * (1 + math.cos(math.pi * x))
    start = branch_step(config)
    if step < start:
        return 1.0
    x = (step - start) / (steps - start)
    return 1 - math.sqrt(x) if config.cooldown_shape == "1-sqrt" else 1 - x


def branch_step(config: RunConfig) -> int:
    """The step at which a run leaves its trunk: where its cooldown starts under "wsd", never for a cosine."""
    if config.schedule != "wsd":
        return 0
    return config.steps - cooldown_steps(config.steps, config.cooldown_fraction)


def steps_trained(configs: list[RunConfig]) -> int:
    """Optimizer steps that a column of runs with one trunk costs: the trunk once, and every cooldown."""
    cooldowns = sum(config.steps - branch_step(config) for config in configs)
    return max(branch_step(config) for config in configs) + cooldowns


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SweepError(f'recipe: unknown {name} "{value}". Known: {", ".join(known)}.')


def _within(name: str, value: float, fits: bool, wanted: str) -> None:
    if not fits:
        raise SweepError(f"recipe: {name} = {value!r} must be {wanted}.")
