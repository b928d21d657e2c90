"""SIGKILL at random moments over a sweep with two workers: is any run lost, doubled or different?

    python tests/benchmarks/reliability_kills.py --kills 300 --seed 0

One sweep is left in peace; then sweeps of the same grid are killed again and again, a worker four times in five and the
sweep process itself once in five, until the kills are used up. A sweep that ends is checked against the one in peace.
With --train tests.sweeps.fake_training:train_trunk it takes seconds and exercises all but the checkpoints.
"""

import argparse
import csv
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from sweeps.store import Store
from sweeps.table import COST_COLUMNS
from sweeps.worker import TRAIN

ROOT = Path(__file__).resolve().parents[2]
GRID = """
corpus = "text:{text}"
sizes = [{{ d_model = 16, n_layers = 2 }}, {{ d_model = 32, n_layers = 2 }}]
tokens = ["{shortest}", "{middle}", "{longest}"]
seeds = 2
device = "cpu"
dtype = "float32"
attention = "fused"
retries = 1000000
checkpoint_seconds = 0.3
"""


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        report = run(
            Path(folder), kills=options.kills, seed=options.seed, train=options.train, longest_wait=options.longest_wait
        )
    print(json.dumps(report, indent=1))
    return 0 if report["sound"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", default=TRAIN)
    parser.add_argument("--longest-wait", type=float, default=6.0, help="seconds between two kills, at most")
    return parser.parse_args()


def run(folder: Path, *, kills: int, seed: int, train: str, longest_wait: float) -> dict:
    """Kill as often as asked, and say what came of it."""
    grid = write_grid(folder)
    peace = folder / "peace"
    subprocess.run(sweep_command(grid, peace, train), cwd=ROOT, check=True, capture_output=True)
    expected, rows = comparable(peace), table(peace)
    chance = random.Random(seed)
    total: Counter = Counter()
    begun = time.monotonic()
    while total["kills"] < kills:
        out = folder / f"sweep-{total['sweeps']}"
        total["sweeps"] += 1
        total.update(_one_sweep(grid, out, train, chance, kills - total["kills"], longest_wait))
        total.update(compare(out, expected, rows))
        shutil.rmtree(out)
    wrong = (
        "lost",
        "duplicated",
        "different_losses",
        "replaced_results",
        "tables_that_differ",
        "left_over_checkpoints",
    )
    return {
        **{name: total[name] for name in ("kills", "worker_kills", "sweep_kills", "sweeps", "attempts", *wrong)},
        "runs_per_sweep": len(rows),
        "seconds": round(time.monotonic() - begun, 1),
        "sound": not any(total[name] for name in wrong),
    }


def write_grid(folder: Path) -> Path:
    """A corpus of a megabyte of the standard library and a grid of twelve short runs."""
    text = folder / "text"
    text.mkdir()
    sources = sorted(Path(os.__file__).parent.glob("*.py"), key=lambda path: path.name)
    for path in sources[:60]:
        shutil.copy(path, text / path.name)
    grid = folder / "grid.toml"
    grid.write_text(GRID.format(text=text, shortest="256K", middle="512K", longest="768K"))
    return grid


def sweep_command(grid: Path, out: Path, train: str) -> list[str]:
    program = "from scaling.cli import main; main()"
    return [sys.executable, "-c", program, "sweep", str(grid), "--out", str(out), "--workers", "2", "--train", train]


def _one_sweep(
    grid: Path, out: Path, train: str, chance: random.Random, budget: int, longest_wait: float
) -> Counter:  # fmt: skip
    """Start the sweep, kill, start again, until it ends by itself or the kills are used up and it is let finish."""
    count: Counter = Counter()
    seen: dict[Path, bytes] = {}
    process = _start(grid, out, train)
    while process.poll() is None:
        wait = chance.uniform(0.05, longest_wait) if count["kills"] < budget else 0.2
        try:
            process.wait(wait)
            break
        except subprocess.TimeoutExpired:
            pass
        count["replaced_results"] += _remember(out, seen)
        if count["kills"] < budget:
            count.update(_kill_one(process, chance))
        if process.poll() is not None:
            process = _start(grid, out, train)
    if process.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the sweep ended with {process.returncode}: {process.stderr.read().decode()}")
    if process.returncode:
        subprocess.run(sweep_command(grid, out, train), cwd=ROOT, check=True, capture_output=True)
    count["replaced_results"] += _remember(out, seen)
    lines = [line for path in out.glob("trunks/*/attempts.jsonl") for line in path.read_text().splitlines()]
    count["attempts"] = sum('"event": "started"' in line for line in lines)
    return count


def _start(grid: Path, out: Path, train: str) -> subprocess.Popen:
    log = open(out.parent / "log.txt", "ab")  # noqa: SIM115
    with log:
        return subprocess.Popen(sweep_command(grid, out, train), cwd=ROOT, stdout=log, stderr=log)


def _kill_one(process: subprocess.Popen, chance: random.Random) -> dict[str, int]:
    """One SIGKILL: to a worker if there is one, once in five to the sweep itself."""
    workers = children(process.pid)
    if workers and chance.random() < 0.8:
        os.kill(chance.choice(workers), signal.SIGKILL)
        return {"kills": 1, "worker_kills": 1}
    process.kill()
    process.wait()
    return {"kills": 1, "sweep_kills": 1}


def children(pid: int) -> list[int]:
    """Live children of a process, from /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has just ended
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


def _remember(out: Path, seen: dict[Path, bytes]) -> int:
    """Results once written must stay to the byte; how many did not."""
    changed = 0
    for path in out.glob("runs/*/result.json"):
        content = path.read_bytes()
        changed += seen.setdefault(path, content) != content
    return changed


def table(out: Path) -> list[dict[str, str]]:
    with open(out / "runs.csv", newline="") as file:
        return list(csv.DictReader(file))


def comparable(out: Path) -> str:
    """runs.csv without the columns that tell what an attempt cost."""
    rows = [{k: v for k, v in row.items() if k not in COST_COLUMNS} for row in table(out)]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def compare(out: Path, expected: str, rows: list[dict[str, str]]) -> dict[str, int]:
    """What a disturbed sweep got wrong, against the one in peace."""
    found = table(out)
    losses = {row["run_id"]: row["loss"] for row in found}
    wanted = {row["run_id"]: row["loss"] for row in rows}
    results, problems = Store(out).results()
    return {
        "lost": len(set(wanted) - set(losses)) + len(problems) + len(set(wanted) - set(results)),
        "duplicated": len(found) - len(losses) + len(list(out.glob("runs/*/superseded-*"))),
        "different_losses": sum(losses.get(run_id) != loss for run_id, loss in wanted.items()),
        "tables_that_differ": int(comparable(out) != expected),
        "left_over_checkpoints": len(list(out.glob("trunks/*/checkpoint-*"))),
    }


if __name__ == "__main__":
    sys.exit(main())
