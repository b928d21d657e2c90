"""Addresses of experiment trackers. Filled in below as each tracker's reader is reached."""

from scaling.errors import InputError
from scaling.readers.raw import RawTable

SCHEMES = ("wandb:", "mlflow:", "tensorboard:")


def is_address(name: str) -> bool:
    """Whether a source is a tracker's address, not a path."""
    return name.startswith(SCHEMES)


def read_address(name: str) -> RawTable:
    """One row per run of an experiment tracker."""
    raise InputError(f"{name}: this tracker cannot be read yet.")
