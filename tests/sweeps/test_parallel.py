"""Two processes by torchrun train one run: the losses are those of one process."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.store import Store
from sweeps.worker import write_task

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def configs(make_config, text_corpus):
    from sweeps.corpus import load_corpus

    make = {"corpus": text_corpus, "corpus_hash": load_corpus(text_corpus).hash, "d_model": 32}
    return [make_config(64 * steps, **make) for steps in (60, 100)]  # further on rounding grows into seed noise


def torchrun(folder, trunk, processes=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "sweeps.worker", "run", str(folder), trunk]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_two_processes_reach_the_losses_of_one(tmp_path, configs, attention):
    configs = [replace(config, attention=attention) for config in configs]
    trunk = configs[0].trunk_key
    alone, together = Store(tmp_path / "alone"), Store(tmp_path / "together")
    for store in (alone, together):
        write_task(store, trunk, configs)
    command = [sys.executable, "-m", "sweeps.worker", "run", str(alone.folder), trunk]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    done = torchrun(together.folder, trunk)
    assert done.returncode == 0, done.stderr
    for config in configs:
        one, two = (store.result(config.run_id).row for store in (alone, together))
        assert two["status"] == "done"
        assert abs(two["loss"] - one["loss"]) < 1e-5
        assert two["tokens"] == one["tokens"]
    assert len(together.attempts(trunk)) == 2  # one process speaks for both


def test_together_they_stop_with_a_checkpoint_and_go_on(tmp_path, configs):
    store, trunk = Store(tmp_path / "out"), configs[0].trunk_key
    write_task(store, trunk, configs)
    store.stop_file.write_text("")
    assert torchrun(store.folder, trunk).returncode != 0
    assert [event["event"] for event in store.attempts(trunk)] == ["started", "interrupted"]
    assert list(store.trunk_folder(trunk).glob("checkpoint-*.pt"))
    store.stop_file.unlink()
    assert torchrun(store.folder, trunk).returncode == 0
    assert store.result(configs[1].run_id).status == "done"


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path, configs):
    store, trunk = Store(tmp_path / "out"), configs[0].trunk_key
    write_task(store, trunk, configs)  # two contexts a batch
    done = torchrun(store.folder, trunk, processes=3)
    assert done.returncode != 0
    assert "a batch of 2 contexts cannot be shared by 3 processes" in done.stderr
