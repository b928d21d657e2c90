"""The memory of a whole fit stays bounded: resamples are worked on a slice at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from scaling.laws import published_law
from scaling.synthetic import synthetic_runs

CHILD = """
import re, sys
from pathlib import Path
from scaling.cli import main
try:
    main()
finally:
    sys.stderr.write(re.search(r"VmHWM:.*", Path("/proc/self/status").read_text()).group() + "\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_a_fit_of_100_000_runs_with_all_defaults_stays_below_600_mib(tmp_path):
    table = tmp_path / "runs.csv"
    synthetic_runs(published_law("besiroglu2024").law, runs=100_000, noise=0.005, seed=3).to_csv(table, index=False)
    done = subprocess.run([sys.executable, "-c", CHILD, "fit", str(table), "--out", str(tmp_path / "fit.json")],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split("VmHWM:")[1].split()[0]) < 600 * 1024, done.stderr
