"""A trained model in one file: its shape, its weights, and where they come from; tensors and plain values only.

Written by a temporary name and a rename; read with `torch.load(weights_only=True)`, which executes nothing.
"""

import io
import os
import pickle
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from scaling.errors import InputError, ScalingError, SweepError
from scaling.files import write_bytes
from scaling.presets import shape_from_config, shape_to_dict
from sweeps.model import Transformer

FORMAT = "isoflop model 1"


@dataclass(frozen=True)
class SavedModel:
    """A model as read back, and what was written about it: corpus, tokens, losses, whether it was trained masked."""

    model: Transformer
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def masked(self) -> bool:
        return bool(self.about.get("mask", True))


def save_model(path: str | os.PathLike, model: Transformer, *, about: dict[str, Any] | None = None) -> None:
    """Write a model; `about` holds plain values. Raises InputError when the file cannot be written."""
    buffer = io.BytesIO()
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    torch.save(
        {"format": FORMAT, "shape": shape_to_dict(model.shape), "attention": model.attention, "weights": weights,
         "about": about or {}},
        buffer,
    )  # fmt: skip
    write_bytes(path, buffer.getvalue())


def load_model(path: str | os.PathLike) -> SavedModel:
    """Read a model that `save_model` wrote.

    Raises InputError when the file cannot be read, SweepError when it is something else, damaged, or holds code.
    """
    data = _read(Path(path))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise SweepError(f'{path}: not a model of this program (no "{FORMAT}" in it). Expected what scale demo saves.')
    try:
        model = Transformer(shape_from_config(data["shape"], where=str(path)), attention=data["attention"])
        model.load_state_dict(data["weights"])
    except ScalingError:
        raise
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SweepError(f"{path}: shape and weights do not belong together ({reason}).") from error
    return SavedModel(model.eval(), dict(data.get("about") or {}))


def _read(path: Path) -> Any:
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; give the model's file, such as {path / 'model.pt'}.")
        if not zipfile.is_zipfile(path):  # torch's old format, a bare pickle, is not even opened
            path.open("rb").close()  # missing or unreadable is said as such
            raise SweepError(f"{path}: not a model (no archive of tensors). Expected what scale demo saves.")
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except pickle.UnpicklingError as error:
        raise SweepError(f"{path}: holds more than tensors and plain values, and is not opened.") from error
    except (RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError) as error:
        raise SweepError(f"{path}: damaged or cut off ({type(error).__name__}). Write it again.") from error
