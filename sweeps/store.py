"""The store: one folder per run, from which runs.csv is assembled and can be rebuilt at any time.

    DIR/grid.toml, plan.json          what was asked for
    DIR/runs/RUN_ID/result.json       one finished attempt with its checksum: done, diverged or failed
    DIR/curves/RUN_ID.csv             its loss curve
    DIR/trunks/TRUNK/                 checkpoints, lease, progress.json and attempts.jsonl of a trunk and its branches
    DIR/runs.csv                      every result, sorted, replaced whole

A result that is done or diverged is written once and never replaced: the first writer wins. A failed one gives way.
"""

import contextlib
import csv
import hashlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scaling.errors import SweepError
from sweeps import durable
from sweeps.checkpoints import FileCheckpoint
from sweeps.config import RunConfig
from sweeps.table import curve_text, planned_row, row_order, table_text

FINAL = ("done", "diverged")  # a failed run is trained again by the next sweep
STALE_SECONDS = 600.0
_PROGRESS = {"tokens_done": int | float, "tokens_total": int | float, "loss": float | None, "time": float}
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


@dataclass(frozen=True)
class Result:
    """One finished attempt at a run."""

    run_id: str
    status: str  # done, diverged or failed
    reason: str | None
    row: dict[str, Any]


class Store:
    """The folder of one sweep; owns every path in it."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise SweepError(f"{self.folder} is a file; a sweep is written into a folder. Choose another --out.")

    @property
    def runs_csv(self) -> Path:
        return self.folder / "runs.csv"

    @property
    def plan_file(self) -> Path:
        return self.folder / "plan.json"

    @property
    def stop_file(self) -> Path:
        return self.folder / "stop"

    def run_folder(self, run_id: str) -> Path:
        return self.folder / "runs" / safe_name(run_id)

    def trunk_folder(self, trunk: str) -> Path:
        return self.folder / "trunks" / safe_name(trunk)

    def result_file(self, run_id: str) -> Path:
        return self.run_folder(run_id) / "result.json"

    def checkpoint(self, trunk: str, run_ids: Iterable[str], warn=lambda message: None) -> FileCheckpoint:
        return FileCheckpoint(self.trunk_folder(trunk), run_ids, warn=warn)

    # Results

    def write_result(
        self, config: RunConfig, status: str, *, row: Mapping[str, Any] | None = None, reason: str | None = None,
        loss: float | None = None, loss_se: float | None = None, curve: Iterable[Mapping[str, Any]] = (),
    ) -> bool:  # fmt: skip
        """Write one finished attempt, durably. False when a final result was there already and stays.

        The loss is kept only with status "done"; a "done" without a finite loss is written as diverged.
        Raises StorageError when the disk will not take it.
        """
        if status == "done" and (loss is None or not math.isfinite(loss)):
            status, reason = "diverged", reason or f"the loss is {loss}"
        values = {**planned_row(config), **(row or {})}
        if status == "failed":  # what a run has seen is written, never its plan
            values.update(tokens=None, flops=None, steps=None)
        done = status == "done"
        values.update(run_id=config.run_id, status=status, reason=_one_line(reason))
        values.update(loss=loss if done else None, loss_se=loss_se if done else None)
        if not done:
            values["bits_per_byte"] = None
        values = {name: _plain(value) for name, value in values.items()}
        curve = list(curve)
        if curve:
            durable.make_folder(self.folder / "curves")
            durable.replace(self.folder / "curves" / f"{config.run_id}.csv", curve_text(curve).encode())
        return self._put(config, Result(config.run_id, status, values["reason"], values))

    def _put(self, config: RunConfig, result: Result) -> bool:
        durable.make_folder(self.run_folder(result.run_id))
        path = self.result_file(result.run_id)
        content = _seal({**asdict(result), "config": config.to_dict()})
        while not durable.create(path, content):
            standing, _ = self._read(result.run_id)
            if standing is not None and standing.status in FINAL:
                return False
            if result.status == "failed" and standing is not None:
                durable.replace(path, content)
                return True
            self._set_aside(path)  # a failed attempt, or a damaged file: make room, and be first again
        return True

    def result(self, run_id: str) -> Result | None:
        """The result of a run, or None. A damaged one counts as none, and `problems` of `results` names it."""
        return self._read(run_id)[0]

    def results(self, run_ids: Iterable[str] | None = None) -> tuple[dict[str, Result], list[str]]:
        """Every result by run_id (or those asked for), and one line for each file that is damaged."""
        if run_ids is None:
            run_ids = sorted(name for name in _names(self.folder / "runs") if _SAFE_NAME.fullmatch(name))
        found: dict[str, Result] = {}
        problems = []
        for run_id in run_ids:
            result, problem = self._read(run_id)
            if result is not None:
                found[run_id] = result
            if problem is not None:
                problems.append(problem)
        return found, problems

    def _read(self, run_id: str) -> tuple[Result | None, str | None]:
        path = self.result_file(run_id)
        try:
            record = _unseal(path.read_bytes())
            result = Result(record["run_id"], record["status"], record["reason"], record["row"])
            if result.run_id != run_id:
                raise ValueError(f"it belongs to {result.run_id}")
        except FileNotFoundError:
            return None, None
        except OSError as error:
            return None, f"{path} cannot be read ({error.strerror or error}); the run counts as not done."
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return None, f"{path} is damaged ({error}); the run is not counted and will be trained again."
        return result, None

    def _set_aside(self, path: Path) -> None:
        try:
            os.replace(path, path.with_name(f"superseded-{time.time_ns()}.json"))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise durable.storage_error(path, error) from error

    # The table

    def write_table(self, known: Mapping[str, Result] | None = None) -> list[Result]:
        """Assemble runs.csv from the folders (or from results that the caller read), sorted by N, D, seeds and run_id.
        Given the same results, whoever writes it writes the same bytes."""
        found = dict(known) if known is not None else self.results()[0]
        rows = sorted(found.values(), key=lambda result: row_order(result.row))
        durable.make_folder(self.folder)
        durable.replace(self.runs_csv, table_text([result.row for result in rows]).encode())
        return rows

    def keep_other_rows(self, known: Mapping[str, Result]) -> Path | None:
        """Before the table is written anew: one with rows that no result stands for (a copy from elsewhere) is renamed,
        never overwritten. The new name, or None."""
        try:
            with open(self.runs_csv, newline="", encoding="utf-8", errors="replace") as file:
                reader = csv.DictReader(file)
                ours = "run_id" in (reader.fieldnames or ["run_id"])
                others = not ours or any(row["run_id"] not in known for row in reader)
        except FileNotFoundError:
            return None
        except (OSError, csv.Error):
            others = True
        if not others:
            return None
        numbers = (number for number in itertools.count(1) if not (self.folder / f"runs.kept-{number}.csv").exists())
        kept = self.folder / f"runs.kept-{next(numbers)}.csv"
        try:
            os.replace(self.runs_csv, kept)
        except OSError as error:
            raise durable.storage_error(self.runs_csv, error) from error
        return kept

    # A trunk's progress and attempts

    def record(self, trunk: str, event: str, **values: Any) -> None:
        """One line in the trunk's history of attempts."""
        path = durable.make_folder(self.trunk_folder(trunk)) / "attempts.jsonl"
        line = json.dumps({"event": event, "time": _now(), **values}) + "\n"
        try:
            durable.fault_point("append", path)
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError as error:
            raise durable.storage_error(path, error) from error

    def attempts(self, trunk: str) -> list[dict]:
        """The history of a trunk; a line that a crash cut off is passed over."""
        try:
            lines = (self.trunk_folder(trunk) / "attempts.jsonl").read_text(errors="replace").splitlines()
        except OSError:
            return []
        return [event for line in lines if isinstance(event := _json_or_none(line), dict)]

    def write_progress(self, trunk: str, progress: Mapping[str, Any]) -> None:
        path = durable.make_folder(self.trunk_folder(trunk)) / "progress.json"
        durable.replace(path, json.dumps({**progress, "time": time.time()}).encode(), flush=False)

    def progress(self, trunk: str) -> dict | None:
        data = durable.read_json(self.trunk_folder(trunk) / "progress.json")
        known = _PROGRESS.items()
        whole = isinstance(data, dict) and all(isinstance(data.get(name), kind) for name, kind in known)
        return data if whole else None

    def tidy(self, trunk: str, run_ids: Iterable[str]) -> None:
        """Remove what a killed writer left half-written. Only the holder of the trunk's lease may call this."""
        for folder in (self.trunk_folder(trunk), *(self.run_folder(run_id) for run_id in run_ids)):
            _remove_temporaries(folder)

    def tidy_top(self) -> None:
        """As `tidy`, for the files that all trunks share. Only the holder of the sweep's lease may call this."""
        for folder in (self.folder, self.folder / "curves"):
            _remove_temporaries(folder, older=STALE_SECONDS)

    def clear_trunk(self, trunk: str) -> None:
        """Remove the checkpoints of a trunk whose runs all have final results: who wrote the last was killed first."""
        folder = self.trunk_folder(trunk)
        for name in _names(folder):
            if name.startswith("checkpoint-"):
                (folder / name).unlink(missing_ok=True)
        _remove_temporaries(folder, older=STALE_SECONDS)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _remove_temporaries(folder: Path, older: float = 0.0) -> None:
    """Files of killed writers; another process may just be asking for a lease, so its file has to be old."""
    for name in _names(folder):
        if name.startswith(".") and name.endswith(".tmp"):
            path = folder / name
            age = STALE_SECONDS if ".lease." in name else older
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime >= age:
                    path.unlink()


def safe_name(name: str) -> str:
    """A name that stays inside its folder, on any system and in any shell. Raises SweepError otherwise."""
    if not isinstance(name, str) or not _SAFE_NAME.fullmatch(name):
        raise SweepError(f"{name!r} cannot name a run: letters, digits, dots, dashes and underscores only.")
    return name


def _plain(value: Any) -> Any:
    """A number of another library as Python's own."""
    return value.item() if hasattr(value, "item") else value


def _seal(record: dict) -> bytes:
    return json.dumps({"sha256": _sum(record), "record": record}).encode()


def _unseal(content: bytes) -> dict:
    sealed = json.loads(content)
    if not isinstance(sealed, dict) or not isinstance(record := sealed.get("record"), dict):
        raise ValueError("it holds no record")
    if sealed.get("sha256") != _sum(record):
        raise ValueError("it does not match its checksum")
    return record


def _sum(record: dict) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _json_or_none(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _one_line(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())[:2000]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
