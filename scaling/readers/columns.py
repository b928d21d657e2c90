"""Which column can play which role: aliases as people write them, and the units that headers state."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scaling.errors import InputError
from scaling.readers.aliases import (
    DECLARED,
    LOSS_NAMES,
    LOSS_WORDS,
    NOT_A_LOSS,
    PRIMARY,
    ROLES,
    SECONDARY,
    UNITS,
)

PF_DAY = 8.64e19  # FLOPs: one PFLOP/s for a day
_FLOP_UNITS = {"k": 3, "m": 6, "g": 9, "t": 12, "p": 15, "e": 18, "z": 21, "y": 24}
_FLOP_UNITS |= {"kilo": 3, "mega": 6, "giga": 9, "tera": 12, "peta": 15, "exa": 18, "zetta": 21, "yotta": 24}
_FLOP_WORD = re.compile(rf"^({'|'.join(sorted(_FLOP_UNITS, key=len, reverse=True))})(flops?)$")
_PF_DAYS = re.compile(r"^(?:(?P<base>.+)_)?(?:pf_?days?|pflops?_?s?_days?|petaflops?_?s?_days?)$")
_POWER = re.compile(r"^1?e\+?(\d{1,2})$", re.IGNORECASE)
_EMBEDDING = r"emb(?:ed(?:ding)?s?)?"
_NON_EMBEDDING = re.compile(
    rf"(?:_|^)(?:no_?{_EMBEDDING}|non_?{_EMBEDDING}|non_?vocab|without_{_EMBEDDING}|excl(?:uding)?_{_EMBEDDING}"
    rf"|w_?o_{_EMBEDDING})(?=_|$)"
)
_BRACKETED = re.compile(r"^(?P<main>[^(\[]+)[(\[](?P<inner>[^)\]]+)[)\]]$")
_EXPLANATIONS = {
    "n",
    "d",
    "c",
    "l",
    "params",
    "parameters",
    "tokens",
    "flop",
    "flops",
    "count",
    "total",
    "nats",
    "nats_token",
}
_ACTIVE = re.compile(r"(?:_|^)(?:active|activated)(?=_|$)")
_PREFIX = re.compile(r"^(?:summary|config|metrics?|params|tags|hparams?|args|data)[./]+", re.IGNORECASE)
_METRICS = (  # (metric, pattern over the normalised name)
    ("bits_per_byte", re.compile(r"(?:^|_)(?:bpb|bits_per_byte)(?:_|$)")),
    ("bits_per_token", re.compile(r"(?:^|_)(?:bpt|bits_per_token)(?:_|$)")),
    ("bits_per_character", re.compile(r"(?:^|_)(?:bpc|bits_per_char(?:acter)?)(?:_|$)")),
    ("perplexity", re.compile(r"(?:^|_)(?:ppl|perplexity)(?:_|$)")),
    ("unigram_normalised", re.compile(r"(?:^|_)(?:lossu|unigram_normali[sz]ed(?:_loss)?)(?:_|$)")),
)


@dataclass(frozen=True)
class Candidate:
    """A column that may play a role, with what its header states."""

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
        return normalise(self.column) in own and not (self.unit or self.counts or self.metric)

    def __str__(self) -> str:
        return f'"{self.column if len(self.column) <= 60 else self.column[:57] + "..."}"'


def normalise(header: str) -> str:
    """ "Model Size" -> model_size, "numParams" -> num_params, "eval/loss" -> eval_loss, "config.N" -> n."""
    text = _PREFIX.sub("", header.strip())
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text)
    return re.sub(r"[^0-9a-z]+", "_", text.lower()).strip("_")


def candidates(header: str) -> list[Candidate]:
    """Every primary role that a header may name, with its unit: "training_tokens_B" -> tokens, times 1e9."""
    found = _roles(header, normalise(header))
    bracketed = _BRACKETED.match(header.strip())
    if not found and bracketed and normalise(bracketed["inner"]) in _EXPLANATIONS:  # "D (tokens)"
        found = _roles(header, normalise(bracketed["main"]))
    return found


def _roles(header: str, name: str) -> list[Candidate]:
    found = [_primary(header, name, role) for role in PRIMARY]
    return [candidate for candidate in (*found, _loss(header, name)) if candidate is not None]


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
    """The name without its unit; the unit as a power of ten, as another factor, and as written."""
    if name in PRIMARY[role]:
        return name, 0, 1.0, ""
    if role == "flops":
        match = _PF_DAYS.match(name)
        if match:
            return match["base"] or "compute", 0, PF_DAY, "PF-days"
        found = _flop_unit(name.split("_"))
        if found is not None:
            return found
    words = [word for word in name.split("_") if word != "in"]
    for unit, rest in ((words[-1], words[:-1]), (words[0], words[1:])) if words else ():
        power = _POWER.match(unit)
        if rest and (unit in UNITS or power):
            return "_".join(rest), int(power[1]) if power else UNITS[unit], 1.0, unit
    return name, 0, 1.0, ""


def _flop_unit(words: list[str]) -> tuple[str, int, float, str] | None:
    """total_gflops -> total_flops, 9; compute_pflops -> compute, 15. Alone, "tflops" is a speed and no compute."""
    for place, word in enumerate(words):
        unit = _FLOP_WORD.match(word)
        if unit and len(words) > 1:
            whole = "_".join([*words[:place], unit[2], *words[place + 1 :]])
            bare = whole if whole in PRIMARY["flops"] else "_".join(words[:place])
            return bare, _FLOP_UNITS[unit[1]], 1.0, word
    return None


def _loss(header: str, name: str) -> Candidate | None:
    words = set(name.split("_"))
    for metric, pattern in _METRICS:
        if pattern.search(name):
            return None if words & NOT_A_LOSS else Candidate(header, "loss", metric=metric, rank=200)
    if name in LOSS_NAMES and header != "l":  # a small l counts layers
        return Candidate(header, "loss", rank=LOSS_NAMES.index(name))
    if (words & LOSS_WORDS or "cross_entropy" in name) and not words & NOT_A_LOSS:
        return Candidate(header, "loss", rank=100)
    return None


def secondary(headers: Iterable[str], skip: Iterable[str] = ()) -> dict[str, str]:
    """Roles of lesser columns, {"learning_rate": "peak_lr"}; roles in `skip` stay without one."""
    names: dict[str, str] = {}
    for header in headers:
        names.setdefault(normalise(header) if header != "_step" else header, header)
    roles: dict[str, str] = {}
    for role, aliases in SECONDARY.items():
        column = next((names[alias] for alias in aliases if alias in names), None)
        if column is not None and role not in skip and column not in roles.values():
            roles[role] = column
    return roles


def parse_mapping(mapping: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
    """{"params": "N"} from a mapping or from ("params=N", ..). Raises InputError for an unknown role or no "="."""
    if mapping is None:
        return {}
    pairs = list(mapping.items()) if isinstance(mapping, Mapping) else [_pair(item) for item in mapping]
    result: dict[str, str] = {}
    for role, column in pairs:
        if role not in ROLES:
            raise InputError(f'--map: unknown role "{role}". Known roles: {", ".join(ROLES)}.')
        if result.setdefault(role, column) != column:
            raise InputError(f"--map: {role} is mapped twice. Give one column for it.")
    return result


def _pair(item: str) -> tuple[str, str]:
    role, sign, column = item.partition("=")
    if not sign:
        raise InputError(f'--map {item}: write it as ROLE=COLUMN, for example --map "params=Model Size".')
    return role.strip(), column


def mapped(role: str, wanted: str, headers: Sequence[str]) -> Candidate:
    """The candidate that --map names: a header as written, or one followed by a unit ("size:M", "size:1e6").

    Raises InputError that lists the headers.
    """
    column, exponent, unit = _find_mapped(role, wanted, headers)
    known = next((c for c in candidates(column) if c.role == role), None)
    counts = _qualifier(normalise(column))[0] if role in ("params", "flops") else ""
    if unit:
        return Candidate(column, role, exponent=exponent, unit=unit, counts=counts)
    if known is not None:
        return known
    metric = next((m for m, pattern in _METRICS if pattern.search(normalise(column))), "") if role == "loss" else ""
    return Candidate(column, role, counts=counts, metric=metric)


def _find_mapped(role: str, wanted: str, headers: Sequence[str]) -> tuple[str, int, str]:
    for name in (wanted, wanted.strip()):
        if name in headers:
            return name, 0, ""
    column, _, unit = wanted.strip().rpartition(":")
    power = _POWER.match(unit)
    if column in headers and (unit.lower() in UNITS or power):
        return column, int(power[1]) if power else UNITS[unit.lower()], unit
    raise InputError(f'--map {role}={wanted}: no column "{wanted}". Columns: {list_columns(headers)}.')


def list_columns(headers: Iterable[str], limit: int = 24) -> str:
    """Column names for a message, each once, cut when there are many or when they are long."""
    names = list(dict.fromkeys(str(header)[:40] for header in headers))
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
