"""fit.json: what `scale fit --out` writes and `scale allocate --law` reads. numpy only, so allocation starts at once.

The joint bootstrap draws are kept compactly: float64 as little-endian bytes in base64, one row per resample, the
columns named. `base64` is text: the file stays plain JSON, readable by anyone, and executes nothing.
"""

import base64
import binascii
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaling.errors import InputError, LawError
from scaling.laws import law_from_dict

FIT_FORMAT = 1


@dataclass(frozen=True)
class FitFile:
    """A fit as read back: the law, its status, the joint draws and everything else under `data`."""

    path: str
    law: Any
    status: str
    draws: Any | None = None  # (resamples, constants) under draw_names, or None
    draw_names: tuple[str, ...] = ()
    flops_range: tuple[float, float] | None = None
    data: dict = field(default_factory=dict)


def encode_draws(names, draws) -> dict:
    """Joint draws as JSON: `{"names", "dtype", "shape", "data"}`; draws (resamples, len(names))."""
    import numpy as np

    array = np.ascontiguousarray(draws, dtype="<f8")
    return {
        "names": list(names),
        "dtype": "float64-le",
        "shape": list(array.shape),
        "data": base64.b64encode(array.tobytes()).decode("ascii"),
    }


def decode_draws(data: dict, *, path: str = "fit.json"):
    """Names and array (resamples, constants) of `encode_draws`. Raises InputError when they do not fit together."""
    import numpy as np

    try:
        names, shape = tuple(data["names"]), tuple(int(n) for n in data["shape"])
        values = np.frombuffer(base64.b64decode(data["data"], validate=True), dtype="<f8").reshape(shape)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise InputError(f"{path}: draws cannot be read ({error}). Fit again with scale fit --out.") from error
    if len(shape) != 2 or shape[1] != len(names) or not np.isfinite(values).all():
        raise InputError(f"{path}: draws of shape {shape} do not match their names, or are not finite. Fit again.")
    return names, values


def constants_of(names, draws):
    """Draws of constants from draws of fit variables: a column `log_A` becomes `A`; others stay as they are."""
    import numpy as np

    logs = np.array([name.startswith("log_") for name in names])
    with np.errstate(over="ignore"):
        return tuple(name.removeprefix("log_") for name in names), np.where(
            logs, np.exp(np.where(logs, draws, 0)), draws
        )


def read_fit(path: str | os.PathLike) -> FitFile:
    """Read a fit.json. Raises InputError (unreadable, not JSON) or LawError (a missing or impossible constant)."""
    data = read_json_object(path)
    if "law" not in data:
        raise LawError(f'{path}: no "law" in this file. Expected what scale fit --out writes.')
    if data["law"] is None:
        raise LawError(
            f"{path}: holds no law, the fit is {data.get('status', 'unknown')}. {data.get('message') or ''}".rstrip()
        )
    try:
        law = law_from_dict(data["law"])
    except LawError as error:
        raise LawError(f"{path}: {error}") from error
    names, draws = constants_of(*decode_draws(data["draws"], path=str(path))) if data.get("draws") else ((), None)
    bounds = (data.get("inputs") or {}).get("flops_range")
    return FitFile(
        path=str(path),
        law=law,
        status=str(data.get("status", "unknown")),
        draws=draws,
        draw_names=names,
        flops_range=(float(bounds[0]), float(bounds[1])) if bounds else None,
        data=data,
    )


def read_json_object(path: str | os.PathLike) -> dict:
    """A JSON object from a file. Raises InputError that names the file and what is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder; give a file.") from error
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}).") from error
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}).") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(data).__name__}.")
    return data
