"""Checkpoints on disk: what training needs to go on, as data that never executes.

A checkpoint is a dict of tensors and plain values. It is written to a temporary name, flushed, and renamed, its
SHA-256 beside it; the last two are kept. Loading checks the sum and then reads with `torch.load(weights_only=True)`,
which refuses anything but tensors and plain values; a file that fails is named, set aside, and the one before it used.
Torch is imported only when a checkpoint is saved or loaded.
"""

import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from sweeps import durable

KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{8})\.pt")


class FileCheckpoint:
    """The checkpoint of one trunk, for the runs that are still to come out of it.

    `load()` gives the newest sound state or None; `save(state)` replaces it. A state saved for other token counts is
    not used: a trunk that has passed a branch point cannot go back to it.
    """

    def __init__(self, folder: Path, runs: Iterable[str], *, warn: Callable[[str], None] = lambda message: None):
        self._folder, self._runs, self._warn = Path(folder), sorted(runs), warn
        self.saved = 0

    def load(self) -> dict | None:
        for path in reversed(self._files()):
            envelope = self._read(path)
            if envelope is None:
                continue
            if set(self._runs) <= set(envelope["runs"]):
                return envelope["state"]
            self._warn(f"{path.name} was made for other token counts and is not used; the trunk starts again.")
            return None
        return None

    def save(self, state: dict) -> None:
        """Raises StorageError when the disk will not take it; the checkpoints before it stay."""
        import torch

        durable.make_folder(self._folder)
        files = self._files()
        path = self._folder / f"checkpoint-{_number(files[-1]) + 1 if files else 1:08d}.pt"
        temporary = durable.temporary_name(path)
        try:
            durable.fault_point("open", path)
            with open(temporary, "xb") as file:
                sink = _Hashing(file)
                durable.fault_point("write", path)
                try:
                    torch.save({"runs": self._runs, "state": state}, sink)
                except RuntimeError as error:  # torch reports a failed write so
                    if sink.failed is None:
                        raise
                    raise sink.failed from error
                file.flush()
                durable.fault_point("flush", path)
                os.fsync(file.fileno())
            durable.replace(_sum_path(path), f"{sink.digest()}  {path.name}\n".encode())  # comes first
            durable.fault_point("rename", path)
            os.replace(temporary, path)
            durable.sync_folder(self._folder)
        except OSError as error:
            raise durable.storage_error(path, error) from error
        finally:
            temporary.unlink(missing_ok=True)
        self.saved += 1
        for old in self._files()[:-KEPT]:
            self._remove(old)

    def clear(self) -> None:
        """Remove them all, damaged ones too: every run of the trunk is written."""
        for path in self._folder.glob("checkpoint-*"):
            path.unlink(missing_ok=True)

    def _read(self, path: Path) -> dict | None:
        problem = None
        try:
            if _digest(path) != _recorded_sum(path):
                problem = "does not match its checksum (damaged or cut off)"
            else:
                problem, envelope = _load_plain(path)
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
        if problem is None:
            return envelope
        self._set_aside(path)
        self._warn(f"{path.name} {problem}; it is set aside as {path.name}.bad and not used.")
        return None

    def _set_aside(self, path: Path) -> None:
        try:
            os.replace(path, path.with_name(path.name + ".bad"))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise durable.storage_error(path, error) from error

    def _files(self) -> list[Path]:
        try:
            names = sorted(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []
        return [self._folder / name for name in names]

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        _sum_path(path).unlink(missing_ok=True)


def _load_plain(path: Path) -> tuple[str | None, dict]:
    """Why a file is no checkpoint (None when it is one), and its content."""
    import pickle

    import torch

    if not zipfile.is_zipfile(path):  # torch's old format, a bare pickle, is not even opened
        return "is not a checkpoint (no archive of tensors)", {}
    try:
        envelope = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        return "holds more than tensors and plain values", {}
    except (RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError) as error:
        return f"is not a checkpoint ({type(error).__name__})", {}
    if not isinstance(envelope, dict) or set(envelope) != {"runs", "state"} or not isinstance(envelope["state"], dict):
        return "is not a checkpoint of this program", {}
    return None, envelope


class _Hashing:
    """A file that is only written, hashing as it goes."""

    def __init__(self, file):
        self._file, self._hash, self.failed = file, hashlib.sha256(), None

    def write(self, data) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.failed = error
            raise
        self._hash.update(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> str:
        return self._hash.hexdigest()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recorded_sum(path: Path) -> str:
    try:
        return _sum_path(path).read_text().split()[0]
    except (OSError, ValueError, IndexError):
        return "absent"


def _sum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match
    return int(match[1])
