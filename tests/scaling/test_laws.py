"""The forms of the law and the published constants."""

import math
from dataclasses import fields

import numpy as np
import pytest

from scaling.errors import LawError
from scaling.laws import FORMS, PUBLISHED, ChinchillaLaw, law_from_dict, law_to_dict, published_law


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_laws_carry_their_source_and_round_trip(name):
    entry = published_law(name)
    assert entry.source and entry.description and law_from_dict(law_to_dict(entry.law)) == entry.law


def test_unrounded_hoffmann_is_the_paper_s_source():
    law = published_law("hoffmann2022").law
    assert (math.log(law.A), math.log(law.B), math.log(law.E)) == pytest.approx((6.0073404, 6.0179186, 0.5267228))
    assert law.N_exponent == pytest.approx(0.4565, abs=5e-5)


@pytest.mark.parametrize("C, N, D", [(1e18, 80.53e6, 2.0696e9), (1e21, 2.778e9, 59.99e9), (5.76e23, 72.25e9, 1328.7e9)])
def test_best_split_of_the_default_law(C, N, D):
    law = published_law("besiroglu2024").law
    assert (law.N_opt(C), law.D_opt(C)) == pytest.approx((N, D), rel=5e-4)


def test_repeated_data_values_and_the_plain_limit():
    law = published_law("muennighoff2023").law
    assert law.loss(6.34e9, 242e9, 25e9) == pytest.approx(2.2256440889984477, rel=1e-14)
    assert law.loss(8.67e9, 178e9, 25e9) == pytest.approx(2.2269634075087867, rel=1e-14)
    assert law.loss(1e8, 1e10, 1e10) == pytest.approx(law.plain().loss(1e8, 1e10), rel=1e-12)


def test_arrays_and_numbers_give_the_same_loss():
    for name, form in FORMS.items():
        constants = {"E": 1.7, "A": 400.0, "B": 900.0, "G": 1e4, "alpha": 0.33, "beta": 0.35, "R_D_star": 15.0,
                     "R_N_star": 5.0, "N_c": 8.8e13, "D_c": 5.4e13, "alpha_N": 0.076, "alpha_D": 0.095, "K": 5e3,
                     "gamma": 0.15, "C_break": 1e20, "bend": 0.1, "width": 0.5}  # fmt: skip
        law = law_from_dict({"form": name, **{key: constants[key] for key in (field.name for field in fields(form))}})
        N, D = np.array([1e8, 1e9]), np.array([1e10, 1e11])
        np.testing.assert_allclose(law.loss(N, D), [law.loss(float(n), float(d)) for n, d in zip(N, D, strict=True)])
        assert law.equation.startswith("L =")


def test_kaplan_exponent_under_one_epoch_to_the_end():
    law = FORMS["kaplan"](8.8e13, 5.4e13, 0.076, 0.095)
    assert law.N_exponent + law.D_exponent == 1 and law.N_exponent == pytest.approx(0.5556, abs=1e-4)


@pytest.mark.parametrize("constants, message", [
    ({"E": 1.7, "A": 400, "B": 400, "alpha": 0.3}, "beta missing"),
    ({"E": 1.7, "A": -1, "B": 400, "alpha": 0.3, "beta": 0.3}, "A = -1 must be above zero"),
    ({"E": float("nan"), "A": 1, "B": 400, "alpha": 0.3, "beta": 0.3}, "must be finite"),
    ({"form": "cubic"}, "Known forms: broken, chinchilla"),
    ({"E": True, "A": 1, "B": 1, "alpha": 1, "beta": 1}, "not a number"),
])  # fmt: skip
def test_impossible_laws_are_refused(constants, message):
    with pytest.raises(LawError, match=message):
        law_from_dict(constants)


def test_unknown_name_lists_the_known():
    with pytest.raises(LawError, match="besiroglu2024"):
        published_law("hofmann")


def test_laws_are_frozen():
    with pytest.raises(AttributeError):
        ChinchillaLaw(1, 1, 1, 1, 1).E = 2


def test_kaplans_law_by_name():
    """Kaplan et al. 2020: 0.076 and 8.8e13 non-embedding parameters, 0.095 and 5.4e13 tokens; joined, as each alone."""
    law = published_law("kaplan2020").law
    assert law.loss(1e9, 1e30) == pytest.approx((8.8e13 / 1e9) ** 0.076)
    assert law.loss(1e30, 1e10) == pytest.approx((5.4e13 / 1e10) ** 0.095)
    assert law.N_exponent == pytest.approx(0.095 / (0.076 + 0.095))


def test_sardanas_constants_by_name_are_those_of_its_example():
    law = published_law("sardana2024").law
    assert (law.alpha, law.beta, law.A, law.B, law.E) == (0.336, 0.283, 406.4, 410.7, 1.69)
    assert law.D_opt(6 * 13e9 * 576.5e9) == pytest.approx(576.5e9, rel=0.005)  # 13B trained compute-optimally
