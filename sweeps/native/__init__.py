"""Compiled code of the training step: built with this machine's compiler for its processor, once, and kept in the cache.

`step.cpp` needs a C++17 compiler that knows GCC's vector extensions: GCC 12 or newer, or Clang. `$CXX` names one, else c++,
g++ and clang++ are looked for. Without one everything trains as before, more slowly.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

from scaling.errors import SweepError
from sweeps.corpus import default_cache

SOURCE = Path(__file__).with_name("step.cpp")
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared")
_SECONDS = 600  # that compiling may take


@cache
def library() -> ctypes.CDLL:
    """The compiled step, built on first use. Raises SweepError when it cannot be."""
    compiler = find_compiler()
    if compiler is None:
        raise SweepError(
            'native: attention = "native" needs a C++ compiler, and none was found ($CXX, c++, g++, clang++). '
            'Install one, or set attention = "fused".'
        )
    path = default_cache() / "native" / f"step-{_fingerprint(compiler)}.so"
    if not path.exists():
        build(compiler, path)
    return _declare(_open(path))


def is_available() -> bool:
    """Whether the compiled step can be used here. A compiler that is there but fails is warned about."""
    if find_compiler() is None:
        return False
    try:
        library()
    except SweepError as error:
        warnings.warn(f"{error} Training goes on without it.", stacklevel=2)
        return False
    return True


def find_compiler() -> str | None:
    """The path of a C++ compiler, or None."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def flags() -> list[str]:
    """The compiler's, for the processor of this machine."""
    if platform.machine() in ("arm64", "aarch64"):
        return [*_FLAGS, "-mcpu=native"]
    wide = ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []
    return [*_FLAGS, "-march=native", *wide]


def build(compiler: str, path: Path) -> None:
    """Compile to `path`, by another name first: several processes may do so at once. Raises SweepError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    except OSError as error:
        raise SweepError(f"native: cannot write in {path.parent} ({error.strerror or error}).") from error
    os.close(handle)
    try:
        done = subprocess.run(
            [compiler, *flags(), "-o", name, str(SOURCE)], capture_output=True, text=True, timeout=_SECONDS
        )
        if done.returncode:
            words = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            reason = words[0] if words else f"it ends with status {done.returncode}"
            raise SweepError(f"native: {compiler} cannot compile {SOURCE.name}: {reason}.")
        os.replace(name, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SweepError(f"native: {compiler} cannot compile {SOURCE.name}: {error}.") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _fingerprint(compiler: str) -> str:
    """16 hex digits over what decides the machine code: source, compiler, flags and processor."""
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SweepError(f"native: {compiler} cannot be run: {error}.") from error
    parts = [SOURCE.read_text(), compiler, version, " ".join(flags()), _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Name and features of the processor, so that a cache on a shared disk serves each kind of machine its own."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = {line.partition(":")[0].strip(): line for line in lines}
    return "\n".join(found[key] for key in ("model name", "flags", "Features") if key in found)


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise SweepError(f"native: {path} cannot be loaded ({error}). Delete it.") from error


def _declare(found: ctypes.CDLL) -> ctypes.CDLL:
    """Say what the functions of step.cpp take and return."""
    pointer, whole = ctypes.c_void_p, ctypes.c_int64
    found.workspace_size.restype, found.workspace_size.argtypes = whole, [pointer]
    found.run.restype = whole
    found.run.argtypes = [pointer, whole, pointer, whole, pointer, whole, pointer, ctypes.c_int]
    found.squares.restype, found.squares.argtypes = ctypes.c_double, [whole, pointer]
    found.adamw.restype, found.adamw.argtypes = None, [whole, *[pointer] * 5]
    return found
