"""Which column plays which role: aliases as people write them, units in headers, and no guess between two candidates."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Names after `normalise`, the clearest first. Only whole names match, so "tokens_per_second" is never `tokens`.
PRIMARY: dict[str, tuple[str, ...]] = {
    "params": (
        "params", "n_params", "num_params", "nparams", "numparams", "parameters", "n_parameters", "num_parameters",
        "number_of_parameters", "no_of_parameters", "parameter_count", "param_count", "params_count", "params_total",
        "total_params", "total_parameters", "total_param_count", "n_total", "n_params_total", "num_total_params", "model_params",
        "model_parameters", "model_size", "modelsize", "model_n_params", "model_num_params", "trainable_params",
        "trainable_parameters", "param", "size", "n",
    ),
    "tokens": (
        "tokens", "n_tokens", "num_tokens", "ntokens", "training_tokens", "train_tokens", "trained_tokens", "tokens_trained",
        "tokens_seen", "total_tokens", "n_train_tokens", "num_train_tokens", "n_training_tokens", "num_training_tokens",
        "number_of_tokens", "token_count", "tokens_total", "data_tokens", "train_total_tokens", "throughput_total_tokens",
        "num_tokens_seen", "tokens_processed", "consumed_tokens", "d",
    ),
    "flops": (
        "flops", "flop", "training_flops", "training_flop", "train_flops", "train_flop", "total_flops", "total_flop",
        "n_flops", "num_flops", "training_compute", "train_compute", "total_compute", "compute", "compute_flops",
        "compute_flop", "flops_total", "flop_total", "compute_budget", "flops_budget", "flop_budget", "budget_flops", "budget",
        "isoflop_budget", "throughput_total_flops", "throughput_total_gflops", "total_training_flops", "c", "c_6nd", "6nd",
    ),
}  # fmt: skip
# Roles that never stop a reading: the first name found is taken.
SECONDARY: dict[str, tuple[str, ...]] = {
    "run_id": ("run_id", "runid", "id", "run_name", "run", "name", "experiment_name", "trial_id", "trial"),
    "status": ("status", "state", "run_status", "outcome"),
    "learning_rate": ("learning_rate", "lr", "peak_lr", "peak_learning_rate", "max_lr", "max_learning_rate"),
    "seed": ("seed", "random_seed", "init_seed"),
    "tokenizer": ("tokenizer", "tokeniser", "tokenizer_name", "vocab"),
    "metric": ("metric", "loss_metric", "loss_unit", "metric_name", "loss_units"),
    "corpus": ("corpus", "dataset", "training_set", "train_set", "train_dataset", "training_data", "train_data"),
    "eval_set": ("eval_set", "evaluation_set", "eval_dataset", "eval_data", "val_set", "validation_set", "val_dataset"),
    "version": ("version", "code_version", "git_sha", "git_commit", "commit", "commit_hash", "git_hash"),
    "unique_tokens": ("unique_tokens", "n_unique_tokens", "unique_d", "num_unique_tokens", "u"),
    "batch_tokens": ("batch_tokens", "tokens_per_batch", "tokens_per_step", "batch_size_tokens", "batch_size_in_tokens"),
    "steps": ("steps", "n_steps", "num_steps", "train_steps", "training_steps", "current_step", "current_steps"),
    "total_steps": ("total_steps", "max_steps", "schedule_steps", "planned_steps", "num_train_steps"),
    "schedule_end_tokens": ("schedule_end_tokens", "schedule_end", "schedule_tokens", "planned_tokens", "lr_decay_tokens"),
    "fraction": ("frac", "portion_steps_elapsed", "fraction", "fraction_done", "progress", "fraction_of_schedule"),
    "warmup_tokens": ("warmup_tokens", "n_warmup_tokens", "warm_up_tokens"),
    "warmup_steps": ("warmup_steps", "num_warmup_steps", "warmup_iters", "warm_up_steps"),
    "warmup_share": ("warmup_share", "warmup_ratio", "warmup_fraction", "warmup_percent", "warmup"),
    "vocab_size": ("vocab_size", "vocabulary_size", "n_vocab", "vocab_len"),
    "bytes_per_token": ("bytes_per_token", "avg_bytes_per_token", "bytes_token"),
    "loss_se": ("loss_se", "loss_stderr", "loss_sem", "loss_std_err", "loss_standard_error"),
    "bits_per_byte": ("bits_per_byte", "bpb"),
    "history_step": ("_step",),
}  # fmt: skip
NUMERIC_SECONDARY = (
    "learning_rate", "unique_tokens", "batch_tokens", "steps", "total_steps", "schedule_end_tokens", "fraction", "warmup_tokens",
    "warmup_steps", "warmup_share", "vocab_size", "bytes_per_token", "loss_se", "params_non_embedding", "params_active",
)  # fmt: skip
ROLES = (*PRIMARY, "loss", "params_non_embedding", "params_active", *SECONDARY)

DECLARED = {"params": ("params", "n_params"), "tokens": ("tokens", "n_tokens"), "flops": ("flops",), "loss": ("loss",)}

UNITS = {  # last word of a header: power of ten
    "k": 3, "thousand": 3, "thousands": 3, "m": 6, "mn": 6, "mil": 6, "million": 6, "millions": 6,
    "b": 9, "bn": 9, "bil": 9, "billion": 9, "billions": 9, "t": 12, "tn": 12, "trillion": 12, "trillions": 12,
}  # fmt: skip
FLOP_UNITS = {"k": 3, "m": 6, "g": 9, "t": 12, "p": 15, "e": 18, "z": 21, "y": 24}
FLOP_UNITS |= {"kilo": 3, "mega": 6, "giga": 9, "tera": 12, "peta": 15, "exa": 18, "zetta": 21, "yotta": 24}
PF_DAY = 8.64e19  # one PFLOP/s for a day
_FLOP_WORD = re.compile(rf"^({'|'.join(sorted(FLOP_UNITS, key=len, reverse=True))})(flops?)$")
_PF_DAYS = re.compile(r"^(?:(?P<base>.+)_)?(?:pf_?days?|pflops?_?s?_days?|petaflops?_?s?_days?)$")

_NON_EMBEDDING = re.compile(
    r"(?:_|^)(?:no_?emb(?:ed(?:ding)?s?)?|non_?emb(?:ed(?:ding)?s?)?|non_?vocab|without_emb(?:ed(?:ding)?s?)?"
    r"|excl(?:uding)?_emb(?:ed(?:ding)?s?)?|wo_emb(?:ed(?:ding)?s?)?)(?=_|$)"
)
_ACTIVE = re.compile(r"(?:_|^)(?:active|activated)(?=_|$)")
_PREFIX = re.compile(r"^(?:summary|config|metrics?|params|tags|hparams?|args|data)[./]+", re.IGNORECASE)

LOSS_NAMES = (
    "loss", "val_loss", "validation_loss", "valid_loss", "eval_loss", "test_loss", "heldout_loss", "held_out_loss", "final_loss",
    "final_val_loss", "final_eval_loss", "macro_loss", "l",
)  # fmt: skip
_LOSS_WORDS = {"loss", "losses", "nll", "xent", "crossentropy", "ce"}
_NOT_A_LOSS = {
    "lo", "hi", "low", "high", "lo95", "hi95", "lower", "upper", "ci", "se", "sd", "std", "sem", "stderr", "var", "variance", "error",
    "err", "delta", "diff", "gap", "weight", "coef", "coefficient", "fn", "function", "type", "name", "scale", "scaling", "spike",
    "spikes", "aux", "auxiliary", "z", "min", "max", "ema", "smoothed", "count", "n", "step", "steps", "rank", "pred", "predicted",
    "prediction", "fit", "fitted", "resid", "residual", "tolerance", "target", "balance", "balancing", "units", "unit", "metric",
    "quantile", "time", "ratio", "slope", "noise",
}  # fmt: skip
METRIC_WORDS = (  # (metric, pattern over the normalised name)
    ("bits_per_byte", re.compile(r"(?:^|_)(?:bpb|bits_per_byte)(?:_|$)")),
    ("bits_per_token", re.compile(r"(?:^|_)(?:bpt|bits_per_token)(?:_|$)")),
    ("bits_per_character", re.compile(r"(?:^|_)(?:bpc|bits_per_char(?:acter)?)(?:_|$)")),
    ("perplexity", re.compile(r"(?:^|_)(?:ppl|perplexity)(?:_|$)")),
    ("unigram_normalised", re.compile(r"(?:^|_)(?:lossu|unigram_normali[sz]ed_loss|loss_unigram_normali[sz]ed)(?:_|$)")),
)


@dataclass(frozen=True)
class Candidate:
    """A column that may play a role, with the unit that its header states."""

    column: str
    role: str
    exponent: int = 0  # power of ten in the header
    factor: float = 1.0  # a unit that is no power of ten
    unit: str = ""  # as it stands in the header
    counts: str = ""  # "non-embedding" or "active" when the name says so
    metric: str = ""  # of a loss column, when the name says so
    rank: int = 0  # the lower the clearer

    @property
    def declared(self) -> bool:
        """Whether the column carries this toolkit's own name for its role, without a unit or a qualifier."""
        own = DECLARED.get(self.role, ())
        return normalise(self.column) in own and len(self.column) > 1 and not (self.unit or self.counts or self.metric)


def normalise(header: str) -> str:
    """ "Model Size" -> model_size, "numParams" -> num_params, "eval/loss" -> eval_loss, "config.N" -> n."""
    text = _PREFIX.sub("", header.strip())
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text) if not text.islower() else text
    return re.sub(r"[^0-9a-z]+", "_", text.lower()).strip("_")


def candidates(header: str) -> list[Candidate]:
    """Every primary role that a header may name, with its unit: "training_tokens_B" -> tokens times 1e9."""
    name = normalise(header)
    found = [c for role in PRIMARY if (c := _primary(header, name, role)) is not None]
    loss = _loss(header, name)
    return found + ([loss] if loss else [])


def _primary(header: str, name: str, role: str) -> Candidate | None:
    counts, bare = _qualifier(name)
    if counts and role == "tokens":
        return None
    bare, exponent, factor, unit = _unit(bare, role)
    if bare not in PRIMARY[role] or (len(bare) == 1 and unit == "k"):  # d_k is the width of a key
        return None
    return Candidate(header, role, exponent, factor, unit, counts, rank=PRIMARY[role].index(bare))


def _qualifier(name: str) -> tuple[str, str]:
    """What a count counts when its name says so, and the name without that."""
    for counts, pattern in (("non-embedding", _NON_EMBEDDING), ("active", _ACTIVE)):
        bare, hits = pattern.subn("", name)
        if hits:
            return counts, bare.strip("_")
    return "", name


def _unit(name: str, role: str) -> tuple[str, int, float, str]:
    """The name without its unit, and the unit: power of ten, other factor, as written."""
    if name in PRIMARY[role]:
        return name, 0, 1.0, ""
    if role == "flops":
        match = _PF_DAYS.match(name)
        if match:
            return match["base"] or "compute", 0, PF_DAY, "PF-days"
        words = name.split("_")
        for place, word in enumerate(words):
            unit = _FLOP_WORD.match(word)
            if unit:
                words[place] = unit[2]
                bare = "_".join(words)
                bare = bare if bare in PRIMARY[role] else "_".join(words[:place])
                return bare, FLOP_UNITS[unit[1]], 1.0, word
    words = [word for word in name.split("_") if word != "in"]
    for end in (-1, 0):
        rest = words[:-1] if end else words[1:]
        if words[end] in UNITS and rest:
            return "_".join(rest), UNITS[words[end]], 1.0, words[end]
    return name, 0, 1.0, ""


def _loss(header: str, name: str) -> Candidate | None:
    for metric, pattern in METRIC_WORDS:
        if pattern.search(name):
            words = set(name.split("_"))
            return None if words & _NOT_A_LOSS else Candidate(header, "loss", metric=metric, rank=200)
    if name in LOSS_NAMES and header != "l":  # a small l counts layers
        return Candidate(header, "loss", rank=LOSS_NAMES.index(name))
    words = set(name.split("_"))
    if (words & _LOSS_WORDS or "cross_entropy" in name) and not words & _NOT_A_LOSS:
        return Candidate(header, "loss", rank=100)
    return None


def secondary(headers: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """Roles of lesser columns: {"learning_rate": "peak_lr"}; columns in `taken` keep the role they have."""
    names = {}
    for header in headers:
        names.setdefault(normalise(header) if header != "_step" else header, header)
    taken = set(taken)
    roles = {}
    for role, aliases in SECONDARY.items():
        column = next((names[alias] for alias in aliases if alias in names and names[alias] not in taken), None)
        if column is not None:
            roles[role] = column
            taken.add(column)
    return roles


def parse_mapping(mapping: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
    """{"params": "N"} from a mapping or from ("params=N", ..). Raises InputError for an unknown role or no "="."""
    from scaling.errors import InputError

    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        parts = [item.partition("=") for item in mapping]
        for item, (role, sign, _) in zip(mapping, parts, strict=True):
            if not sign:
                raise InputError(f'--map {item}: write it as ROLE=COLUMN, for example --map "params=Model Size".')
            if sum(role.strip() == other.strip() for other, *_ in parts) > 1:
                raise InputError(f"--map: {role.strip()} is mapped twice. Give one column for it.")
        mapping = {role: column for role, _, column in parts}
    result = {role.strip(): column for role, column in mapping.items()}
    for role in result:
        if role not in ROLES:
            raise InputError(f'--map: unknown role "{role}". Known roles: {", ".join(ROLES)}.')
    return result


def mapped(role: str, wanted: str, headers: Sequence[str]) -> Candidate:
    """The candidate that --map names: a header as written, or one followed by a unit ("size:M", "size:1e6")."""

    column, unit = _find_mapped(role, wanted, headers)
    known = next((c for c in candidates(column) if c.role == role), None)
    if unit is not None:
        return Candidate(column, role, exponent=unit, unit=f"1e{unit}", counts=known.counts if known else "")
    return known if known is not None else _own_name(column, role)


def _find_mapped(role: str, wanted: str, headers: Sequence[str]) -> tuple[str, int | None]:
    from scaling.errors import InputError

    for name in (wanted, wanted.strip()):
        if name in headers:
            return name, None
    column, _, unit = wanted.strip().rpartition(":")
    power = re.match(r"^1[eE]\+?(\d+)$", unit)
    if column in headers and (unit.lower() in UNITS or power):
        return column, int(power[1]) if power else UNITS[unit.lower()]
    raise InputError(
        f'--map {role}={wanted}: no column "{wanted}". Columns: {list_columns(headers)}.',
    )


def _own_name(column: str, role: str) -> Candidate:
    """A column that the user names for a role it does not sound like: no unit is read out of its name."""
    metric = next((m for m, pattern in METRIC_WORDS if pattern.search(normalise(column))), "") if role == "loss" else ""
    counts = _qualifier(normalise(column))[0] if role in ("params", "flops") else ""
    return Candidate(column, role, counts=counts, metric=metric)


def list_columns(headers: Iterable[str], limit: int = 24) -> str:
    """Column names for a message, cut when there are many or when they are long."""
    names = [str(header)[:40] for header in headers]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
