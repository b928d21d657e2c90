"""Checkpoints: what is saved comes back, what is damaged is named, and nothing in one ever executes."""

import hashlib
import os
import pickle

import pytest

from sweeps import durable
from sweeps.checkpoints import FileCheckpoint

torch = pytest.importorskip("torch")


class Attack:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def checkpoint(tmp_path, warnings):
    return FileCheckpoint(tmp_path, ["a", "b"], warn=warnings.append)


def newest(folder):
    return sorted(folder.glob("checkpoint-*.pt"))[-1]


def seal(path):
    path.with_name(path.name + ".sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")


def test_tensors_plain_values_and_random_states_come_back_to_the_bit(checkpoint):
    state = {
        "weights": torch.randn(100, dtype=torch.float64),
        "half": torch.randn(7).bfloat16(),
        "random": torch.get_rng_state(),
        "step": 12,
        "nested": {"list": [1, (2.5, "x")], "none": None},
    }
    checkpoint.save(state)
    found = checkpoint.load()
    assert found.keys() == state.keys()
    for name in ("weights", "half", "random"):
        assert torch.equal(found[name], state[name])
    assert (found["step"], found["nested"]) == (12, state["nested"])


def test_the_last_two_are_kept_and_clearing_leaves_none(checkpoint, tmp_path):
    for step in range(5):
        checkpoint.save({"step": step})
    assert len(list(tmp_path.glob("checkpoint-*.pt"))) == 2
    assert checkpoint.load()["step"] == 4
    checkpoint.clear()
    assert list(tmp_path.iterdir()) == []
    assert checkpoint.load() is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "no sum", "other sum"])
def test_damage_is_named_and_the_one_before_is_used(checkpoint, tmp_path, warnings, damage):
    checkpoint.save({"step": 1, "weights": torch.ones(1000)})
    checkpoint.save({"step": 2, "weights": torch.ones(1000)})
    path = newest(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "no sum":
        path.with_name(path.name + ".sha256").unlink()
    else:
        path.with_name(path.name + ".sha256").write_text("0" * 64)
    assert checkpoint.load()["step"] == 1
    assert len(warnings) == 1 and path.name in warnings[0] and "checksum" in warnings[0]


@pytest.mark.parametrize("wrap", ["pickle", "archive", "envelope"])
def test_a_pickle_in_place_of_a_checkpoint_is_refused_and_not_run(checkpoint, tmp_path, warnings, wrap):
    checkpoint.save({"step": 1})
    path, marker = newest(tmp_path), tmp_path / "executed"
    content = {"runs": ["a", "b"], "state": {"step": Attack(marker)}}
    if wrap == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content if wrap == "envelope" else Attack(marker), path)
    seal(path)
    assert checkpoint.load() is None
    assert not marker.exists()
    assert path.name in warnings[0]
    pickle.loads(pickle.dumps(Attack(marker)))  # it would have been run
    assert marker.exists()


def test_a_state_saved_for_other_runs_is_not_used(checkpoint, tmp_path, warnings):
    checkpoint.save({"step": 1})
    assert FileCheckpoint(tmp_path, ["b"]).load()["step"] == 1
    assert FileCheckpoint(tmp_path, ["b", "c"], warn=warnings.append).load() is None
    assert "other token counts" in warnings[0]


@pytest.mark.parametrize("stage", ["open", "write", "flush", "rename"])
def test_a_save_that_fails_is_reported_and_leaves_the_one_before(checkpoint, tmp_path, monkeypatch, stage):
    checkpoint.save({"step": 1})

    def fail(at, path):
        if at == stage and path.suffix == ".pt":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "fault_point", fail)
    with pytest.raises(durable.StorageError, match="no space left"):
        checkpoint.save({"step": 2})
    monkeypatch.undo()
    assert checkpoint.load()["step"] == 1
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_full_disk_inside_torch_is_reported_as_such(tmp_path):
    from sweeps.checkpoints import _Hashing

    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

    sink = _Hashing(Full())
    with pytest.raises((OSError, RuntimeError)):
        torch.save({"weights": torch.ones(10)}, sink)
    assert sink.failed.errno == 28
