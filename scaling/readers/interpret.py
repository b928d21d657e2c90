"""One raw table under our names: which column is what, its numbers in float64, what was derived, all of it said."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from scaling.errors import InputError
from scaling.metrics import METRICS, NATS, parse_metric, to_nats
from scaling.quantities import format_quantity
from scaling.readers import columns
from scaling.readers.aliases import NUMERIC, RENAMED
from scaling.readers.choosing import CANONICAL, COMPUTED, Choice, choose
from scaling.readers.numbers import shortest, to_float64
from scaling.readers.raw import RawTable


@dataclass
class Interpreted:
    """A table under our names. `texts` holds, by role and position, what stands in cells that are no number."""

    frame: pd.DataFrame
    names: dict[str, str]  # header in the file: name in `frame`
    roles: dict[str, str]  # lesser role: column in `frame`
    texts: dict[str, dict[int, str]]
    source: str | list[str]  # the file, or that of each row
    unit: str
    metric: str = NATS
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    compute_given: bool = False  # whether N, D and C each have a column, so that 6ND/C says something


def interpret(table: RawTable, *, mapping: dict[str, str], metric: str | None = None) -> Interpreted:
    """A raw table with the columns params, tokens, loss and flops in float64, and all others beside them.

    Raises InputError for what `choose` cannot choose, an unknown metric, or a loss that no law of this form can fit.
    """
    chosen = choose(table, mapping)
    result = _rename(table, chosen, mapping)
    result.compute_given = {"params", "tokens", "flops"} <= set(chosen)
    for role, choice in chosen.items():
        result.frame[role] = choice.numbers.values
        result.texts[role] = choice.numbers.texts
        result.notes.extend(_say_choice(table, role, choice))
    _read_lesser(result)
    _derive(result, chosen)
    _convert_loss(table, result, chosen["loss"], metric)
    _doubt_choices(result, chosen)
    result.frame["row"] = table.lines
    if "source" not in result.frame:
        result.frame["source"] = table.files or table.name
    result.frame = result.frame[[*CANONICAL, *(c for c in result.frame.columns if c not in CANONICAL)]]
    return result


def _rename(table: RawTable, chosen: dict[str, Choice], mapping: dict[str, str]) -> Interpreted:
    """The columns that play no primary role, under our names where other commands look for them."""
    headers = list(table.frame.columns)
    names = {choice.candidate.column: role for role, choice in chosen.items()}
    roles = columns.secondary(headers, skip=mapping)
    for candidate in (c for header in headers for c in columns.candidates(header)):
        role = {"non-embedding": "params_non_embedding", "active": "params_active"}.get(candidate.counts, "")
        if role and candidate.role == "params" and not candidate.unit:
            roles.setdefault(role, candidate.column)
    roles |= {
        role: columns.mapped(role, column, headers).column
        for role, column in mapping.items()
        if role not in CANONICAL and column.strip()
    }
    if "run_id" in roles and roles["run_id"] in names:
        del roles["run_id"]
    for role in RENAMED:
        if role in roles and roles[role] not in names:
            names[roles[role]] = role
            roles[role] = role
    ours = {*CANONICAL, *RENAMED, "row"}
    rest = [header for header in headers if names.get(header) not in CANONICAL]
    frame = table.frame[rest].copy(deep=False)
    frame.columns = pd.Index([names.get(h) or (f"{h} (in the file)" if h in ours else h) for h in rest], dtype=object)
    roles = {role: names.get(column, column) for role, column in roles.items()}
    if "run_id" in frame:
        frame["run_id"] = _as_text(frame["run_id"])
    return Interpreted(
        frame, names, roles, {}, table.files or table.name, table.unit, NATS, [*table.notes], [*table.warnings]
    )


def _as_text(column: pd.Series) -> pd.Series:
    """Ids as texts, None where there is none."""
    if isinstance(column.dtype, pd.StringDtype):
        return column
    return column.astype(object).where(column.notna(), None).map(lambda value: None if value is None else str(value))


def _say_choice(table: RawTable, role: str, choice: Choice) -> list[str]:
    """How a column was understood: its name, its unit, its rivals and the forms of its cells."""
    candidate, said = choice.candidate, []
    if candidate.column != role or choice.remark:
        parts = [f"{role} = {candidate}"]
        if candidate.unit:
            parts.append(f"in {candidate.unit}{_example(table, choice)}")
        said.append(", ".join([*parts, *([choice.remark] if choice.remark else [])]))
    for form, (text, value) in choice.numbers.forms.items():
        said.append(f'{role}: cells with {form} read as numbers: "{text}" is {shortest(value)}')
    return said


def _example(table: RawTable, choice: Choice) -> str:
    place = np.flatnonzero(np.isfinite(choice.numbers.values))
    if not len(place):
        return ""
    text = str(table.frame[choice.candidate.column].iloc[place[0]])[:20]
    return f" ({text} is {format_quantity(float(choice.numbers.values[place[0]]), digits=6)})"


def _read_lesser(result: Interpreted) -> None:
    """Lesser columns that hold numbers alone as float64; the others stay as they are."""
    numeric = {result.roles[role] for role in NUMERIC if role in result.roles}
    for name in result.frame.columns:
        column = result.frame[name]
        if name in CANONICAL or name == "run_id" or not (name in numeric or column.dtype == object):
            continue
        try:
            found = to_float64(column, percent=name in numeric)
        except InputError:
            continue
        if not found.unreadable and (name in numeric or not found.forms):
            result.frame[name] = found.values


def _derive(result: Interpreted, chosen: dict[str, Choice]) -> None:
    """Fill tokens, params or flops from the other two by C = 6ND, in float64; say which."""
    frame, roles, notes = result.frame, result.roles, result.notes
    with np.errstate(all="ignore"):
        if "tokens" not in chosen and {"steps", "batch_tokens"} <= set(roles):
            frame["tokens"] = frame[roles["steps"]].astype(float) * frame[roles["batch_tokens"]].astype(float)
            notes.append(f'tokens = "{roles["steps"]}" x "{roles["batch_tokens"]}"')
        elif "tokens" not in chosen:
            frame["tokens"] = frame["flops"] / (6.0 * frame["params"])
            notes.append(f"tokens derived: D = {COMPUTED['tokens'].replace('6N', '(6N)')}")
        if "params" not in chosen:
            frame["params"] = frame["flops"] / (6.0 * frame["tokens"])
            notes.append(f"params derived: N = {COMPUTED['params'].replace('6D', '(6D)')}")
        product = 6.0 * frame["params"] * frame["tokens"]
    if "flops" not in chosen:
        frame["flops"] = product
        notes.append("flops derived: C = 6ND")
    else:
        _fill_flops(result, product)


def _fill_flops(result: Interpreted, product: pd.Series) -> None:
    """6ND in the empty cells of a compute column."""
    empty = result.frame["flops"].isna().to_numpy(copy=True)
    empty[list(result.texts.get("flops", ()))] = False
    if empty.any() and not empty.all():
        result.notes.append(f"flops: 6ND in {int(empty.sum())} empty cells")
    result.frame["flops"] = result.frame["flops"].where(~empty, product)


def _convert_loss(table: RawTable, result: Interpreted, choice: Choice, metric: str | None) -> None:
    """The loss in nats per token where that needs no assumption; else in its own metric, said."""
    frame, roles = result.frame, result.roles
    each = roles.get("bytes_per_token")
    size = to_float64(frame[each]).values if each else None
    if metric is None and not choice.candidate.metric and "metric" in roles:
        _convert_by_row(table, result, size)
        return
    stated = parse_metric(metric) if metric is not None else choice.candidate.metric or NATS
    if stated == "unigram_normalised":
        _refuse_normalised(table, result, choice)
    frame["loss"], result.metric, said = to_nats(frame["loss"].to_numpy(dtype=float), stated, size)
    result.notes.extend([said] if said else [])
    if result.metric != NATS:
        result.warnings.append(f"the loss is in {METRICS[result.metric]}, not nats per token, and so is the fitted E")


def _convert_by_row(table: RawTable, result: Interpreted, size: np.ndarray | None) -> None:
    frame, column = result.frame, result.roles["metric"]
    known: dict[object, str] = {}
    for position, value in enumerate(frame[column]):
        if value not in known:
            try:
                known[value] = parse_metric(value)
            except InputError as error:
                way = 'Say what the loss is in with --metric, or ignore the column with --map "metric=".'
                raise InputError(f"{table.place(position)}: column {column}: {error} {way}") from error
    stated = np.array([known[value] for value in frame[column]], dtype=object)
    values, kept = frame["loss"].to_numpy(dtype=float).copy(), stated.copy()
    for name in dict.fromkeys(stated):
        rows = stated == name
        values[rows], new, said = to_nats(values[rows], name, None if size is None else size[rows])
        kept[rows] = new
        result.notes.extend([f"{int(rows.sum())} rows: {said}"] if said else [])
    frame["loss"], frame[column] = values, kept
    result.metric = kept[0] if len(set(kept)) == 1 else "mixed"


def _refuse_normalised(table: RawTable, result: Interpreted, choice: Choice) -> None:
    loss = choice.numbers.values
    negative = np.flatnonzero(loss < 0)
    where = f": {shortest(loss[negative[0]])} at {table.unit} {table.lines[negative[0]]}" if len(negative) else ""
    raise InputError(
        f"{table.name}: {choice.candidate} is a loss normalised by a unigram model{where}. It has no floor E > 0 and "
        "no logarithm, so no L = E + A/N^alpha + B/D^beta fits it. Give the cross-entropy in nats per token."
    )


def _doubt_choices(result: Interpreted, chosen: dict[str, Choice]) -> None:
    """Warn of counts that are not all parameters, of training losses, and of sizes that look short of a unit."""
    if "params" in chosen and chosen["params"].candidate.counts:
        candidate = chosen["params"].candidate
        result.warnings.append(
            f"params are {candidate.counts} parameters ({candidate}), not all of them: exponents and optima then speak "
            "of that count"
        )
    loss = chosen["loss"].candidate
    if {"train", "training"} & set(columns.normalise(loss.column).split("_")):
        result.warnings.append(f"{loss} is a training loss, not a held-out one")
    for role in ("params", "tokens"):
        values = result.frame[role].to_numpy(dtype=float)
        largest = np.nanmax(values, initial=-np.inf)
        if role in chosen and 0 < largest < 1e4:
            result.warnings.append(
                f"{role} run up to {shortest(float(largest))}: if they are in millions or billions, say so with "
                f"--map {role}={chosen[role].candidate.column}:M or :B"
            )
