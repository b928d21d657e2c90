"""Writes that survive a crash: a temporary name beside the target, flushed to the disk, then renamed or linked.

Every write of the store passes through here, and each stage calls `fault_point`, so that tests can make any of them
fail. A reader therefore sees the old file, the new file, or none: never a part of one.
"""

import errno
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scaling.errors import SweepError

STORAGE_ERRORS = {
    errno.ENOSPC: "no space left on the device",
    errno.EFBIG: "the file would be larger than is allowed",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EIO: "the device reports an error",
}

fault_point: Callable[[str, Path], None] = lambda stage, path: None  # noqa: E731  tests replace it


class StorageError(SweepError):
    """The sweep folder cannot be written; nothing that was finished is lost."""


def storage_error(path: Path, error: OSError) -> StorageError:
    reason = STORAGE_ERRORS.get(error.errno or 0, error.strerror or str(error))
    return StorageError(
        f"{path}: cannot be written: {reason}. Finished runs are kept; mend this and give the same command again."
    )


def replace(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Put `content` at `path`, replacing what is there. Raises StorageError and leaves the old file when it cannot."""
    temporary = _write_temporary(path, content, flush)
    try:
        fault_point("rename", path)
        os.replace(temporary, path)
        if flush:
            sync_folder(path.parent)
    except OSError as error:
        _remove(temporary)
        raise storage_error(path, error) from error


def create(path: Path, content: bytes) -> bool:
    """Put `content` at `path` only if nothing is there, atomically on shared file systems too (a hard link of a
    finished file). False when another was first."""
    temporary = _write_temporary(path, content, True)
    try:
        fault_point("link", path)
        os.link(temporary, path)
        sync_folder(path.parent)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        _remove(temporary)


def _write_temporary(path: Path, content: bytes, flush: bool) -> Path:
    temporary = temporary_name(path)
    try:
        fault_point("open", path)
        with open(temporary, "xb") as file:
            fault_point("write", path)
            file.write(content)
            if flush:
                file.flush()
                fault_point("flush", path)
                os.fsync(file.fileno())
    except OSError as error:
        _remove(temporary)
        raise storage_error(path, error) from error
    return temporary


def temporary_name(path: Path) -> Path:
    """Unlike any other writer's, on this host or another, and ending in .tmp, which readers pass over."""
    return path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(6)}.tmp"


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable (a no-op where folders cannot be opened, as on Windows)."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(handle)


def make_folder(path: Path) -> Path:
    try:
        fault_point("mkdir", path)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(path, error) from error
    return path


def read_json(path: Path) -> Any:
    """The JSON in a file, or None when it is absent or is not JSON (a file that another writer is replacing)."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # the write that failed is reported by the caller; a left-over temporary file is harmless
