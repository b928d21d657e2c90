"""The store: every write whole or not at all, results counted once, the table rebuilt to the byte."""

import csv
import json
import math
import os
import random
import threading

import pytest

from scaling.accounting import count_parameters
from scaling.errors import SweepError
from sweeps import durable
from sweeps.status import read_status
from sweeps.store import Store, safe_name
from sweeps.table import COLUMNS, table_text


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "sweep")


def put(store, config, loss=2.0, **values):
    return store.write_result(config, "done", loss=loss, loss_se=0.01, row={"unique_tokens": 5}, **values)


def read_table(store):
    with open(store.runs_csv, newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_holds_the_configuration_and_the_realised_counts(store, make_config):
    config = make_config(6430)
    put(store, config, curve=[{"tokens": 64, "loss": 5.0}, {"tokens": 6400, "loss": 2.0}])
    store.write_table()
    (row,) = read_table(store)
    assert tuple(row)[: len(COLUMNS)] == COLUMNS
    assert row["run_id"] == config.run_id and row["status"] == "done"
    assert float(row["params"]) == count_parameters(config.shape()).total
    assert float(row["tokens"]) == 100 * 64  # steps x batch, not the plan
    assert float(row["flops"]) == 6 * config.params * 6400
    assert (row["loss"], row["loss_se"], row["unique_tokens"]) == ("2.0", "0.01", "5")
    curve = (store.folder / "curves" / f"{config.run_id}.csv").read_text()
    assert curve == "tokens,loss\n64,5.0\n6400,2.0\n"


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])
def test_a_done_run_without_a_finite_loss_is_written_as_diverged(store, make_config, loss):
    store.write_result(make_config(), "done", loss=loss)
    store.write_table()
    (row,) = read_table(store)
    assert row["status"] == "diverged" and row["loss"] == "" and str(loss) in row["reason"]


def test_a_failed_run_keeps_its_row_and_reason_without_loss_or_tokens(store, make_config):
    store.write_result(make_config(), "failed", reason="it died,\n twice", loss=1.0, loss_se=0.1)
    store.write_table()
    (row,) = read_table(store)
    assert (row["status"], row["reason"]) == ("failed", "it died, twice")
    assert [row[name] for name in ("loss", "loss_se", "tokens", "flops", "steps")] == [""] * 5
    assert row["params"] and row["learning_rate"]


def test_the_first_final_result_stays(store, make_config):
    config = make_config()
    assert put(store, config, 2.0)
    before = store.result_file(config.run_id).read_bytes()
    assert not put(store, config, 3.0)
    assert not store.write_result(config, "failed", reason="late")
    assert store.result_file(config.run_id).read_bytes() == before


def test_a_failed_result_gives_way_to_a_later_one(store, make_config):
    config = make_config()
    store.write_result(config, "failed", reason="first")
    store.write_result(config, "failed", reason="second")
    assert store.result(config.run_id).reason == "second"
    assert put(store, config, 2.5)
    assert store.result(config.run_id).row["loss"] == 2.5


def test_the_table_is_the_same_whatever_the_order_and_whoever_writes_it(tmp_path, make_config):
    configs = [make_config(64 * n, seed=seed, d_model=d) for n in (10, 20) for seed in (0, 1) for d in (16, 32)]
    texts = []
    for order in (configs, configs[::-1]):
        store = Store(tmp_path / str(len(texts)))
        for config in order:
            put(store, config, loss=config.tokens / 7)
        store.write_table()
        texts.append(store.runs_csv.read_bytes())
    assert texts[0] == texts[1]
    tokens = [(float(row["params"]), float(row["tokens"])) for row in read_table(Store(tmp_path / "0"))]
    assert tokens == sorted(tokens)


def test_the_table_is_rebuilt_from_the_folders(store, make_config):
    for seed in range(3):
        put(store, make_config(seed=seed))
    store.write_table()
    before = store.runs_csv.read_bytes()
    store.runs_csv.unlink()
    Store(store.folder).write_table()
    assert store.runs_csv.read_bytes() == before


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other run", "not json", "bare"])
def test_a_damaged_result_is_named_not_counted_and_can_be_written_again(store, make_config, damage):
    config, other = make_config(), make_config(seed=1)
    put(store, config)
    put(store, other)
    path = store.result_file(config.run_id)
    content = path.read_bytes()
    damaged = {
        "flip": content.replace(b'"loss": 2.0', b'"loss": 1.0'),
        "cut": content[: len(content) // 2],
        "empty": b"",
        "other run": store.result_file(other.run_id).read_bytes(),
        "not json": b"\xff\x00\x01",
        "bare": b'{"loss": 1.0}',
    }[damage]
    assert damaged != content
    path.write_bytes(damaged)
    results, problems = store.results()
    assert set(results) == {other.run_id}
    assert len(problems) == 1 and config.run_id in problems[0] and "damaged" in problems[0]
    store.write_table()
    assert [row["run_id"] for row in read_table(store)] == [other.run_id]
    assert put(store, config)
    assert store.result(config.run_id).row["loss"] == 2.0


class Fault:
    """Fails the n-th write stage, and counts them."""

    def __init__(self, at, number=28):
        self.at, self.number, self.count, self.failed = at, number, 0, None

    def __call__(self, stage, path):
        self.count += 1
        if self.count == self.at:
            self.failed = stage, path.name
            raise OSError(self.number, os.strerror(self.number))


def everything(store, config):
    """All that a worker and a runner write for one run."""
    store.record("trunk-1", "started")
    store.write_progress("trunk-1", {"tokens_done": 1, "tokens_total": 2, "loss": 2.0})
    put(store, config, curve=[{"tokens": 64, "loss": 2.0}])
    store.write_table()


@pytest.mark.parametrize("number", [28, 13, 5, 30, 122])
def test_a_fault_at_any_write_is_reported_and_leaves_no_wrong_row(tmp_path, make_config, monkeypatch, number):
    """Disk full, permission, input/output, read-only, quota: at each stage of each write in turn."""
    config = make_config()
    counting = Fault(at=0)
    monkeypatch.setattr(durable, "fault_point", counting)
    everything(Store(tmp_path / "counted"), config)
    assert counting.count >= 20
    for at in range(1, counting.count + 1):
        store = Store(tmp_path / f"{number}-{at}")
        fault = Fault(at, number)
        monkeypatch.setattr(durable, "fault_point", fault)
        with pytest.raises(durable.StorageError, match="cannot be written"):
            everything(store, config)
        monkeypatch.setattr(durable, "fault_point", lambda stage, path: None)
        assert list(store.folder.rglob("*.tmp")) == [], fault.failed
        results, problems = store.results()
        assert problems == []
        assert all(result.row["loss"] == 2.0 for result in results.values())
        everything(store, config)
        assert [row["loss"] for row in read_table(store)] == ["2.0"]


def test_a_table_with_rows_from_elsewhere_is_kept_under_another_name(store, make_config):
    assert store.keep_other_rows({}) is None
    put(store, make_config())
    store.write_table()
    known = store.results()[0]
    assert store.keep_other_rows(known) is None and store.runs_csv.exists()
    other = "run_id,params,tokens,loss\nelsewhere,1e6,1e7,3.0\n"
    for number in (1, 2):
        store.runs_csv.write_text(other)
        assert store.keep_other_rows(known).name == f"runs.kept-{number}.csv"
    assert (store.folder / "runs.kept-1.csv").read_text() == other
    store.runs_csv.write_bytes(b'\x00"\xff')
    assert store.keep_other_rows(known) is not None


def test_many_writers_of_one_run_leave_one_result(store, make_config):
    config = make_config()
    barrier = threading.Barrier(8)
    first = []

    def write(loss):
        barrier.wait()
        first.append(put(store, config, loss))

    threads = [threading.Thread(target=write, args=(float(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(first) == 1
    assert store.results()[1] == []


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", ".hidden", "a b", "a\nb", "x" * 200, "a;b", "é", None])
def test_names_that_could_leave_the_folder_are_refused(store, name):
    with pytest.raises(SweepError):
        safe_name(name)
    with pytest.raises(SweepError):
        store.run_folder(name)


def test_folders_that_are_no_runs_are_passed_over(store, make_config):
    put(store, make_config())
    (store.folder / "runs" / ".hidden").mkdir()
    (store.folder / "runs" / "empty").mkdir()
    (store.folder / "runs" / "file").write_text("x")
    results, problems = store.results()
    assert len(results) == 1
    assert len(problems) <= 1  # a plain file among the folders may be named


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    path = tmp_path / "results"
    path.write_text("x")
    with pytest.raises(SweepError, match="is a file"):
        Store(path)


def test_cells_are_exact_and_harmless():
    rows = [{"run_id": "r", "loss": 0.1 + 0.2, "corpus": "=cmd()", "reason": 'a "b", c', "zeta": 1, "alpha": None}]
    text = table_text(rows)
    (row,) = csv.DictReader(text.splitlines())
    assert float(row["loss"]) == 0.1 + 0.2
    assert row["corpus"] == "'=cmd()"
    assert row["reason"] == 'a "b", c'
    assert text.splitlines()[0].endswith("reason,alpha,zeta")


def test_a_cut_off_history_is_read_as_far_as_it_goes(store):
    store.record("trunk-1", "started", pid=1)
    store.record("trunk-1", "done")
    path = store.trunk_folder("trunk-1") / "attempts.jsonl"
    path.write_text(path.read_text()[:-10])
    assert [event["event"] for event in store.attempts("trunk-1")] == ["started"]


def test_no_damage_to_a_stored_result_makes_a_wrong_row(store, make_config):
    """Seeded fuzz: bytes replaced, cut out, doubled. The row is the one written, or it is absent and named."""
    config = make_config()
    put(store, config)
    path = store.result_file(config.run_id)
    good, row = path.read_bytes(), store.result(config.run_id).row
    random_ = random.Random(1)
    absent = 0
    for _ in range(400):
        content = bytearray(good)
        for _ in range(random_.choice((1, 1, 3))):
            at, kind = random_.randrange(len(content)), random_.randrange(4)
            if kind == 0:
                content[at] ^= 1 << random_.randrange(8)
            elif kind == 1:
                del content[at : at + random_.randrange(1, 50)]
            elif kind == 2:
                content[at:at] = content[at : at + 20]
            else:
                content[at:at] = random_.choice((b"NaN", b"1e999", b"[" * 5000, b'"', b"null", b"\x00", b"\xff"))
        path.write_bytes(content)
        results, problems = store.results()
        if config.run_id in results:
            assert results[config.run_id].row == row
        else:
            assert len(problems) == 1 and "damaged" in problems[0]
            absent += 1
    assert absent > 300


@pytest.mark.parametrize("name", ["plan.json", "trunks/t/progress.json", "trunks/t/attempts.jsonl", "trunks/t/lease.1"])
def test_status_survives_whatever_lies_in_the_folder(store, name):
    plan = {"tasks": [{"trunk": "t", "flops": 1e9, "runs": ["a", "b"]}]}
    path = store.folder / name
    random_ = random.Random(2)
    store.record("t", "started")
    store.write_progress("t", {"tokens_done": 1, "tokens_total": 2, "loss": 2.0})
    store.plan_file.write_text(json.dumps(plan))
    (store.folder / "trunks/t/lease.1").write_text(
        '{"host": "h", "machine": "m", "pid": 1, "started": 1, "since": "s"}'
    )
    good = path.read_bytes()
    nasty = (
        b"null",
        b"[]",
        b"{}",
        b'{"tasks": 3}',
        b'{"tasks": [1, {"trunk": "../x", "flops": 1, "runs": ["a"]}]}',
        b'"x"',
        b"1",
    )
    contents = [bytes(c) for c in nasty] + [_damaged(good, random_) for _ in range(60)]
    for content in contents:
        path.write_bytes(content)
        try:
            read_status(store.folder)
        except SweepError:
            assert name == "plan.json"


def _damaged(content, random_):
    at = random_.randrange(len(content))
    return content[:at] + bytes([random_.randrange(256)]) + content[at + random_.randrange(4) :]


def test_results_keep_every_configured_field(store, make_config):
    config = make_config()
    put(store, config)
    record = json.loads(store.result_file(config.run_id).read_bytes())["record"]
    assert record["config"] == config.to_dict()
