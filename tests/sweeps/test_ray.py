"""On a real Ray cluster of three nodes on one machine: a node is killed, all runs end, none twice."""

import csv
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from sweeps.launch import launch
from sweeps.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(fake_training, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'isoflop[ray]'")
    monkeypatch.setenv("FAKE_TRAINING_CHECKPOINTS", "1")
    monkeypatch.setenv("FAKE_TRAINING_SECONDS", "4")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray.cluster_utils import Cluster

        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes = [started.add_node(num_cpus=1) for _ in range(2)]
        ray.init(address=started.address, log_to_driver=False)
        yield started, nodes
        ray.shutdown()
        started.shutdown()


def rows(out):
    with open(out / "runs.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("ignore")
def test_a_node_is_killed_and_all_runs_end_once(cluster, tmp_path, fake_training, write_grid):
    started, nodes = cluster
    out = tmp_path / "out"

    def kill_a_node():
        while len(list(out.glob("trunks/*/checkpoint-*.pt"))) < 4:
            time.sleep(0.1)
        started.remove_node(nodes[0], allow_graceful=False)

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    summary = launch(write_grid("[ray]\ncpus = 1"), out, executor="ray", train=fake_training)
    killer.join()
    assert (summary.done, summary.failed, summary.missing) == (8, 0, 0)
    assert len(rows(out)) == len({row["run_id"] for row in rows(out)}) == 8
    assert not list(out.glob("runs/*/superseded-*"))
    events = [e for path in (out / "trunks").iterdir() for e in Store(out).attempts(path.name)]
    assert sum(e["event"] == "started" for e in events) > 8  # something was lost and taken up again
    assert sum(e["event"] == "done" for e in events) == 8
    again = launch(write_grid(), out, executor="ray", train=fake_training)
    assert again.done == 8 and again.seconds < 5


@pytest.mark.filterwarnings("ignore")
def test_stopping_saves_checkpoints(cluster, tmp_path, fake_training, write_grid):
    out = tmp_path / "out"
    summary = launch(
        write_grid(), out, executor="ray", train=fake_training,
        should_stop=lambda: len(list(out.glob("trunks/*/progress.json"))) >= 2,
    )  # fmt: skip
    assert summary.stopped and summary.missing == 8


def test_without_ray_one_line_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from sweeps.executors.ray import RayExecutor\n"
        "from sweeps.grid import RaySettings\n"
        "from sweeps.worker import Job\n"
        "RayExecutor(Job('x'), RaySettings(), retries=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "SweepError: executor ray needs ray, which is not installed: pip install 'isoflop[ray]'" in done.stderr
