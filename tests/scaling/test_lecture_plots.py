"""The lecture's pictures hold what they say: curves on their plateaus, parts that sum, marks where lines cross."""

import numpy as np
import pytest

from scaling.attention_cost import crossovers, default_lengths, layer_cost
from scaling.laws import published_law
from scaling.plots.demo import name_byte, temperature_figure
from scaling.plots.lecture import attention_cost_figure, bottlenecks_figure, plateaus_figure
from scaling.plots.style import save_figure
from scaling.presets import preset

LAW = published_law("besiroglu2024").law


@pytest.fixture(autouse=True)
def close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def test_each_curve_falls_onto_its_own_plateau():
    tokens = [1e9, 1e10, 1e11]
    (ax,) = plateaus_figure(LAW, tokens, params=(1e7, 1e15)).axes
    curves = [line for line in ax.lines if len(line.get_xdata()) > 2]
    flat = [line.get_ydata()[0] for line in ax.lines if len(line.get_xdata()) == 2]
    assert len(curves) == 3
    for curve, D in zip(curves, tokens, strict=True):
        plateau = LAW.E + LAW.B / D**LAW.beta
        assert plateau in flat
        assert (np.diff(curve.get_ydata()) < 0).all()
        assert 0 < curve.get_ydata()[-1] - plateau < 0.01
    assert LAW.E in flat


def test_the_three_bottlenecks_sum_to_the_loss_along_the_budget():
    C = 5.76e23
    (ax,) = bottlenecks_figure(LAW, C).axes
    outline = next(line for line in ax.lines if len(line.get_xdata()) > 10)
    N = outline.get_xdata()
    assert outline.get_ydata() == pytest.approx(LAW.loss(N, C / (6 * N)), rel=1e-12)
    assert len(ax.collections) == 3
    tops = [c.get_paths()[0].vertices[:, 1].max() for c in ax.collections]
    assert tops[0] == pytest.approx(LAW.E)
    dot = next(line for line in ax.lines if len(line.get_xdata()) == 1)
    assert dot.get_xdata()[0] == pytest.approx(LAW.N_opt(C))
    assert N[outline.get_ydata().argmin()] == pytest.approx(LAW.N_opt(C), rel=0.02)


def test_the_dots_stand_where_the_lines_cross():
    shape = preset("lecture").shape
    costs = [layer_cost(shape, n) for n in default_lengths(shape)]
    (ax,) = attention_cost_figure(costs, crossovers(shape)).axes
    single = [line for line in ax.lines if len(line.get_xdata()) == 1]
    dots = {round(float(line.get_xdata()[0])): float(line.get_ydata()[0]) for line in single}
    assert set(dots) == {64, 128, 256, 384}
    for n, height in dots.items():
        assert height == pytest.approx(layer_cost(shape, n).attention, rel=0.02)


def test_pictures_take_a_measurement_with_gaps_and_a_prompt_with_marks(tmp_path):
    shape, rng = preset("lecture").shape, np.random.default_rng(0)
    measured = {"tokens": [8, 16, 32], "attention": [1e-4, 2e-4, None], "fused": [1e-4] * 3, "linear": [2e-4] * 3,
                "recurrent": [3e-4] * 3, "crossover": 20.0}  # fmt: skip
    rows = [{"temperature": T, "entropy": 1.0, "p": rng.dirichlet(np.ones(256))} for T in (0.5, 1.0, 2.0)]
    figures = {
        "cost": attention_cost_figure([layer_cost(shape, n) for n in (8, 64, 512)], crossovers(shape), measured),
        "temperature": temperature_figure(rows, "$x^ and $\\frac _{"),  # no formula
    }
    for name, figure in figures.items():
        save_figure(figure, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_bytes_are_named_so_that_they_can_be_printed():
    assert [name_byte(b) for b in (10, 32, 9, 65, 0, 255)] == ["\\n", "␣", "\\t", "A", "00", "ff"]
