"""Quality labels: each doubt on a table that deserves it, silence on one that does not."""

import numpy as np
import pandas as pd
import pytest

from scaling.budget_quality import label_budgets
from scaling.errors import InputError
from scaling.quality import read_status
from scaling.runs import read_runs
from scaling.studies import require_one_study
from tests.scaling.tables import write_csv


def law(n, d):
    return 1.69 + 406.4 / n**0.34 + 410.7 / d**0.28


def grid_rows(extra="", sizes=(1e7, 3e7, 1e8, 3e8), tokens=(1e9, 3e9, 1e10)):
    return [f"{n},{d},{law(n, d)!r}{extra}" for n in sizes for d in tokens]


def read(tmp_path, header, rows, **options):
    return read_runs(write_csv(tmp_path, "\n".join(["params,tokens,loss" + header, *rows])), **options)


def labels(runs):
    return {label.label: label for label in runs.labels}


def test_a_clean_grid_has_no_doubts(tmp_path):
    runs = read(tmp_path, ",warmup_tokens,schedule_end_tokens,seed", grid_rows(",1e7,1e9,0"))
    assert runs.labels == [] and runs.warnings == []


def test_status_words():
    words = ["done", "Finished", "diverged", "RUNNING", "in progress", "crashed", "", None]
    assert read_status(pd.Series(words, dtype=object)).tolist() == [
        "done",
        "done",
        "diverged",
        "unfinished",
        "unfinished",
        "failed",
        "failed",
        "failed",
    ]


@pytest.mark.parametrize(
    ("header", "good", "bad", "label"),
    [
        (",warmup_tokens", ",1e8", ",9e8", "warm-up share"),
        (",warmup_ratio", ",0.02", ",0.3", "warm-up share"),
        (",warmup_percent", ",2%", ",30%", "warm-up share"),
        (",steps,warmup_steps", ",1000,10", ",1000,400", "warm-up share"),
        (",schedule_end", ",1e9", ",9e9", "schedule longer than the run"),
        (",frac", ",1.0", ",0.5", "schedule longer than the run"),
        (",current_step,total_steps", ",100,100", ",50,100", "schedule longer than the run"),
        (",vocab_size", ",50257", ",4", "diverged"),
    ],
)
def test_a_doubtful_setting_is_labelled_with_its_line(tmp_path, header, good, bad, label):
    rows = grid_rows(good)
    n, d = 5e7, 2e9
    runs = read(tmp_path, header, [*rows, f"{n},{d},{law(n, d)}{bad}"])
    assert labels(runs)[label].rows == (14,) and len(runs) == 13
    assert any("line 14" in warning and warning.startswith(label) for warning in runs.warnings)


def test_checkpoints_of_a_run_are_intermediate_but_the_last(tmp_path):
    rows = [f"{row},run{k // 3}" for k, row in enumerate(grid_rows())]
    runs = read(tmp_path, ",run_id", rows)
    assert labels(runs)["intermediate checkpoint"].rows == (2, 3, 5, 6, 8, 9, 11, 12)
    assert "intermediate checkpoint" not in labels(read(tmp_path, ",run_id", rows, last_of="run_id"))


def test_a_loss_that_rises_with_tokens_is_labelled(tmp_path):
    runs = read(tmp_path, "", [*grid_rows(), f"1e7,2e10,{1.3 * law(1e7, 1e10)}"])
    assert labels(runs)["diverged"].rows == (14,)


def test_near_duplicates_are_both_named_and_repetitions_are_not(tmp_path):
    rows = [*grid_rows(), "1.002e7,1.001e9,4.21", f"3e7,1e9,{law(3e7, 1e9) + 0.01}"]
    runs = read(tmp_path, "", rows)
    assert labels(runs)["near-duplicate"].rows == (2, 14)


def test_identical_losses_of_different_runs(tmp_path):
    rows = [*grid_rows(), "83e6,2e9,3.747091", "83e6,4e9,3.747091"]
    found = labels(read(tmp_path, "", rows))["suspiciously identical loss"]
    assert found.rows == (14, 15) and "copying slip" in found.text
    assert "suspiciously identical loss" not in labels(
        read(tmp_path, "", [*grid_rows(), "83e6,2e9,3.75", "83e6,4e9,3.75"])
    )
    coarse = [
        f"{n},{d},{3.123456 if k % 2 else 3.234567}"
        for k, (n, d) in enumerate((n, d) for n in (1e7, 5e7) for d in (1e9, 5e9, 2e10))
    ]
    assert "rounded, or read off a figure" in labels(read(tmp_path, "", coarse))["suspiciously identical loss"].text


def test_marks_of_the_file_itself_are_reported(tmp_path):
    rows = [f"{row},{int(k == 4)},{'odd' if k == 4 else 'none'}" for k, row in enumerate(grid_rows())]
    found = labels(read(tmp_path, ",outlier,reason", rows))["marked in the file"]
    assert found.rows == (6,) and "odd 1" in found.text and '--where "outlier == 0"' in found.text


# ---------------------------------------------------------------------------------------------------------- budgets


def budget(flops, sizes, losses):
    return [f"{n},{float(flops / (6 * n))},{loss},{flops}" for n, loss in zip(sizes, losses, strict=True)]


def parabola(sizes, centre, noise=0.0, curvature=0.1):
    x = np.log10(np.asarray(sizes))
    return 3 + curvature * (x - np.log10(centre)) ** 2 + noise * (-1.0) ** np.arange(len(x))


SIZES = np.geomspace(1e7, 1e9, 9)


@pytest.mark.parametrize(
    ("centre", "curvature", "noise", "expected"),
    [
        (1e8, 0.1, 1e-4, set()),
        (2.5e9, 0.1, 1e-4, {"edge minimum"}),
        (1.6e7, 0.1, 1e-4, {"off-centre"}),
        (1e8, 0.001, 0.01, {"weak curvature"}),
        (1e8, -0.1, 0.0, {"weak curvature", "edge minimum"}),
    ],
)
def test_budgets(tmp_path, centre, curvature, noise, expected):
    rows = budget(1e19, SIZES, parabola(SIZES, centre, noise, curvature))
    rows += budget(1e20, SIZES, parabola(SIZES, 1e8, 1e-4) - 0.5)
    runs = read(tmp_path, ",flops", rows)
    assert {label.label for label in label_budgets(runs.table, "line")} == expected
    assert all("budget 1.000e19" in label.text for label in runs.labels if "budget" in label.text)


def test_a_cell_that_turns_a_budget_upside_down_is_named(tmp_path):
    """One budget of a published sweep: four sizes, the third at too high a learning rate for its batch."""
    sizes, losses = [4601984, 11622272, 28081408, 49520896], [1.5377929, 1.5102867, 1.6627489, 1.5365905]
    tokens = [3.0115e9, 1.3894e9, 6.448e8, 4.0999e8]
    rows = [f"{n},{d},{loss},3e17" for n, d, loss in zip(sizes, tokens, losses, strict=True)]
    runs = read(tmp_path, ",flops", rows)
    found = labels(runs)
    assert "open downward, so there is no optimum" in found["weak curvature"].text
    assert found["outlier"].rows == (4,)


def test_a_grid_of_n_and_d_has_no_budgets(tmp_path):
    assert label_budgets(read(tmp_path, "", grid_rows()).table, "line") == []


def test_a_sweep_with_diverged_and_unfinished_cells_keeps_and_lists_them(tmp_path):
    """A published isoFLOP suite: the top budgets hold cells that diverged or are still running."""
    rows = []
    for c, d_best in ((1e18, 2.84e9), (3e18, 5.08e9), (1e19, 9.90e9)):
        sizes = c / (6 * d_best) * np.geomspace(0.25, 4, 5)
        rows += [f"{row},done" for row in budget(c, sizes, parabola(sizes, c / (6 * d_best)))]
    rows += ["1e9,5e9,,3e19,diverged", "5e8,1e10,,3e19,diverged", "2e9,2.5e9,3.9,3e19,running"]
    runs = read(tmp_path, ",flops,status", rows)
    assert len(runs) == 15 and runs.summary() == "18 rows, 2 diverged and 1 unfinished left out (lines 17, 18, 19)"
    assert [(e.row, e.reason) for e in runs.excluded] == [
        (17, "status diverged"),
        (18, "status diverged"),
        (19, "status running"),
    ]
    assert runs.left_out["row"].tolist() == [17, 18, 19]


# ---------------------------------------------------------------------------------------------------------- studies


@pytest.mark.parametrize("column", ["tokenizer", "eval_set", "dataset", "version", "metric"])
def test_mixed_studies_warn_on_reading_and_stop_before_a_fit(tmp_path, column):
    values = ("bpb", "nats") if column == "metric" else ("one", "two")
    rows = grid_rows(f",{values[0]}") + grid_rows(f",{values[1]}", sizes=(2e7, 2e8))
    runs = read(tmp_path, f",{column}", rows)
    assert "mixed" in labels(runs)
    with pytest.raises(InputError) as caught:
        require_one_study(runs)
    message = str(caught.value)
    assert f'several studies, "{column}" takes 2 values' in message
    assert (
        f'--group-by "{column}"' in message
        and f'--pool "{column}"' in message
        and f'--where "{column} == ..' in message
    )
    require_one_study(runs, group_by=column)
    require_one_study(runs, pool=[column])
    require_one_study(read(tmp_path, f",{column}", rows[:12]))


def test_the_same_points_under_each_value_of_a_column_are_several_studies(tmp_path):
    rows = grid_rows(",raw") + grid_rows(",exp")
    runs = read(tmp_path, ",condition", rows)
    with pytest.raises(InputError, match='several studies, "condition"'):
        require_one_study(runs)
    require_one_study(runs, group_by="condition")
    require_one_study(read(tmp_path, ",seed", [r.replace("raw", "0").replace("exp", "1") for r in rows]))


def test_a_group_that_is_itself_mixed_is_refused(tmp_path):
    rows = grid_rows(",a,x") + grid_rows(",a,y", sizes=(2e7,)) + grid_rows(",b,x", sizes=(5e7,))
    runs = read(tmp_path, ",dataset,tokenizer", rows)
    with pytest.raises(InputError, match='"tokenizer"'):
        require_one_study(runs, group_by="dataset")


def test_repeated_cells_name_what_was_swept(tmp_path):
    rows = grid_rows(",0.1") + grid_rows(",0.2")
    text = labels(read(tmp_path, ",lr", rows))["repeated"].text
    assert "12 cells hold several runs that differ in lr" in text and "--best-of lr" in text


def test_files_that_are_given_together_and_seeds_are_no_studies(tmp_path):
    for k in range(2):
        write_csv(tmp_path, "\n".join(["params,tokens,loss,seed", *grid_rows(f",s{k}")]), f"seed{k}.csv")
    require_one_study(read_runs(str(tmp_path)))
