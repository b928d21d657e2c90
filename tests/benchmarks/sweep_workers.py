"""Two workers against one, on the same grid: wall seconds by turns, what the parent itself uses, and what it imports.

    python tests/benchmarks/sweep_workers.py [--repeats 2] [--tokens 600K]

Wants two cores with nothing else to do. The grid has eight trunks, so that two workers can share it evenly; start-up of
the workers, planning and the table are in the time.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GRID = """corpus = "python"
sizes = [
  {{ d_model = 16, n_layers = 2 }}, {{ d_model = 24, n_layers = 2 }},
  {{ d_model = 32, n_layers = 2 }}, {{ d_model = 40, n_layers = 2 }},
]
tokens = ["300K", "{tokens}"]
seeds = [0, 1]
batch_tokens = 512
dtype = "float32"
attention = "explicit"
"""
ONE_SWEEP = """import resource, sys
from sweeps.launch import launch
summary = launch(sys.argv[1], sys.argv[2], workers=int(sys.argv[3]))
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, summary.done, "torch" in sys.modules)
"""


def sweep(grid: Path, workers: int) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds of the parent, and CPU seconds of it and its workers together."""
    with tempfile.TemporaryDirectory() as out:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [sys.executable, "-c", ONE_SWEEP, str(grid), out, str(workers)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    parent, done, has_torch = float(told[-3]), int(told[-2]), told[-1]
    assert done == 16 and has_torch == "False", told
    return wall, parent, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tokens", default="600K", help="of the longer run of each trunk")
    options = parser.parse_args()
    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        grid = Path(folder) / "grid.toml"
        grid.write_text(GRID.format(tokens=options.tokens))
        for _ in range(options.repeats):
            (one, parent, cpu), (two, parent2, cpu2) = sweep(grid, 1), sweep(grid, 2)
            ratios.append(two / one)
            shares += [parent / one, parent2 / two]
            print(
                f"one worker {one:.1f} s (CPU {cpu:.1f} s), two {two:.1f} s (CPU {cpu2:.1f} s): {two / one:.3f}; "
                f"parent {parent / one:.1%} and {parent2 / two:.1%} of a core, without torch",
                flush=True,
            )
    print(f"two workers take {statistics.median(ratios):.3f} of one's time; parent at most {max(shares):.1%} of a core")


if __name__ == "__main__":
    main()
