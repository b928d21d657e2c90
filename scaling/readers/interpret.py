"""One raw table under our names: which column is what, its numbers in float64, what was derived, all of it said."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from scaling.errors import InputError
from scaling.metrics import METRICS, parse_metric, to_nats
from scaling.quantities import format_quantity
from scaling.readers import columns
from scaling.readers.columns import Candidate
from scaling.readers.numbers import Numbers, shortest, to_float64
from scaling.readers.raw import RawTable

CANONICAL = ("params", "tokens", "loss", "flops")
DERIVED = {"flops": "6ND", "tokens": "C/6N", "params": "C/6D"}  # what --map takes in place of a column


@dataclass
class Interpreted:
    """A table under our names. `unreadable` holds, by role, the text of cells that are no number, by position."""

    frame: pd.DataFrame
    names: dict[str, str]  # header in the file: name in `frame`
    roles: dict[str, str]  # lesser role: column in `frame`
    unreadable: dict[str, dict[int, str]]
    metric: str
    unit: str
    source: str
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def interpret(table: RawTable, *, mapping: dict[str, str], metric: str | None = None) -> Interpreted:
    """Map the columns of a raw table onto params, tokens, loss and flops.

    Raises InputError when a role has no column, or two between which only the user can choose; the message holds the
    --map option for each choice.
    """
    chosen, notes = _choose(table, mapping)
    numbers = {role: _numbers(table, choice) for role, choice in chosen.items()}
    frame, names, roles = _rename(table, chosen, mapping)
    for role, found in numbers.items():
        frame[role] = found.values
        notes.extend(_say_conversion(table, chosen[role], found))
    for role in columns.NUMERIC_SECONDARY:
        if role in roles:
            frame[roles[role]] = _lesser_numbers(frame[roles[role]])
    result = Interpreted(
        frame, names, roles, {role: found.unreadable for role, found in numbers.items()}, "", table.unit, table.name, notes, []
    )
    result.notes[:0], result.warnings[:0] = table.notes, table.warnings
    _derive(table, result, chosen)
    _convert_loss(table, result, chosen["loss"], metric)
    _warn_about_counts(result, chosen)
    frame["row"], frame["source"] = table.lines, frame["source"] if "source" in frame else table.name
    result.frame = frame[[*CANONICAL, *(c for c in frame.columns if c not in CANONICAL)]]
    return result


# ------------------------------------------------------------------------------------------------ choosing columns


def _choose(table: RawTable, mapping: dict[str, str]) -> tuple[dict[str, Candidate], list[str]]:
    """The column of each primary role. Raises InputError for roles without a column or with a choice to make."""
    headers = list(table.frame.columns)
    found = [c for header in headers for c in columns.candidates(header)]
    chosen: dict[str, Candidate] = {}
    notes: list[str] = []
    trouble: list[str] = []
    for role in ("params", "tokens", "loss", "flops"):
        if role in mapping:
            if mapping[role].strip() not in ("", DERIVED.get(role)):
                chosen[role] = columns.mapped(role, mapping[role], headers)
            continue
        rivals = sorted((c for c in found if c.role == role), key=lambda c: (c.counts != "", c.rank))
        rivals = [c for c in rivals if c.column not in mapping.values()]
        if role == "loss":
            rivals = _held_to_metric(rivals)
        if not rivals:
            continue
        choice, note = _decide(table, role, rivals)
        if choice is None:
            trouble.append(note)
        else:
            chosen[role] = choice
            notes.extend([note] if note else [])
    _require(table, chosen, mapping, headers, trouble)
    return chosen, notes


def _held_to_metric(rivals: list[Candidate]) -> list[Candidate]:
    """Columns in bits or perplexity stand for the loss only where none is in nats."""
    plain = [c for c in rivals if not c.metric]
    return plain or rivals


def _decide(table: RawTable, role: str, rivals: list[Candidate]) -> tuple[Candidate | None, str]:
    """The one column for a role, and what to say; None and the choice to make when there are several."""
    first, *others = rivals
    if not others:
        return first, ""
    if all(_same_numbers(table, first, other) for other in others):
        return first, f"{role} from {_quote(first)}; {_list(others)} holds the same numbers"
    own = [c for c in rivals if c.declared]
    if len(own) == 1 and (role != "loss" or _are_variants(own[0], rivals)):
        rest = [c for c in rivals if c is not own[0]]
        return own[0], f"{role} from {_quote(own[0])}; set aside: {_list(rest)} (take another with --map {role}=COLUMN)"
    choices = " or ".join(f'--map "{role}={c.column}"' for c in rivals[:8])
    more = f" (and {len(rivals) - 8} more)" if len(rivals) > 8 else ""
    none = ', or --map "flops=6ND" to compute it' if role == "flops" else ""
    return None, f"{len(rivals)} columns can be {role}: {_list(rivals)}. Choose with {choices}{more}{none}."


def _are_variants(own: Candidate, rivals: Sequence[Candidate]) -> bool:
    """Whether the rivals of `loss` are named after it ("loss_c4_val"), not a loss of another kind ("val_loss")."""
    return all(c is own or columns.normalise(c.column).startswith("loss_") for c in rivals)


def _same_numbers(table: RawTable, one: Candidate, other: Candidate) -> bool:
    """Whether two columns hold the same numbers; computes may differ by rounding in the sixth digit."""
    if one.counts != other.counts or one.metric != other.metric:
        return False
    a, b = _numbers(table, one), _numbers(table, other)
    if a.unreadable or b.unreadable:
        return False
    return np.allclose(a.values, b.values, rtol=1e-6 if one.role == "flops" else 0.0, atol=0.0, equal_nan=True)


def _quote(candidate: Candidate) -> str:
    return f'"{candidate.column[:40]}"'


def _list(candidates: Sequence[Candidate]) -> str:
    more = f" and {len(candidates) - 8} more" if len(candidates) > 8 else ""
    return ", ".join(_quote(c) for c in candidates[:8]) + more


def _require(table: RawTable, chosen: dict, mapping: dict[str, str], headers: list[str], trouble: list[str]) -> None:
    known = set(chosen)
    if {"steps", "batch_tokens"} <= set(columns.secondary(headers, ())):
        known.add("tokens")
    named = {note.split(" columns can be ")[1].split(":")[0] for note in trouble}
    lacking = [role for role in ("params", "tokens", "loss") if role not in known | named]
    if lacking in (["params"], ["tokens"]) and "flops" in known | named:
        lacking = []  # from 6ND = C
    if lacking:
        trouble.append(
            f"no column for {' and '.join(lacking)}. Columns: {columns.list_columns(headers)}. "
            f"Name {'it' if len(lacking) == 1 else 'them'} with {' '.join(f'--map {role}=COLUMN' for role in lacking)}"
            + (", or give the training compute (flops)." if len(lacking) == 1 and lacking != ["loss"] else ".")
        )
    if trouble:
        raise InputError(f"{table.name}: " + "\n  ".join([*trouble, *_quirks(table, headers)]))


def _quirks(table: RawTable, headers: list[str]) -> list[str]:
    """What else a reader should know about a loss column of a table that is refused."""
    remarks = []
    for candidate in (c for header in headers for c in columns.candidates(header) if c.role == "loss"):
        found = _numbers(table, candidate)
        for bad, meaning in ((found.values < 0, "negative"), (found.values == 0, "zero, as unfinished runs are written")):
            if bad.any():
                first = int(table.lines[int(np.flatnonzero(bad)[0])])
                remarks.append(
                    f"{_quote(candidate)} is {meaning} in {int(bad.sum())} rows (first at {table.unit} {first})."
                )
    return remarks


# ------------------------------------------------------------------------------------------------------- numbers


def _numbers(table: RawTable, choice: Candidate) -> Numbers:
    try:
        found = to_float64(
            table.frame[choice.column], exponent=choice.exponent, semicolons='delimiter ";"' in table.notes
        )
    except InputError as error:
        raise InputError(f"{table.name}: column {_quote(choice)}: {error}") from error
    if choice.factor != 1.0:
        found.values = found.values * choice.factor
    return found


def _lesser_numbers(column: pd.Series) -> pd.Series:
    """A column of numbers as float64 when every cell is one, else as it is."""
    try:
        found = to_float64(column)
    except InputError:
        return column
    return column if found.unreadable else pd.Series(found.values, index=column.index)


def _say_conversion(table: RawTable, choice: Candidate, found: Numbers) -> list[str]:
    """How a column was understood: its name, its unit and the forms of its cells."""
    said = []
    if columns.normalise(choice.column) != choice.role or choice.unit:
        unit = f", in {choice.unit}" if choice.unit else ""
        said.append(f"{choice.role} = {_quote(choice)}{unit}{_example(table, choice, found)}")
    for form, example in found.forms.items():
        said.append(f'{choice.role}: {form} understood, "{example}" is {shortest(_value_of(table, choice, found, example))}')
    return said


def _example(table: RawTable, choice: Candidate, found: Numbers) -> str:
    if not choice.unit:
        return ""
    place = next((i for i, value in enumerate(found.values) if np.isfinite(value)), None)
    if place is None:
        return ""
    return f": {str(table.frame[choice.column].iloc[place])[:20]} is {format_quantity(float(found.values[place]), digits=6)}"


def _value_of(table: RawTable, choice: Candidate, found: Numbers, example: str) -> float:
    texts = table.frame[choice.column].astype(str).str.strip()
    hits = np.flatnonzero((texts == example).to_numpy())
    return float(found.values[hits[0]]) if len(hits) else float("nan")


def _rename(
    table: RawTable, chosen: dict[str, Candidate], mapping: dict[str, str]
) -> tuple[pd.DataFrame, dict[str, str], dict[str, str]]:
    """The frame without the primary columns, run_id and status under our names; old name -> new; lesser roles."""
    primary = {choice.column: role for role, choice in chosen.items()}
    headers = [header for header in table.frame.columns if header not in primary]
    roles = columns.secondary(headers, ())
    for candidate in (c for header in headers for c in columns.candidates(header)):
        role = {"non-embedding": "params_non_embedding", "active": "params_active"}.get(candidate.counts)
        if role and candidate.role == "params" and not candidate.unit:
            roles.setdefault(role, candidate.column)
    for role, column in mapping.items():
        if role not in CANONICAL:
            roles[role] = columns.mapped(role, column, list(table.frame.columns)).column
    names = dict(primary)
    for role in ("run_id", "status"):
        if role in roles and roles[role] not in primary:
            names[roles[role]] = role
            roles[role] = role
    fresh = {*CANONICAL, "row"}
    frame = table.frame[headers].copy(deep=False)
    frame.columns = pd.Index(
        [names.get(h, f"{h} (in the file)" if h in fresh else h) for h in headers], dtype=object
    )
    return frame.loc[:, ~frame.columns.duplicated()], names, {r: names.get(c, c) for r, c in roles.items()}


# ------------------------------------------------------------------------------------------------ derived columns


def _derive(table: RawTable, result: Interpreted, chosen: dict[str, Candidate]) -> None:
    """Fill tokens, params or flops from the other two by C = 6ND, in float64; say which."""
    frame, roles = result.frame, result.roles
    with np.errstate(all="ignore"):
        if "tokens" not in chosen and {"steps", "batch_tokens"} <= set(roles):
            frame["tokens"] = frame[roles["steps"]].astype(float) * frame[roles["batch_tokens"]].astype(float)
            result.notes.append(f"tokens = {roles['steps']} x {roles['batch_tokens']}")
        elif "tokens" not in chosen:
            frame["tokens"] = frame["flops"] / (6.0 * frame["params"])
            result.notes.append("tokens derived: D = C/(6N)")
        if "params" not in chosen:
            frame["params"] = frame["flops"] / (6.0 * frame["tokens"])
            result.notes.append("params derived: N = C/(6D)")
        if "flops" not in chosen:
            frame["flops"] = 6.0 * frame["params"] * frame["tokens"]
            result.notes.append("flops = 6ND")


def _convert_loss(table: RawTable, result: Interpreted, choice: Candidate, metric: str | None) -> None:
    """The loss in nats per token where it can be; else its metric, said and kept."""
    frame, roles = result.frame, result.roles
    each = roles.get("bytes_per_token")
    size = pd.to_numeric(frame[each], errors="coerce").to_numpy(dtype=float) if each else None
    if metric is None and not choice.metric and "metric" in roles:
        _convert_by_row(table, result, size)
        return
    stated = parse_metric(metric) if metric is not None else choice.metric or "nats_per_token"
    if stated == "unigram_normalised":
        _refuse_normalised(table, result, choice)
    values, result.metric, said = to_nats(frame["loss"].to_numpy(dtype=float), stated, size)
    frame["loss"] = values
    if said:
        result.notes.append(said)
    if result.metric != "nats_per_token":
        result.warnings.append(f"the loss is in {METRICS[result.metric]}, not nats per token: so is the fitted E")


def _convert_by_row(table: RawTable, result: Interpreted, size: np.ndarray | None) -> None:
    frame, column = result.frame, result.roles["metric"]
    try:
        stated = frame[column].map(parse_metric, na_action=None)
    except InputError as error:
        raise InputError(f"{table.name}: column {column}: {error}") from error
    values = frame["loss"].to_numpy(dtype=float).copy()
    kept = stated.to_numpy(dtype=object).copy()
    for name in stated.unique():
        rows = (stated == name).to_numpy()
        values[rows], new, said = to_nats(values[rows], name, None if size is None else size[rows])
        kept[rows] = new
        if said:
            result.notes.append(f"{int(rows.sum())} rows: {said}")
    frame["loss"], frame[column] = values, kept
    metrics = sorted(set(kept))
    result.metric = metrics[0] if len(metrics) == 1 else "mixed"


def _refuse_normalised(table: RawTable, result: Interpreted, choice: Candidate) -> None:
    loss = result.frame["loss"].to_numpy(dtype=float)
    negative = np.flatnonzero(loss < 0)
    where = f": {shortest(loss[negative[0]])} at {table.unit} {table.lines[negative[0]]}" if len(negative) else ""
    raise InputError(
        f"{table.name}: {_quote(choice)} is a loss normalised by a unigram model{where}. It has no floor E > 0 and no logarithm, "
        "so L = E + A/N^alpha + B/D^beta cannot be fitted to it. Give the plain cross-entropy in nats per token."
    )


def _warn_about_counts(result: Interpreted, chosen: dict[str, Candidate]) -> None:
    if "params" in chosen and chosen["params"].counts:
        counts = chosen["params"].counts
        result.warnings.append(
            f'params are {counts} parameters ("{chosen["params"].column}"), not all of them: exponents and optima '
            "then speak of that count"
        )
    if "loss" in chosen and {"train", "training"} & set(columns.normalise(chosen["loss"].column).split("_")):
        result.warnings.append(f'"{chosen["loss"].column}" is a training loss, not a held-out one')
