"""A grid of 10,000 runs: seconds and memory of planning, dry run and resume scan; and the runner's cost of one run.

python tests/benchmarks/reliability_scale.py
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sweeps.grid import read_grid
from sweeps.launch import launch, prepare
from sweeps.store import Store

ROOT = Path(__file__).resolve().parents[2]
FAKE = "fake_training:train_trunk"
GRID = """
corpus = "python"
sizes = [{sizes}]
tokens = {{ from = "1M", to = "100M", steps = 50 }}
seeds = 2
device = "cpu"
{numerics}
"""
FIXED = 'dtype = "float32"\nattention = "fused"'
PROGRAM = """
import json, resource, sys, time
begun = time.perf_counter()
from scaling.cli import cli
from click.testing import CliRunner
result = CliRunner().invoke(cli, sys.argv[1:])
assert result.exit_code == 0, result.output
use = resource.getrusage(resource.RUSAGE_SELF)
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({
    "wall_seconds": round(time.perf_counter() - begun, 2),
    "cpu_seconds": round(use.ru_utime + use.ru_stime, 2),
    "cpu_seconds_of_children": round(children.ru_utime + children.ru_stime, 2),
    "memory_mb": round(use.ru_maxrss / 1024),
    "lines": result.output.count(chr(10)),
}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "sweeps"), str(ROOT)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        grid = folder / "grid.toml"
        sizes = ", ".join(f"{{ d_model = {16 * i}, n_layers = {2 + i // 4} }}" for i in range(1, 101))
        grid.write_text(GRID.format(sizes=sizes, numerics=FIXED))
        planned = prepare(read_grid(grid), Store(folder / "none"))
        runs = len(planned.plan.configs)
        report = {"runs": runs, "trunks": len(planned.plan.tasks)}
        report["dry_run_of_a_new_folder"] = measure(
            "sweep", grid, "--out", folder / "new", "--dry-run", "--train", FAKE
        )
        report["runner"] = overhead(folder, grid, runs)
        out = folder / "full"
        report["dry_run_of_a_full_folder"] = measure("sweep", grid, "--out", out, "--dry-run", "--train", FAKE)
        report["resume_of_a_full_folder"] = measure("sweep", grid, "--out", out, "--train", FAKE)
        report["status_of_a_full_folder"] = measure("status", out)
        grid.write_text(GRID.format(sizes=sizes, numerics=""))
        report["dry_run_with_speed_and_numerics_timed"] = measure("sweep", grid, "--out", folder / "new", "--dry-run")
    print(json.dumps(report, indent=1))
    return 0


def measure(*arguments) -> dict:
    """One command in a fresh process."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return json.loads(done.stdout)


def overhead(folder: Path, grid: Path, runs: int) -> dict:
    """All runs with a training function that takes no time, by one worker: what remains is ours."""
    before, begun = cpu_seconds(), time.perf_counter()
    summary = launch(grid, folder / "full", workers=1, train=FAKE)
    wall, cpu = time.perf_counter() - begun, cpu_seconds() - before
    assert summary.done == runs, summary
    return {
        "wall_ms_per_run": round(1e3 * wall / runs, 2),
        "cpu_ms_per_run_of_the_sweep_process": round(1e3 * cpu / runs, 2),
    }


def cpu_seconds() -> float:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


if __name__ == "__main__":
    sys.exit(main())
