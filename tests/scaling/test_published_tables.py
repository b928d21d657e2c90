"""The published tables, as their authors wrote them: read as they are described, or refused for what is odd in them."""

import csv
from fractions import Fraction

import numpy as np
import pytest

from scaling.conversion import runs_csv
from scaling.errors import InputError
from scaling.runs import read_runs
from scaling.studies import require_one_study
from tests.scaling.tables import shared, write_csv

ROWS = {
    "cs336_synthetic_isoflop.csv": 72,
    "datablations_repeat.csv": 307,
    "epoch_chinchilla.csv": 245,
    "gadre_overtrain.csv": 104,
    "kyo_takano_chinchilla.csv": 234,
    "llama3_isoflop.csv": 266,
    "misfitting_ckpts.csv": 4852,
    "misfitting_final.csv": 261,
    "mlscalefit_chinchilla.csv": 124,
    "raw/cs336_isoflops_curves.json": 72,
    "raw/epoch_svg_extracted_data.csv": 245,
    "raw/kyo_takano_df.csv": 234,
}


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_read_and_6nd_is_positive(name):
    runs = read_runs(shared(name))
    assert len(runs) == ROWS[name] and runs.excluded == []
    product = 6 * runs.table["params"] * runs.table["tokens"]
    assert (product > 0).all() and (runs.table["flops"] > 0).all()
    assert 0.9 < (product / runs.table["flops"]).median() < 1.1


def test_figure_table_by_its_own_headers_without_its_five_highest_losses():
    runs = read_runs(shared("raw/epoch_svg_extracted_data.csv"), drop_top_loss=5)
    assert len(runs) == 240 and [e.row for e in runs.excluded] == [2, 3, 4, 5, 6]
    assert {e.reason for e in runs.excluded} == {"one of the 5 highest losses"}
    assert runs.notes[:3] == ['params = "Model Size"', 'flops = "Training FLOP"', "tokens derived: D = C/(6N)"]
    tidy = read_runs(shared("epoch_chinchilla.csv"), where="epoch_outlier == 0")
    for column in ("params", "tokens", "flops", "loss"):
        assert runs.table[column].to_numpy() == pytest.approx(tidy.table[column].to_numpy(), rel=1e-15)


def test_compute_left_out_is_computed_in_floats(tmp_path):
    with open(shared("raw/kyo_takano_df.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    text = "N,D,loss\n" + "".join(f"{r['N']},{r['D']},{r['loss']}\n" for r in rows)
    runs = read_runs(write_csv(tmp_path, text))
    assert (runs.table["flops"] > 0).all()
    assert runs.table["flops"].to_numpy() == pytest.approx([float(r["C"]) for r in rows], rel=1e-6)


def test_integers_beyond_int64_are_right():
    path = shared("raw/misfitting_scaling_results_last_ckpt_only.csv")
    runs = read_runs(path, mapping={"params": "N", "flops": "C"})
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    beyond = 0
    for ours, theirs in (
        ("flops", "C"),
        ("C_6ND", "C_6ND"),
        ("C_no_emb", "C_no_emb"),
        ("C_6ND_no_emb", "C_6ND_no_emb"),
    ):
        for value, row in zip(runs.table[ours], rows, strict=True):
            exact = int(row[theirs])
            beyond += exact > 2**63
            assert abs(Fraction(value) - exact) <= Fraction(exact) / 10**15
    assert beyond > 100
    exact = [6 * int(r["N"]) * int(r["D"]) for r in rows]
    assert (6 * runs.table["params"] * runs.table["tokens"]).to_numpy() == pytest.approx(
        [float(e) for e in exact], rel=1e-15
    )


def test_total_and_non_embedding_counts_stop_with_the_choice():
    path = shared("raw/misfitting_scaling_results_last_ckpt_only.csv")
    with pytest.raises(InputError) as caught:
        read_runs(path)
    for option in ("params=N", "params=N_no_emb", "flops=C", "flops=C_no_emb", "flops=6ND"):
        assert f'--map "{option}"' in str(caught.value)
    assert "loss" not in str(caught.value).split("can be params")[0].split(":")[-1]
    runs = read_runs(path, mapping=["params=N_no_emb", "flops=6ND"], best_of="peak_lr")
    assert len(runs) == 81 and any("non-embedding" in w for w in runs.warnings)


def test_a_learning_rate_sweep_keeps_its_best():
    runs = read_runs(shared("misfitting_final.csv"), best_of="peak_lr")
    assert len(runs) == 81 and len(runs.excluded) == 180
    with open(shared("misfitting_final.csv"), newline="") as file:
        best = {}
        for row in csv.DictReader(file):
            cell = (float(row["n_params"]), float(row["n_tokens"]))
            best[cell] = min(best.get(cell, np.inf), float(row["loss"]))
    assert {(n, d): loss for n, d, loss in runs.table[["params", "tokens", "loss"]].to_numpy()} == best


def test_checkpoints_are_named_and_their_last_kept():
    runs = read_runs(shared("misfitting_ckpts.csv"))
    assert sum(len(label.rows) for label in runs.labels if label.label == "intermediate checkpoint") == 4852 - 261
    last = read_runs(shared("misfitting_ckpts.csv"), last_of="run").table
    assert len(last) == runs.table["run_id"].nunique() == last["run_id"].nunique()
    furthest = runs.table.groupby("run_id")["tokens"].max()
    assert (last.set_index("run_id")["tokens"] == furthest.loc[last["run_id"]]).all()


def test_normalised_losses_are_refused():
    with pytest.raises(InputError, match=r'"Lossu" is a loss normalised by a unigram model: -1\.349\d* at line 2'):
        read_runs(shared("raw/scaling_with_vocab_exp_data.csv"))


def test_names_that_hold_the_sizes_are_refused_with_the_zeros_counted():
    with pytest.raises(InputError) as caught:
        read_runs(shared("raw/datablations_names_losses.csv"))
    assert "no column for params, tokens. Columns: name, val_loss" in str(caught.value)
    assert '"val_loss" is zero, as unfinished runs are written, in 9 rows' in str(caught.value)


@pytest.mark.parametrize(
    ("name", "column", "values"), [("llama3_isoflop.csv", "condition", 2), ("gadre_overtrain.csv", "dataset", 3)]
)
def test_several_studies_in_one_file_are_refused_until_told_apart(name, column, values):
    runs = read_runs(shared(name))
    with pytest.raises(InputError, match=f'several studies, "{column}" takes {values} values'):
        require_one_study(runs)
    require_one_study(runs, group_by=column)
    one = runs.table[column].iloc[0]
    require_one_study(read_runs(shared(name), where=f"{column} == '{one}'"))


def test_a_normalised_metric_below_one_is_doubted():
    runs = read_runs(shared("llama3_isoflop.csv"), where="condition == 'raw_loss'")
    assert any("every loss is below 1" in w for w in runs.warnings)
    marked = next(label for label in runs.labels if label.label == "marked in the file")
    assert len(marked.rows) == 17
    near = next(label for label in runs.labels if label.label == "near-duplicate")
    assert len(near.rows) == 4 and len(set(near.rows) & set(marked.rows)) == 2
    weak = next(label for label in runs.labels if label.label == "weak curvature")
    assert "budget 3.000e21" in weak.text and set(weak.rows) <= set(marked.rows)


def test_a_copied_loss_is_noticed():
    runs = read_runs(shared("datablations_repeat.csv"))
    found = next(label for label in runs.labels if label.label == "suspiciously identical loss")
    assert runs.table.set_index("row").loc[list(found.rows), "run_id"].tolist() == ["83m32b100m", "83m60b100m"]


@pytest.mark.parametrize("name", ROWS)
def test_converting_and_reading_again_is_exact(tmp_path, name):
    first = read_runs(shared(name))
    second = read_runs(write_csv(tmp_path, runs_csv(first)))
    assert len(second) == len(first) and second.table["status"].eq("done").all()
    for column in first.table.columns.drop(["row"]):
        name = next((role for role, own in first.roles.items() if own == column), column)
        left, right = first.table[column], second.table[second.column(name)]
        if left.dtype.kind in "iuf":
            assert np.array_equal(left.to_numpy(float), right.to_numpy(float), equal_nan=True), column
        else:
            assert left.fillna("").astype(str).tolist() == right.fillna("").astype(str).tolist(), column
    assert runs_csv(second) == runs_csv(first)
