"""Which rows take part."""

import pytest

from scaling.errors import InputError
from scaling.runs import read_runs
from tests.scaling.tables import write_csv

TABLE = """run,params,tokens,loss,lr,dataset,Model Name
a,1e6,1e8,3.5,0.1,c4,small one
a,1e6,2e8,3.4,0.1,c4,small one
b,1e6,2e8,3.3,0.2,rpj,small two
c,2e9,2e8,3.2,0.1,c4,large one
c,2e9,2e8,3.2,0.2,c4,large one
"""


@pytest.fixture
def path(tmp_path):
    return write_csv(tmp_path, TABLE)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("dataset == 'c4' and params < 1e9", [2, 3]),
        ("dataset != 'c4'", [4]),
        ("params < 1B", [2, 3, 4]),
        ("tokens >= 0.2B", [3, 4, 5, 6]),
        ("lr in [0.1, 0.3]", [2, 3, 5]),
        ("dataset not in ('c4',)", [4]),
        ("not dataset == 'c4'", [4]),
        ("1e8 < tokens < 3e8", [3, 4, 5, 6]),
        ("`Model Name` == 'large one'", [5, 6]),
        ("tokens / params > 50", [2, 3, 4]),
        ("loss < 3.25 or run == 'b'", [4, 5, 6]),
        ('dataset == "rpj"', [4]),
        ("learning_rate == 0.2", [4, 6]),
        ("0.15 < lr", [4, 6]),
        ("-loss < -3.45", [2]),
    ],
)
def test_where(path, condition, rows):
    assert read_runs(path, where=condition).table["row"].tolist() == rows


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("dataset = 'c4'", "cannot be read"),
        ("nope > 1", 'no column "nope"'),
        ("params", "is not a condition"),
        ("__import__('os').system('true')", "not allowed"),
        ("params.max() > 1", "not allowed"),
        ("dataset < 5", "put it in quotes"),
        ("params == 'big'", "compares the numbers in params with a text"),
        ("1 < 2", "neither of them a column"),
        ("loss and params > 1", "compare it with a value"),
        ("dataset + 1 > 2", "arithmetic on something that is no number"),
        ("lr is 0.1", "not allowed"),
        ("", "cannot be read"),
        ("[x for x in params]", "not allowed"),
        ("lr in 3", "a list after it"),
    ],
)
def test_where_refuses_what_is_no_condition(path, condition, message):
    with pytest.raises(InputError) as caught:
        read_runs(path, where=condition)
    assert message in str(caught.value)


def test_a_message_names_each_column_once(path):
    with pytest.raises(InputError) as caught:
        read_runs(path, where="nope > 1")
    listed = str(caught.value).split("Columns: ")[1].rstrip(".").split(", ")
    assert len(listed) == len(set(listed)) and {"params", "lr", "Model Name"} <= set(listed)


def test_several_conditions_must_all_hold(path):
    assert read_runs(path, where=["dataset == 'c4'", "lr == 0.1"]).table["row"].tolist() == [2, 3, 5]


def test_best_of_keeps_the_lowest_loss_of_each_cell_and_counts_the_rest(path):
    runs = read_runs(path, best_of="lr")
    assert runs.table["row"].tolist() == [2, 4, 5]  # the earlier of two equals
    assert "best of lr (2 values): 3 (N, D) cells, 2 runs set aside" in runs.notes
    assert {e.reason for e in runs.excluded} == {"not the lowest loss over lr at its N and D"}
    grouped = read_runs(path, best_of="lr", group_by="dataset")
    assert grouped.table["row"].tolist() == [2, 3, 4, 5]
    with pytest.raises(InputError, match='no column "momentum"'):
        read_runs(path, best_of="momentum")


def test_last_of_keeps_the_last_checkpoint_of_each_run(path):
    runs = read_runs(path, last_of="run")
    assert runs.table["row"].tolist() == [3, 4, 6]
    assert runs.summary() == "5 rows, 2 not the last of run left out (lines 2, 5)"


def test_drop_top_loss(path):
    runs = read_runs(path, drop_top_loss=2)
    assert runs.table["row"].tolist() == [4, 5, 6] and [e.row for e in runs.excluded] == [2, 3]
    with pytest.raises(InputError, match="from 0 to 4"):
        read_runs(path, drop_top_loss=5)


def test_exclude_by_id_and_by_line(path):
    assert read_runs(path, exclude=["c", "line 4"]).table["row"].tolist() == [2, 3]
    with pytest.raises(InputError, match="no run has this id. Known ids: a, a, b"):
        read_runs(path, exclude=["zzz"])
    with pytest.raises(InputError, match="no row stands there"):
        read_runs(path, exclude=["line 99"])


def test_exclude_without_ids_asks_for_a_line(tmp_path):
    path = write_csv(tmp_path, "params,tokens,loss\n1e6,1e8,3\n2e6,1e8,2.9\n")
    with pytest.raises(InputError, match='Write --exclude "line 14"'):
        read_runs(path, exclude=["a"])
