"""Write a whole file or nothing: to a temporary name beside it, flushed, then renamed."""

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from scaling.errors import InputError


def write_text(path: str | os.PathLike, text: str) -> None:
    """Replace `path` by `text`, atomically. Raises InputError when it cannot be written."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Replace `path` by `content`, atomically. Raises InputError when it cannot be written."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file to write.")
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise InputError(f"{path}: cannot be written ({error.strerror or error}). Choose another place.") from error


def to_json(data: Any) -> str:
    """Strict JSON at full precision, two-space indented; NaN and infinities become null, numpy scalars numbers."""
    return json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
