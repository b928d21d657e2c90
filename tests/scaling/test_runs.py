"""read_runs and validate_runs: what is used, what is left out and why, and what is said about it."""

import numpy as np
import pandas as pd
import pytest

from scaling.errors import InputError
from scaling.runs import read_runs, validate_runs
from tests.scaling.tables import write_csv

GOOD = "run_id,params,tokens,loss,status\na,1e6,1e8,3.5,done\nb,2e6,2e8,3.2,done\n"


def test_the_table_is_float64_under_our_names_with_place_and_source(tmp_path):
    path = write_csv(
        tmp_path, "Model Size,Training Tokens,val_loss,host\n1000000,100000000,3.5,x\n2000000,200000000,3.2,y\n"
    )
    runs = read_runs(path)
    assert list(runs.table.columns) == ["params", "tokens", "loss", "flops", "host", "row", "source"]
    assert all(runs.table[c].dtype == np.float64 for c in ("params", "tokens", "loss", "flops"))
    assert runs.table["row"].tolist() == [2, 3] and set(runs.table["source"]) == {path} and runs.sources == [path]
    assert runs.notes == [
        'params = "Model Size"',
        'tokens = "Training Tokens"',
        'loss = "val_loss"',
        "flops derived: C = 6ND",
    ]
    assert runs.column("Model Size") == "params" and runs.column("host") == "host" and len(runs) == 2
    with pytest.raises(InputError, match='no column "nope". Columns: params, tokens'):
        runs.column("nope")


def test_rows_that_are_not_done_are_left_out_whatever_their_loss(tmp_path):
    rows = "c,1e6,3e8,,diverged\nd,1e6,4e8,2.9,running\ne,1e6,5e8,0,crashed\nf,1e6,6e8,2.8,\ng,1e6,7e8,2.7,FINISHED\n"
    runs = read_runs(write_csv(tmp_path, GOOD + rows))
    assert runs.table["run_id"].tolist() == ["a", "b", "g"]
    assert [(e.row, e.run_id, e.reason) for e in runs.excluded] == [
        (4, "c", "status diverged"),
        (5, "d", "status running"),
        (6, "e", "status crashed"),
        (7, "f", "status is empty"),
    ]
    assert runs.summary() == "7 rows, 1 diverged, 1 unfinished and 2 failed left out (lines 4, 5, 6, 7)"
    assert runs.excluded[0].to_dict() == {"row": 4, "run_id": "c", "reason": "status diverged"}
    assert runs.left_out["status"].tolist() == ["diverged", "unfinished", "failed", "failed"]


def test_a_status_column_can_be_ignored(tmp_path):
    runs = read_runs(write_csv(tmp_path, GOOD + "c,1e6,3e8,3.1,maybe\n"), mapping={"status": ""})
    assert len(runs) == 3


BAD = {
    "nan": ("loss is nan", "not finite", 'set its status to "diverged"'),
    "": ("loss is empty", "not finite", 'set its status to "diverged"'),
    "inf": ("loss is inf", "not finite", 'set its status to "diverged"'),
    "0": ("loss is 0, as unfinished runs are written", "zero or sentinel", 'set its status to "failed"'),
    "-1": ("loss is -1, as unfinished runs are written", "zero or sentinel", 'set its status to "failed"'),
    "-2.5": ("loss is -2.5", "negative", "A cross-entropy is above zero"),
    "3.1x": ('loss is "3.1x", not a number', "unreadable", "Mend that cell"),
}


@pytest.mark.parametrize("cell", BAD)
def test_an_unusable_loss_stops_or_is_left_out_when_told(tmp_path, cell):
    text, label, advice = BAD[cell]
    path = write_csv(tmp_path, GOOD + f"c,3e6,3e8,{cell},done\n")
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert f"{path} line 4: {text}" in str(caught.value) and advice in str(caught.value)
    runs = read_runs(path, skip_bad_rows=True)
    assert len(runs) == 2
    assert [(e.row, e.run_id, e.reason, e.label) for e in runs.excluded] == [(4, "c", text, label)]
    assert runs.summary() == f"3 rows, 1 {label} left out (line 4)"


@pytest.mark.parametrize(
    ("cell", "said"),
    [("-5", "params is -5"), ("0", "params is 0"), ("", "params is empty"), ("1e6 or so", 'params is "1e6 or so"')],
)
def test_an_unusable_size_stops(tmp_path, cell, said):
    with pytest.raises(InputError, match=f"line 4: {said}"):
        read_runs(write_csv(tmp_path, GOOD + f"c,{cell},3e8,3.1,done\n"))


def test_several_bad_rows_are_counted(tmp_path):
    with pytest.raises(InputError, match=r"line 4: .* 2 more rows are unusable"):
        read_runs(write_csv(tmp_path, GOOD + "c,3e6,3e8,nan,done\nd,3e6,3e8,0,done\ne,3e6,-3e8,3,done\n"))


def test_no_usable_row_is_an_error_with_the_reasons(tmp_path):
    with pytest.raises(InputError, match=r"no usable row\. 1 row, 1 failed left out \(line 2\)\. Only status done, "):
        read_runs(write_csv(tmp_path, "params,tokens,loss,status\n1e6,1e8,3,aborted\n"))


def test_where_comes_before_the_check_so_bad_rows_can_be_left_aside(tmp_path):
    path = write_csv(tmp_path, GOOD + "c,3e6,3e8,nan,done\n")
    runs = read_runs(path, where="run_id != 'c'")
    assert len(runs) == 2 and runs.n_rows == 2 and "where \"run_id != 'c'\": 2 of 3 rows" in runs.notes
    with pytest.raises(InputError, match="keeps none of the 3 rows"):
        read_runs(path, where="run_id == 'z'")
    assert len(read_runs(path, exclude=["line 4"])) == 2 == len(read_runs(path, exclude=["c"]))


def test_empty_computes_are_filled_by_6nd(tmp_path):
    runs = read_runs(write_csv(tmp_path, "params,tokens,loss,flops\n1e6,1e8,3.5,7e14\n2e6,1e8,3.2,\n"))
    assert runs.table["flops"].tolist() == [7e14, 1.2e15]
    assert "flops: 6ND in 1 empty cells" in runs.notes


def test_names_of_ours_that_play_no_role_step_aside(tmp_path):
    path = write_csv(tmp_path, "row,source,params,tokens,val_loss,loss\n7,lab,1e6,1e8,3.5,9\n")
    runs = read_runs(path, mapping=["loss=val_loss"])
    assert runs.table.iloc[0][["row (in the file)", "source", "loss", "loss (in the file)"]].tolist() == [
        7,
        "lab",
        3.5,
        9,
    ]


def test_run_ids_stay_texts(tmp_path):
    runs = read_runs(
        write_csv(tmp_path, "name,params,tokens,loss\n007,1e6,1e8,3.5\n008,2e6,2e8,3.2\n"), exclude=["007"]
    )
    assert runs.table["run_id"].tolist() == ["008"] and runs.excluded[0].run_id == "007"


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1.0, "6ND/C is 1 in every row"),
        (1 / 3, "C counts 2ND"),
        (8 / 6, "8ND"),
        (1.1, "more than 6ND"),
        (0.6, "less than 6ND"),
        (1e-9, "factor 1e9"),
        (1 / 8.64e19, "PF-days"),
    ],
)
def test_the_ratio_of_6nd_to_c_is_explained(tmp_path, factor, words):
    rows = "".join(f"{n},{d},3.5,{6 * n * d * factor}\n" for n, d in ((1e6, 1e8), (2e6, 3e8), (5e6, 4e8)))
    runs = read_runs(write_csv(tmp_path, "params,tokens,loss,flops\n" + rows))
    said = [text for text in runs.notes + runs.warnings if "6ND/C" in text]
    assert len(said) == 1 and words in said[0]


def test_conventions_that_fit_no_budget_axis_are_told_apart(tmp_path):
    """Case of one experiment under three counts of N: only one is near-consistent with its FLOP axis."""
    budgets = (1e18, 2e18, 5e18, 1e19)
    counts = {
        "scaling": ([110678115, 167797457, 250650865, 381758347], [1241505403, 1785336422, 2642234152, 3806871243]),
        "all": ([416320605, 560239841, 741495903, 988644331], [1232157011, 1763669281, 2629909368, 3884841895]),
        "matrices": ([80259665, 131488566, 220985474, 401213504], [1315639547, 1864134141, 2595328843, 3328704512]),
    }
    said = {}
    for name, (sizes, tokens) in counts.items():
        rows = "".join(f"{n},{d},3,{c}\n" for n, d, c in zip(sizes, tokens, budgets, strict=True))
        runs = read_runs(write_csv(tmp_path, "params,tokens,loss,flops\n" + rows))
        (said[name],) = [text for text in runs.notes + runs.warnings if "6ND/C" in text]
    assert "median 0.8" in said["scaling"] and "more than 6ND" in said["scaling"]
    assert "less than 6ND" in said["all"] and "embeddings" in said["all"]
    assert "more than 6ND" in said["matrices"]


def test_another_count_in_the_table_explains_the_ratio(tmp_path):
    rows = "".join(f"{2 * n},{n},{d},3.5,{6 * n * d}\n" for n, d in ((1e6, 1e8), (2e6, 3e8)))
    runs = read_runs(write_csv(tmp_path, "params,params_non_embedding,tokens,loss,flops\n" + rows))
    assert any("C is 6 x non-embedding parameters" in text for text in runs.notes + runs.warnings)


def test_validate_runs_returns_floats_and_names_the_bad_row():
    frame = pd.DataFrame({"params": [10**6, 2 * 10**6], "tokens": [10**13, 10**13], "loss": [3.5, 3.2]})
    checked = validate_runs(frame)
    assert checked["flops"].tolist() == [6e19, 1.2e20] and checked["params"].dtype == np.float64
    with pytest.raises(InputError, match="no column loss"):
        validate_runs(frame.drop(columns="loss"))
    with pytest.raises(InputError, match="no rows"):
        validate_runs(frame.iloc[:0])
    with pytest.raises(InputError, match=r"loss is nan in row 1"):
        validate_runs(frame.assign(loss=[3.5, np.nan]))
    with pytest.raises(InputError, match="no number"):
        validate_runs(frame.assign(loss=["a", "b"]))


def test_in_a_table_of_ours_each_column_means_what_it_says(tmp_path):
    header = (
        "run_id,status,params,tokens,loss,flops,params_non_embedding,bits_per_byte,trained_tokens,train_loss,budget\n"
    )
    runs = read_runs(write_csv(tmp_path, header + "a,done,1e6,1e8,3.5,6e14,8e5,1.1,5e7,3.3,1e15\n"))
    assert runs.table[["params", "tokens", "loss", "flops"]].iloc[0].tolist() == [1e6, 1e8, 3.5, 6e14]
    assert runs.notes == ["6ND/C is 1 in every row"] and runs.warnings == []


def test_losses_below_one_are_usual_per_byte(tmp_path):
    text = "params,tokens,loss,vocab_size\n1e6,1e8,0.9,{0}\n2e6,1e8,0.8,{0}\n"
    assert not read_runs(write_csv(tmp_path, text.format(256))).labels
    assert [label.label for label in read_runs(write_csv(tmp_path, text.format(32000))).labels] == ["metric"]
