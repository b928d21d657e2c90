"""What docs/method.md derives beyond the optimum itself: price, frontier and flatness, against finite differences."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.laws import ChinchillaLaw, published_law

laws = st.builds(
    ChinchillaLaw,
    E=st.floats(0.1, 3),
    A=st.floats(1, 3000),
    B=st.floats(1, 3000),
    alpha=st.floats(0.1, 0.9),
    beta=st.floats(0.1, 0.9),
)


def best_loss(law, C):
    N = law.N_opt(C)
    return law.loss(N, C / (6 * N))


@given(laws, st.floats(15, 27))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_price_frontier_and_flatness(law, log_C):
    C = 10**log_C
    N, D = law.N_opt(C), law.D_opt(C)
    reducible = best_loss(law, C) - law.E
    a, b = law.alpha, law.beta
    parts = law.A / N**a, law.B / D**b
    assert parts == pytest.approx((sum(parts) * b / (a + b), sum(parts) * a / (a + b)), rel=1e-9)
    G = (a * law.A / (b * law.B)) ** (1 / (a + b))
    K = law.A * G**-a * (a + b) / b
    assert sum(parts) == pytest.approx(K * (C / 6) ** (-a * b / (a + b)), rel=1e-9)
    assert reducible == pytest.approx(sum(parts), rel=1e-6, abs=1e-12)
    step = 1e-3
    log_slope = math.log(_reducible(law, C * (1 + step)) / _reducible(law, C / (1 + step))) / (2 * math.log1p(step))
    assert -log_slope * sum(parts) / C == pytest.approx(a * parts[0] / C, rel=1e-6)  # the multiplier

    def along(x):  # reducible loss at N* e^x on the budget
        return parts[0] * math.exp(-a * x) + parts[1] * math.exp(b * x)

    curvature = (along(step) - 2 * along(0) + along(-step)) / step**2
    assert curvature == pytest.approx(sum(parts) * a * b, rel=1e-4)


def _reducible(law, C):
    N, D = law.N_opt(C), law.D_opt(C)
    return law.A / N**law.alpha + law.B / D**law.beta


def test_half_the_optimal_size_costs_five_thousandths_of_a_nat():
    law, C = published_law("besiroglu2024").law, 5.76e23
    N = law.N_opt(C)
    cost = law.loss(N / 2, C / (3 * N)) - best_loss(law, C)
    assert cost == pytest.approx(0.005, abs=5e-4)
    quadratic = 0.5 * (best_loss(law, C) - law.E) * law.alpha * law.beta * math.log(2) ** 2
    assert cost == pytest.approx(quadratic, rel=0.05)
