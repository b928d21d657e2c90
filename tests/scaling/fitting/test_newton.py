"""The solver's parts: the two ways to solve a few small systems agree, and a step in phi is Newton's."""

import numpy as np
import pytest

from scaling.fitting.coordinates import Centred
from scaling.fitting.newton import solve_few, solve_ldl


def test_few_rows_and_many_are_solved_alike():
    rng = np.random.default_rng(0)
    J, g = rng.normal(size=(9, 5, 7)), rng.normal(size=(5, 7))
    H, scale, damping = np.einsum("kir,kjr->ijr", J, J), rng.uniform(1, 2, (5, 7)), rng.uniform(0, 1, 7)
    few, many = solve_few(H, g, scale, damping), solve_ldl(H, g, scale, damping, np.ones((5, 7), bool))
    np.testing.assert_allclose(few, many, rtol=1e-9)
    H[0, 0, 3] = -1.0
    assert solve_few(H, g, scale, damping) is None


def test_gradient_and_hessian_in_phi_are_derivatives_along_the_move():
    """Of a quadratic in theta, along theta(phi): differences of the moved value against the pulled derivatives."""
    rng = np.random.default_rng(1)
    theta, held = np.array([[0.5, -0.4, -0.2, 0.35, 0.3]]), np.zeros((5, 1), bool)
    b, root = rng.normal(size=5), rng.normal(size=(5, 5))
    C = root @ root.T

    def value(step):
        moved = Centred().move(theta, step[None], held)[0]
        return b @ moved + 0.5 * moved @ C @ moved

    g, H, _ = Centred().pull(theta, (b + C @ theta[0])[:, None], C[:, :, None], np.ones((5, 1)), held)
    h, unit = 1e-4, np.eye(5)
    for j in range(5):
        assert (value(h * unit[j]) - value(-h * unit[j])) / (2 * h) == pytest.approx(g[j, 0], rel=1e-5, abs=1e-5)
        for k in range(5):
            corners = [value(h * (s * unit[j] + t * unit[k])) * s * t for s in (1, -1) for t in (1, -1)]
            assert sum(corners) / (4 * h * h) == pytest.approx(H[j, k, 0], rel=1e-4, abs=1e-4)
