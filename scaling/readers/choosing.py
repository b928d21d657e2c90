"""One column for each of params, tokens, loss and flops, or the choice that only the user can make."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.errors import InputError
from scaling.readers import columns
from scaling.readers.columns import Candidate
from scaling.readers.numbers import Numbers, to_float64
from scaling.readers.raw import RawTable

CANONICAL = ("params", "tokens", "loss", "flops")
COMPUTED = {"flops": "6ND", "tokens": "C/6N", "params": "C/6D"}  # what --map takes in place of a column
_SHOWN = 8  # rivals named in a message


@dataclass(frozen=True)
class Choice:
    """The column of a role, its numbers, and a remark on rivals that were set aside."""

    candidate: Candidate
    numbers: Numbers
    remark: str = ""


def choose(table: RawTable, mapping: dict[str, str]) -> dict[str, Choice]:
    """The column of each primary role that has one.

    Raises InputError when a required role has none that could be derived, or several between which the table does not
    say which is meant; the message holds the --map option for each choice.
    """
    headers = list(table.frame.columns)
    found = [c for header in headers for c in columns.candidates(header) if header not in mapping.values()]
    chosen: dict[str, Choice] = {}
    trouble: dict[str, str] = {}
    for role in CANONICAL:
        if role in mapping:
            if mapping[role].strip() not in ("", COMPUTED.get(role)):
                candidate = columns.mapped(role, mapping[role], headers)
                chosen[role] = Choice(candidate, read_column(table, candidate))
            continue
        rivals = sorted((c for c in found if c.role == role), key=lambda c: (c.counts != "", c.metric != "", c.rank))
        if role == "loss" and not rivals[:1] == [] and not rivals[0].metric:
            rivals = [c for c in rivals if not c.metric]  # bits and perplexity only where nothing is in nats
        if rivals:
            decision = _decide(table, role, rivals)
            if isinstance(decision, Choice):
                chosen[role] = decision
            else:
                trouble[role] = decision
    _refuse_gaps(table, set(chosen), trouble)
    return chosen


def read_column(table: RawTable, candidate: Candidate) -> Numbers:
    """The numbers of a column in the unit of its role. Raises InputError that names the column."""
    try:
        found = to_float64(
            table.frame[candidate.column],
            exponent=candidate.exponent,
            comma_decimals=table.comma_decimals or candidate.role == "loss",
        )
    except InputError as error:
        raise InputError(f"{table.name}: column {candidate}: {error}") from error
    if candidate.factor != 1.0:
        found.values = found.values * candidate.factor
    return found


def _decide(table: RawTable, role: str, rivals: list[Candidate]) -> Choice | str:
    """The one column for a role, or the choice to make when there are several."""
    first, *others = rivals
    numbers = read_column(table, first)
    if not others:
        return Choice(first, numbers)
    if all(_agree(role, first, numbers, other, read_column(table, other)) for other in others):
        return Choice(first, numbers, f"the same numbers as {_named(others)}")
    own = [c for c in rivals if c.declared]
    if len(own) == 1 and own[0].column == role and {"run_id", "status"} <= set(table.frame.columns):
        return Choice(own[0], read_column(table, own[0]))  # a table of ours: each column means what it says
    if len(own) == 1 and (role != "loss" or _all_variants(rivals)):
        rest = [c for c in rivals if c is not own[0]]
        remark = f"set aside: {_named(rest)} (--map {role}=COLUMN takes another)"
        return Choice(own[0], read_column(table, own[0]), remark)
    choices = " or ".join(f'--map "{role}={c.column}"' for c in rivals[:_SHOWN])
    computed = ', or compute it with --map "flops=6ND"' if role == "flops" else ""
    return f"{len(rivals)} columns can be {role}: {_named(rivals)}. Choose with {choices}{computed}."


def _all_variants(rivals: Sequence[Candidate]) -> bool:
    """Whether the rivals of `loss` are named after it ("loss_c4_val"), none a loss of another kind ("val_loss")."""
    return all(columns.normalise(c.column).startswith("loss") for c in rivals)


def _agree(role: str, one: Candidate, first: Numbers, other: Candidate, second: Numbers) -> bool:
    """Whether two columns hold the same numbers; computes may differ by rounding in the sixth digit."""
    if (one.counts, one.metric) != (other.counts, other.metric) or first.unreadable or second.unreadable:
        return False
    return np.allclose(first.values, second.values, rtol=1e-6 if role == "flops" else 0.0, atol=0.0, equal_nan=True)


def _named(candidates: Sequence[Candidate]) -> str:
    more = f" and {len(candidates) - _SHOWN} more" if len(candidates) > _SHOWN else ""
    return ", ".join(map(str, candidates[:_SHOWN])) + more


def _refuse_gaps(table: RawTable, chosen: set[str], trouble: dict[str, str]) -> None:
    """Raise InputError when a choice is open, or when params, tokens or loss have no column and cannot be derived."""
    headers = list(table.frame.columns)
    known = chosen | set(trouble)
    if {"steps", "batch_tokens"} <= set(columns.secondary(headers)):
        known.add("tokens")
    lacking = [role for role in ("params", "tokens", "loss") if role not in known]
    derivable = "flops" in known and len({"params", "tokens"} & known) == 1
    lacking = [role for role in lacking if role == "loss" or not derivable]
    messages = list(trouble.values())
    if lacking:
        options = " ".join(f"--map {role}=COLUMN" for role in lacking)
        compute = ", or give the training compute (flops)" if lacking in (["params"], ["tokens"]) else ""
        alone = (
            " The file has one column: is it delimited by comma, tab, semicolon or bar?" if len(headers) == 1 else ""
        )
        messages.append(
            f"no column for {', '.join(lacking)}.{alone} Columns: {columns.list_columns(headers)}. "
            f"Name {'it' if len(lacking) == 1 else 'them'} with {options}{compute}."
        )
    if messages:
        raise InputError(f"{table.name}: " + "\n  ".join([*messages, *_quirks(table)]))


def _quirks(table: RawTable) -> list[str]:
    """What else its reader should know about the losses of a table that is refused."""
    remarks = []
    for candidate in (c for header in table.frame.columns for c in columns.candidates(header) if c.role == "loss"):
        values = read_column(table, candidate).values
        for bad, meaning in ((values < 0, "negative"), (values == 0, "zero, as unfinished runs are written,")):
            if bad.any():
                first = int(table.lines[np.flatnonzero(bad)[0]])
                remarks.append(f"Besides, {candidate} is {meaning} in {int(bad.sum())} rows (first: line {first}).")
    return remarks
