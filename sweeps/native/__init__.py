"""Compiled code of the training step: built with this machine's compiler for its processor, once, and kept in the cache.

`step.cpp` needs a C++17 compiler that knows GCC's vector extensions: GCC 12 or newer, or Clang. `$CXX` names one, with
options if need be, else c++, g++ and clang++ are looked for. Without one everything trains as before, more slowly.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from scaling.errors import SweepError
from sweeps.corpus import default_cache

SOURCE = Path(__file__).with_name("step.cpp")
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared")
_SECONDS = 600  # that compiling may take
_TRY = (
    "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).squares; f.restype = ctypes.c_double; "
    "f.argtypes = [ctypes.c_int64, ctypes.c_void_p]; sys.exit(f(99, (ctypes.c_float * 99)(*[2] * 99)) != 396)"
)


@cache
def library() -> ctypes.CDLL:
    """The compiled step, built on first use. Raises SweepError when it cannot be."""
    path = default_cache() / "native" / f"step-{fingerprint()}.so"
    try:
        if not path.exists():
            build(path)
        return _declare(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        raise SweepError(
            f"native: {path} cannot be loaded ({error}). Delete it; where its folder does not allow programs, set "
            "XDG_CACHE_HOME to one that does."
        ) from error


def find_compiler() -> str | None:
    """The command of a C++ compiler, or None. Raises SweepError for a `$CXX` that does not exist."""
    named = os.environ.get("CXX", "").strip()
    if named:
        if not shutil.which(shlex.split(named)[0]):
            raise SweepError(f"native: CXX = {named!r}, but there is no such program. Correct or unset it.")
        return named
    return next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)


@cache
def fingerprint() -> str:
    """16 hex digits over what decides the machine code: source, compiler, flags and processor."""
    command = _command()
    version = _run([*command, "--version"]).stdout
    parts = [SOURCE.read_text(), shlex.join(command), version, " ".join(flags()), _processor()]
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:16]


def flags() -> list[str]:
    """The compiler's, for the processor of this machine."""
    if platform.machine() in ("arm64", "aarch64"):
        return [*_FLAGS, "-mcpu=native"]
    wide = ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []
    return [*_FLAGS, "-march=native", *wide]


def build(path: Path) -> None:
    """Compile, try, and only then put in place: several processes may do so at once. Raises SweepError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="build-", dir=path.parent)
    except OSError as error:
        raise SweepError(f"native: cannot write in {path.parent} ({error.strerror or error}).") from error
    made = os.path.join(folder, path.name)
    try:
        command = _command()
        done = _run([*command, *flags(), "-o", made, str(SOURCE)])
        if done.returncode:
            words = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            reason = words[0] if words else f"it ends with status {done.returncode}"
            raise SweepError(f"native: {command[0]} cannot compile {SOURCE.name}: {reason}.")
        tried = _run([sys.executable, "-c", _TRY, made])
        if tried.returncode:
            raise SweepError(
                f"native: what {command[0]} made of {SOURCE.name} does not run here (status {tried.returncode}). Set CXX to "
                'another compiler, or attention = "fused".'
            )
        with open(made, "rb") as file:
            os.fsync(file.fileno())
        os.replace(made, path)
    except OSError as error:
        raise SweepError(f"native: cannot make {path} ({error.strerror or error}).") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command() -> list[str]:
    compiler = find_compiler()
    if compiler is None:
        raise SweepError(
            'native: attention = "native" needs a C++ compiler, and none was found ($CXX, c++, g++, clang++). '
            'Install one, or set attention = "fused".'
        )
    return shlex.split(compiler)


def _run(command: list[str]) -> subprocess.CompletedProcess:
    """A command with its words in English. Raises SweepError when it cannot be started or does not end."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SweepError(f"native: {command[0]} cannot be run: {error}.") from error


def _processor() -> str:
    """Name and features of the processor, so that a cache on a shared disk serves each kind of machine its own."""
    if sys.platform == "darwin":
        return _run(["sysctl", "-n", "machdep.cpu.brand_string"]).stdout
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = {line.partition(":")[0].strip(): line for line in lines}
    keys = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(found[key] for key in keys if key in found)


def _declare(found: ctypes.CDLL) -> ctypes.CDLL:
    """Say what the functions of step.cpp take and return."""
    pointer, whole = ctypes.c_void_p, ctypes.c_int64
    found.workspace_size.restype, found.workspace_size.argtypes = whole, [pointer]
    found.run.restype = whole
    found.run.argtypes = [pointer, whole, pointer, whole, pointer, whole, pointer, ctypes.c_int]
    found.squares.restype, found.squares.argtypes = ctypes.c_double, [whole, pointer]
    found.adamw.restype, found.adamw.argtypes = None, [whole, *[pointer] * 5]
    return found
