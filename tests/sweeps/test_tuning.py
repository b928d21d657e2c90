"""The learning-rate sweep: optimum, curvature, verdict, and that nothing missing is made up."""

import math
import sys
from pathlib import Path

import pytest

from scaling.accounting import Shape
from scaling.errors import SweepError
from sweeps.grid import parse_grid
from sweeps.recipe import Recipe, resolve
from sweeps.tune import tune, tuning_grid
from sweeps.tuning import analyse, tuning_recipes, tuning_shapes, tuning_table

sys.path.insert(0, str(Path(__file__).parent))
from text_for_tests import write_files  # noqa: E402

WIDTHS, TOKENS = (32, 64, 128), (512_000, 2_048_000)


def make_shape(d):
    return Shape(d_model=d, n_layers=2, n_heads=d // 32, vocab_size=256, context=128)


def sweep(optimum_of, *, curvature=0.03, lost=None, missing=None):
    """Configurations of a sweep, and losses from a parabola in log2 of the rate around `optimum_of(width, tokens)`."""
    configs, results = [], {}
    for recipe in tuning_recipes(Recipe(learning_rate=4e-3), count=7):
        for d in WIDTHS:
            for tokens in TOKENS:
                config = resolve(make_shape(d), tokens, corpus="python", corpus_hash="x", recipe=recipe)
                off = math.log2(recipe.learning_rate / optimum_of(d, tokens))
                loss = 2.0 + 10 / d + curvature * off**2 + 0.002 * off**3
                configs.append(config)
                if lost is not None and recipe.learning_rate >= lost:
                    results[config.run_id] = ("done", math.nan)
                elif missing is None or not math.isclose(recipe.learning_rate, missing):
                    results[config.run_id] = ("done", loss)
    return configs, results


def test_an_optimum_that_stays_transfers():
    transfer = analyse(*sweep(lambda d, tokens: 3.1e-3))
    assert transfer.transfers is True and "transfers: the optimum moves by at most 1.0" in transfer.message
    for optimum in transfer.optima:
        assert optimum.learning_rate == pytest.approx(3.1e-3, rel=0.05)
        assert optimum.cost_of_factor_two == pytest.approx(0.03, rel=0.1)
        assert optimum.loss == pytest.approx(2.0 + 10 / optimum.d_model, abs=1e-3)


def test_an_optimum_that_moves_twofold_does_not():
    transfer = analyse(*sweep(lambda d, tokens: 4e-3 * (32 / d) ** (0.6 if tokens == TOKENS[1] else 0.1)))
    assert transfer.transfers is False
    assert transfer.shifts[512_000] == pytest.approx(4**0.1, rel=0.05)
    assert transfer.shifts[2_048_000] == pytest.approx(4**0.6, rel=0.1)
    assert "does not transfer" in transfer.message and "D = 2.048M" in transfer.message


def test_nan_is_diverged_and_absent_is_missing():
    configs, results = sweep(lambda d, tokens: 4e-3, lost=0.016, missing=0.001)
    transfer = analyse(configs, results)
    assert [o.status for o in transfer.optima[0].outcomes] == ["done", "missing"] + ["done"] * 3 + ["diverged"] * 2
    assert transfer.transfers is True
    headers, rows = tuning_table(transfer)
    assert headers[2:9] == ["0.0005", "0.001", "0.002", "0.004", "0.008", "0.016", "0.032"]
    assert rows[0][3] == "missing" and rows[0][7:9] == ["diverged"] * 2
    assert [cell for cell in rows[0] if cell.endswith("*")] == [rows[0][5]]  # the minimum is marked


def test_an_optimum_just_below_divergence_is_found():
    transfer = analyse(*sweep(lambda d, tokens: 8e-3, lost=0.016))
    assert transfer.optima[0].learning_rate == pytest.approx(8e-3, rel=0.1)


@pytest.mark.parametrize(
    ("optimum", "lost", "reason"),
    [
        (2e-4, None, "the lowest rate, 0.0005, is the best; try lower ones"),
        (0.2, None, "the highest rate, 0.032, is the best; try higher ones"),
        (4e-3, 1e-3, "only 1 of 7 runs have a loss"),
    ],
)
def test_an_optimum_outside_the_rates_is_not_made_up(optimum, lost, reason):
    transfer = analyse(*sweep(lambda d, tokens: optimum, lost=lost))
    assert transfer.transfers is None and transfer.optima[0].learning_rate is None
    assert transfer.optima[0].reason == reason and reason in transfer.message
    assert tuning_table(transfer)[1][0][-2:] == ["not known", ""]


def test_losses_without_a_minimum_inside_are_refused():
    configs, results = sweep(lambda d, tokens: 4e-3, curvature=-0.03)
    assert analyse(configs, results).transfers is None


def test_widths_are_least_middle_and_largest():
    shapes = [make_shape(d) for d in (32, 64, 96, 128, 256)]
    assert [shape.d_model for shape in tuning_shapes(shapes)] == [32, 96, 256]
    assert {shape.n_layers for shape in tuning_shapes(shapes)} == {2}
    assert [shape.n_heads for shape in tuning_shapes(shapes)] == [2, 3, 8]
    with pytest.raises(SweepError, match="every size has d_model = 32"):
        tuning_shapes(shapes[:1])


def test_a_grid_is_cut_down_to_three_widths_and_two_token_counts():
    sizes = ", ".join(f"{{ d_model = {d}, n_layers = 2 }}" for d in (32, 64, 96, 128))
    grid = parse_grid(f'corpus = "python"\nsizes = [{sizes}]\ntokens = ["1M", "2M", "4M", "8M"]\nseeds = [3, 4]')
    cut = tuning_grid(grid)
    assert [shape.d_model for shape in cut.shapes] == [32, 64, 128]
    assert (cut.tokens, cut.seeds) == ((1e6, 4e6), (3,))
    budgets = parse_grid(f'corpus = "python"\nsizes = [{sizes}]\nbudgets = ["1e12", "1e13"]')
    assert len(tuning_grid(budgets).tokens) == 2 and tuning_grid(budgets).budgets == ()


@pytest.mark.slow
def test_tune_trains_what_is_missing_and_judges(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sizes = ", ".join(f"{{ d_model = {d}, n_layers = 1 }}" for d in (8, 16, 32))
    (tmp_path / "grid.toml").write_text(
        f'corpus = "text:{write_files(tmp_path / "texts")}"\nsizes = [{sizes}]\ntokens = [8192, 16384]\n'
        'context = 32\nbatch_tokens = 128\nwarmup_steps = 5\nlearning_rate = 1e-2\ndtype = "float32"\n'
        'attention = "explicit"\ndevice = "cpu"\n'
    )
    transfer, summary = tune(tmp_path / "grid.toml", tmp_path / "out", workers=1)
    assert (summary.done + summary.diverged, summary.failed, summary.missing) == (30, 0, 0)
    assert len(transfer.optima) == 6 and all(len(o.outcomes) == 5 for o in transfer.optima)
    again, second = tune(tmp_path / "grid.toml", tmp_path / "out", workers=1)
    assert again == transfer and second.seconds < 5
