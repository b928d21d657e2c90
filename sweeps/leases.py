"""Leases: locks on a shared file system that a dead owner cannot hold.

A lease is the newest of the files NAME.1, NAME.2, ... in a folder. To take it one creates the next number by a hard
link of a finished file, which exactly one process on any number of hosts can do. The owner renews the file's time
every few seconds. Another process may take the next number when the newest lease is released, when its owner was a
process of this machine that has ended (told at once, by process number and start time), or when it has not been
renewed for `patience` seconds by the file server's own clock, so that clocks which disagree do no harm.
"""

import json
import os
import re
import secrets
import socket
import threading
import time
from pathlib import Path

from sweeps import durable

RENEW_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
KEPT_GENERATIONS = 3


def this_process() -> dict:
    """Who asks: host, process and start time, and the boot and namespace in which the number means something."""
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "started": _start_ticks(os.getpid()),
    }


class Lease:
    """A held lease: renewed by a thread until `release`, and `lost` once another has taken it over."""

    def __init__(self, folder: Path, name: str, generation: int, content: dict, renew_seconds: float):
        self._path = folder / f"{name}.{generation}"
        self._folder, self._name, self._generation = folder, name, generation
        self._content, self._renew_seconds = content, renew_seconds
        self._ended = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._renew, name=f"lease {name}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        return self._lost

    def release(self) -> None:
        """Give it back, so that the next process need not ask whether this one lives."""
        self._ended.set()
        self._thread.join()
        if not self._lost:
            durable.replace(self._path, json.dumps({**self._content, "released": True}).encode())

    def _renew(self) -> None:
        while not self._ended.wait(self._renew_seconds):
            try:
                os.utime(self._path)
                self._lost = _newest(self._folder, self._name) > self._generation
            except FileNotFoundError:
                self._lost = True
            except OSError:
                continue  # a file server that is away for a moment; if it stays away the lease runs out by itself
            if self._lost:
                return

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *exception) -> None:
        self.release()


def acquire(
    folder: Path, name: str = "lease", *, patience: float = PATIENCE_SECONDS, renew_seconds: float = RENEW_SECONDS
) -> Lease | None:
    """Take the lease `name` in `folder`, or None while another holds it. Raises StorageError if it cannot write."""
    newest = _newest(folder, name)
    if newest and _is_held(folder, folder / f"{name}.{newest}", patience):
        return None
    content = {**this_process(), "token": secrets.token_hex(8), "since": _now()}
    generation = newest + 1
    if not durable.create(folder / f"{name}.{generation}", json.dumps(content).encode()):
        return None
    if _newest(folder, name) > generation:  # we slept while others took, gave back and cleared away this number
        (folder / f"{name}.{generation}").unlink(missing_ok=True)
        return None
    for old in range(max(1, generation - 3 * KEPT_GENERATIONS), generation - KEPT_GENERATIONS + 1):
        (folder / f"{name}.{old}").unlink(missing_ok=True)
    return Lease(folder, name, generation, content, renew_seconds)


def owner(folder: Path, name: str = "lease", *, patience: float = PATIENCE_SECONDS) -> dict | None:
    """Who holds the lease (host, pid, since), or None when it is free."""
    newest = _newest(folder, name)
    path = folder / f"{name}.{newest}"
    if not newest or not _is_held(folder, path, patience):
        return None
    content = durable.read_json(path)
    return content if isinstance(content, dict) else {}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _newest(folder: Path, name: str) -> int:
    pattern = re.compile(re.escape(name) + r"\.(\d{1,9})")
    try:
        return max((int(match[1]) for entry in os.listdir(folder) if (match := pattern.fullmatch(entry))), default=0)
    except FileNotFoundError:
        return 0


def _is_held(folder: Path, path: Path, patience: float) -> bool:
    content = durable.read_json(path)
    if not isinstance(content, dict):
        return _age(folder, path) < patience  # unreadable: only time can tell
    if content.get("released"):
        return False
    if content.get("machine") == _machine() and _machine():
        return _is_alive(content.get("pid"), content.get("started"))
    return _age(folder, path) < patience


def _age(folder: Path, path: Path) -> float:
    """Seconds since the last renewal by the file server's clock: a fresh file's time minus the lease's."""
    probe = durable.temporary_name(path)
    try:
        probe.write_bytes(b"")
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
    except OSError:  # a folder that can only be read: this machine's own clock has to do
        return time.time() - path.stat().st_mtime
    finally:
        if os.access(folder, os.W_OK):
            probe.unlink(missing_ok=True)


def _is_alive(pid: int | None, started: int | None) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process: it lives
    return started is None or _start_ticks(pid) in (started, None) and not _is_zombie(pid)


def _machine() -> str:
    """One name for one process-number space: boot id and pid namespace; empty where the system tells neither."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _stat_fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _start_ticks(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def _is_zombie(pid: int) -> bool:
    return _stat_fields(pid)[:1] in (["Z"], ["X"])
