"""scale convert, and the reading options that every command shares."""

import json

import pytest
from click.testing import CliRunner

from scaling.cli import cli
from scaling.errors import InputError
from scaling.runs import read_runs

TABLE = """Name,Model Size,Training Tokens (B),val_loss,peak_lr,State
a,70M,1.5,3.5,0.1,finished
b,70M,1.5,3.4,0.2,finished
c,160M,3,3.1,0.1,finished
d,160M,6,,0.1,crashed
"""


def run(*arguments):
    return CliRunner().invoke(cli, [*map(str, arguments)])


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text(TABLE)
    return path


def test_writes_our_table_with_the_report_beside_it(tmp_path, table):
    out = tmp_path / "runs.csv"
    result = run("convert", table, "-o", out)
    assert result.exit_code == 0
    assert f"{out}: 3 usable runs." in result.stdout
    assert 'tokens = "Training Tokens (B)", in b (1.5 is 1.5B)' in result.stderr
    assert 'params: cells with suffix read as numbers: "70M" is 70000000' in result.stderr
    assert "4 rows, 1 failed left out (line 5)" in result.stderr
    assert out.read_text().splitlines() == [
        "run_id,params,tokens,loss,flops,status,learning_rate,reason,source",
        f"a,70000000,1500000000,3.5,6.3e+17,done,0.1,,{table}",
        f"b,70000000,1500000000,3.4,6.3e+17,done,0.2,,{table}",
        f"c,160000000,3000000000,3.1,2.88e+18,done,0.1,,{table}",
        f"d,160000000,6000000000,,5.76e+18,failed,0.1,status crashed,{table}",
    ]
    report = (tmp_path / "runs.report.txt").read_text()
    for part in (
        f"Read from\n  {table}",
        'params = "Model Size"',
        "Left out\n",
        "line 5 (d): status crashed",
        "nats per token",
    ):
        assert part in report


def test_its_table_reads_back_the_same_and_converts_to_itself(tmp_path, table):
    out, again = tmp_path / "runs.csv", tmp_path / "again.csv"
    run("convert", table, "-o", out)
    run("convert", out, "-o", again)
    assert out.read_text() == again.read_text()
    first, second = read_runs(str(table)), read_runs(str(out))
    assert (
        first.table[["params", "tokens", "loss", "flops"]] == second.table[["params", "tokens", "loss", "flops"]]
    ).all(axis=None)
    assert [e.run_id for e in first.excluded] == [e.run_id for e in second.excluded] == ["d"]


def test_selection_and_json(tmp_path, table):
    result = run("convert", table, "-o", tmp_path / "r.csv", "--best-of", "peak_lr", "--where", "params < 1B", "--json")
    account = json.loads(result.stdout)
    assert account["n_runs"] == 2 and account["n_rows"] == 4
    assert account["excluded"] == [
        {"row": 2, "run_id": "a", "reason": "not the lowest loss over peak_lr at its N and D"},
        {"row": 5, "run_id": "d", "reason": "status crashed"},
    ]


def test_standard_output_carries_the_table_alone(table):
    result = run("convert", table, "-o", "-")
    assert result.stdout.startswith("run_id,params,tokens") and len(result.stdout.splitlines()) == 5


def test_a_metric_other_than_nats_is_written_and_read_back(tmp_path):
    source, out = tmp_path / "bits.csv", tmp_path / "runs.csv"
    source.write_text("params,tokens,val_bpb\n1e6,1e8,1.2\n2e6,1e8,1.1\n")
    assert run("convert", source, "-o", out).exit_code == 0
    runs = read_runs(str(out))
    assert runs.metric == "bits_per_byte" and runs.table["loss"].tolist() == [1.2, 1.1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.csv", "-o", "x.csv"], "no such file"),
        (["{table}", "-o", "{folder}"], "is a folder"),
        (["{table}", "-o", "x.csv", "--where", "nope > 1"], 'no column "nope"'),
        (["{table}", "-o", "x.csv", "--map", "params"], "write it as ROLE=COLUMN"),
        (["{table}", "-o", "x.csv", "--exclude", "zz"], "no run has this id"),
        (["{folder}", "-o", "x.csv"], "is a folder; give the table in it"),
    ],
)
def test_what_is_at_fault_in_the_input_is_one_error(tmp_path, table, arguments, message):
    filled = [a.format(table=table, folder=tmp_path) for a in arguments]
    result = run("convert", *[str(tmp_path / a) if a == "x.csv" else a for a in filled])
    assert isinstance(result.exception, InputError) and message in str(result.exception)
    assert not (tmp_path / "x.csv").exists()


def test_misuse_exits_2(table):
    assert run("convert", table).exit_code == 2
    assert run("convert", "-o", "x.csv").exit_code == 2
    assert run("convert", table, "-o", "x.csv", "--drop-top-loss", "-1").exit_code == 2
