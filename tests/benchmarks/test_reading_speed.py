"""A million rows of CSV, read, mapped and labelled in under 6 s of CPU and 1 GiB; and how soon a small table is read.

Run with `pytest -m slow tests/benchmarks/test_reading_speed.py -s` to see the figures.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROWS = 1_000_000
CPU_SECONDS = 6.0
BYTES = 2**30

READ = """
import json, resource, sys, time
from scaling.runs import read_runs
runs = read_runs(sys.argv[1])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"runs": len(runs), "excluded": len(runs.excluded), "cpu": used.ru_utime + used.ru_stime,
                  "bytes": used.ru_maxrss * 1024, "labels": len(runs.labels)}))
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The same million runs plainly and with every cell quoted, as Weights & Biases exports them."""
    folder = tmp_path_factory.mktemp("million")
    rng = np.random.default_rng(0)
    sizes, tokens = rng.lognormal(18, 2, ROWS), rng.lognormal(22, 2, ROWS)
    loss = 1.69 + 406.4 / sizes**0.34 + 410.7 / tokens**0.28
    names = "run_id,N,D,val_loss,lr,status,seed"
    with open(folder / "plain.csv", "w") as plain, open(folder / "quoted.csv", "w") as quoted:
        plain.write(names + "\n")
        quoted.write(",".join(f'"{name}"' for name in names.split(",")) + "\n")
        for k, row in enumerate(zip(sizes.tolist(), tokens.tolist(), loss.tolist(), strict=True)):
            cells = [f"run{k}", *map(repr, row), "0.001", "done" if k % 1000 else "diverged", str(k % 3)]
            plain.write(",".join(cells) + "\n")
            quoted.write(",".join(f'"{cell}"' for cell in cells) + "\n")
    return folder


@pytest.mark.parametrize("name", ["plain.csv", "quoted.csv"])
def test_a_million_rows(tables, name):
    output = subprocess.run(
        [sys.executable, "-c", READ, str(tables / name)], capture_output=True, text=True, check=True
    )
    figures = json.loads(output.stdout)
    print(f"\n{name}: {figures['cpu']:.2f} s of CPU, {figures['bytes'] / 2**30:.2f} GiB")
    assert figures["runs"] == ROWS - ROWS // 1000 and figures["excluded"] == ROWS // 1000
    assert figures["cpu"] < CPU_SECONDS and figures["bytes"] < BYTES


def test_reading_starts_within_half_again_of_pandas_and_scipy(tmp_path):
    """CPU of a process that reads a small table, against one that imports pandas and scipy.optimize, interleaved."""
    path = tmp_path / "runs.csv"
    path.write_text(
        "params,tokens,loss\n" + "".join(f"{n}e6,{d}e8,{5 - n / 9 - d / 9}\n" for n in range(1, 8) for d in (1, 3, 9))
    )
    timed = "import resource;u=resource.getrusage(resource.RUSAGE_SELF);print(u.ru_utime+u.ru_stime)"
    programs = {
        "base": f"import scipy.optimize, pandas;{timed}",
        "reading": f"from scaling.runs import read_runs; read_runs({str(path)!r});{timed}",
    }
    seconds = {name: [] for name in programs}
    for _ in range(5):
        for name, code in programs.items():
            output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            seconds[name].append(float(output.stdout))
    ratio = np.median(seconds["reading"]) / np.median(seconds["base"])
    print(f"\nreading a small table: {ratio:.2f} times the import of pandas and scipy.optimize")
    assert ratio < 1.5
