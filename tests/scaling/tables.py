"""Tables for the tests of the readers."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "../shared/data"


def shared(name: str) -> str:
    """A published table beside the checkout; the test is skipped where these are absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"published table {name} is not beside this checkout")
    return str(path)


def write_csv(folder: Path, text: str, name: str = "runs.csv") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)
