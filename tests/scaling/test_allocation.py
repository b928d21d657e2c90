"""The best split: published answers, closed form against numeric, first-order conditions."""

import json
import math
import random

import pytest

from scaling.allocation import allocate
from scaling.allocation.building import shape_flops_per_token
from scaling.allocation.constraints import Constraints
from scaling.allocation.cost import Cost, Family
from scaling.allocation.plan import make_family
from scaling.allocation.reach import cheapest_params, numeric_cheapest_params
from scaling.allocation.solver import solve
from scaling.allocation.spend import numeric_params, optimal_tokens_for
from scaling.allocation.surface import Surface
from scaling.errors import AllocationError, InputError, LawError
from scaling.fit_file import encode_draws
from scaling.laws import (
    PUBLISHED,
    ChinchillaLaw,
    ComputeLaw,
    InteractionLaw,
    KaplanLaw,
    ParameterLaw,
    TiedLaw,
    TokenLaw,
    law_to_dict,
)
from scaling.shapes import ShapeRequest

EPOCH_ROWS = [  # C, N*, D*, D/N under the constants of Besiroglu et al. 2024
    (1e18, 80.53e6, 2.0696e9, 25.7),
    (1e19, 0.2622e9, 6.357e9, 24.2),
    (1e20, 0.8535e9, 19.53e9, 22.9),
    (1e21, 2.778e9, 59.99e9, 21.6),
    (5.76e23, 72.25e9, 1328.7e9, 18.4),
    (1e24, 95.86e9, 1738.6e9, 18.1),
    (3.8e25, 618.7e9, 10.24e12, 16.5),
]
HOFFMANN_TABLE = [  # N of its table A3, FLOP by Approach 3
    *((0.4e9, 2.21e19), (1e9, 1.62e20), (10e9, 2.46e22), (67e9, 1.71e24), (175e9, 1.26e25)),
    *((280e9, 3.52e25), (520e9, 1.36e26), (1e12, 5.65e26), (10e12, 8.55e28)),
]
SARDANA = ChinchillaLaw(E=1.69, A=406.4, B=410.7, alpha=0.336, beta=0.283)


def random_law(rng: random.Random) -> ChinchillaLaw:
    """A law whose exponents and scales span what has been fitted anywhere."""
    alpha, beta = rng.uniform(0.15, 0.6), rng.uniform(0.15, 0.6)
    return ChinchillaLaw(rng.uniform(0, 3), 10 ** rng.uniform(1, 3.5), 10 ** rng.uniform(1, 4), alpha, beta)


def slope_along_budget(law, N: float, D: float) -> float:
    """dL/dlog N along 6ND = C, relative to its parts."""
    in_N, in_D = law.alpha * law.A / N**law.alpha, law.beta * law.B / D**law.beta
    return (in_D - in_N) / in_N


# --- published answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flops", "params", "tokens", "ratio"), EPOCH_ROWS)
def test_besiroglu_is_the_default_and_gives_its_answers(flops, params, tokens, ratio):
    answer = allocate(flops)
    assert answer.law.name == "besiroglu2024"
    assert answer.params == pytest.approx(params, rel=1e-3)
    assert answer.tokens == pytest.approx(tokens, rel=1e-3)
    assert answer.tokens_per_param == pytest.approx(ratio, abs=0.06)
    assert answer.flops == pytest.approx(flops, rel=1e-12) and answer.closed_form


def test_hoffmann_as_printed():
    answer = allocate(1e21, law="hoffmann2022-rounded")
    assert answer.params == pytest.approx(1.824e9, rel=5e-4)
    assert answer.tokens == pytest.approx(9.136e10, rel=5e-4)


@pytest.mark.parametrize(("params", "flops"), HOFFMANN_TABLE)
def test_the_unrounded_constants_reproduce_table_a3(params, flops):
    assert allocate(flops, law="hoffmann2022").params == pytest.approx(params, rel=0.0735)


def test_the_printed_constants_do_not_and_the_output_says_so():
    rounded, exact = (allocate(2.21e19, law=name) for name in ("hoffmann2022-rounded", "hoffmann2022"))
    assert (rounded.params, rounded.tokens) == (pytest.approx(326e6, rel=2e-3), pytest.approx(11.3e9, rel=2e-3))
    assert (exact.params, exact.tokens) == (pytest.approx(389e6, rel=2e-3), pytest.approx(9.47e9, rel=2e-3))
    assert any("389" in w and "rounding alone moves N by -16%" in w for w in rounded.warnings)
    misses = [1 - allocate(C, law="hoffmann2022-rounded").params / N for N, C in HOFFMANN_TABLE]
    assert 0.17 < min(misses) and max(misses) < 0.31


def test_rounding_moves_the_ratio_at_gopher_s_budget():
    assert allocate(5.76e23, law="hoffmann2022-rounded").tokens_per_param == pytest.approx(92.7, abs=0.1)
    assert allocate(5.76e23, law="hoffmann2022").tokens_per_param == pytest.approx(58.9, abs=0.1)


# --- closed form, numeric, first order --------------------------------------------------------------------------------


def test_closed_form_and_bisection_agree_on_a_thousand_laws():
    rng, checked = random.Random(0), 0
    while checked < 1000:
        law, C = random_law(rng), 10 ** rng.uniform(17, 27)
        N, D = law.N_opt(C), law.D_opt(C)
        if not (N > 1 and D > 1):
            continue
        checked += 1
        surface = Surface(law)
        assert numeric_params(surface, Cost(), C) == pytest.approx(N, rel=1e-9)
        assert optimal_tokens_for(surface, Cost(), N) == pytest.approx(D, rel=1e-9)
        loss = law.loss(N, D)
        cheapest = cheapest_params(surface, Cost(), loss)
        assert numeric_cheapest_params(surface, Cost(), loss) == pytest.approx(cheapest, rel=1e-9)


def test_the_slope_along_the_budget_is_zero_at_every_answer():
    rng = random.Random(1)
    for _ in range(200):
        law, C = random_law(rng), 10 ** rng.uniform(18, 26)
        try:
            answer = allocate(C, law=law)
        except AllocationError:  # an optimum below one parameter or token
            assert law.N_opt(C) < 1 or law.D_opt(C) < 1
            continue
        assert abs(slope_along_budget(law, answer.params, answer.tokens)) < 1e-10


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_slope_is_zero_for_every_published_law(name):
    answer = allocate(3e22, law=name)
    assert abs(slope_along_budget(answer.law.law, answer.params, answer.tokens)) < 1e-10


class Interaction:
    """A form that the solver has never seen: E + (A/N^a + B/D^b)^c, whose optimum is that of its inside."""

    form, equation = "interaction", "L = E + (A/N^alpha + B/D^beta)^c"

    def loss(self, N, D):
        return 1.7 + (400 / N**0.34 + 410 / D**0.28) ** 0.8

    def constants(self):
        return {"E": 1.7}


def test_any_law_form_is_solved_numerically():
    inside = ChinchillaLaw(E=0, A=400, B=410, alpha=0.34, beta=0.28)
    answer = allocate(1e22, law=Interaction())
    assert not answer.closed_form
    assert answer.params == pytest.approx(inside.N_opt(1e22), rel=1e-9)
    reached = allocate(law=Interaction(), target_loss=answer.loss)
    assert reached.flops == pytest.approx(1e22, rel=1e-7)


def test_an_optimum_below_one_parameter_is_refused():
    with pytest.raises(AllocationError, match="less than one"):
        allocate(2.0)


# --- what the answer carries ------------------------------------------------------------------------------------------


def test_the_lagrange_multiplier_is_the_slope_of_the_frontier():
    at = allocate(1e22)
    step = 1e-4
    slope = (allocate(1e22 * (1 - step)).loss - allocate(1e22 * (1 + step)).loss) / (2 * step * 1e22)
    assert at.marginal.multiplier == pytest.approx(slope, rel=1e-5)
    assert at.marginal.loss_per_doubling == pytest.approx(at.loss - allocate(2e22).loss, rel=1e-12)


def test_the_near_optimal_ranges_are_exact_at_their_ends():
    answer = allocate(1e22)
    law = answer.law.law
    for near in answer.near_optimal:
        for N, D in zip(near.params, near.tokens, strict=True):
            if near.kind == "loss":
                assert law.loss(N, D) == pytest.approx(answer.loss * (1 + near.within), rel=1e-10)
                assert 6 * N * D == pytest.approx(1e22, rel=1e-12)
            else:
                assert law.loss(N, D) == pytest.approx(answer.loss, rel=1e-12)
                assert 6 * N * D == pytest.approx(1e22 * (1 + near.within), rel=1e-9)
        assert near.params[0] < answer.params < near.params[1]
    assert [(n.kind, n.within) for n in answer.near_optimal] == [
        ("loss", 0.001),
        ("loss", 0.01),
        ("compute", 0.01),
        ("compute", 0.1),
    ]


def test_extrapolation_is_measured_from_the_nearer_end():
    assert allocate(1.3e23).extrapolation_factor == pytest.approx(10)
    assert allocate(1e21).extrapolation_factor == 1.0
    assert allocate(2e17).extrapolation_factor == pytest.approx(10)
    assert any("extrapolation" in w for w in allocate(1e26).warnings)
    assert allocate(1e21, law=ChinchillaLaw(1.7, 400, 410, 0.34, 0.28)).extrapolation_factor is None


def test_published_constants_say_why_they_have_no_interval():
    answer = allocate(1e21, law="hoffmann2022")
    assert answer.intervals is None
    assert any("without joint draws" in w for w in answer.warnings)


# --- FLOP conventions -------------------------------------------------------------------------------------------------


def concrete(d: int, layers: int):
    return ShapeRequest(vocab_size=32_000, context=2048).build(d, layers, 64)


@pytest.mark.parametrize("convention", ["6nd", "kaplan", "6nd+attention", "exact"])
@pytest.mark.parametrize(("d", "layers"), [(512, 8), (2048, 24), (8192, 80)])
def test_the_family_counts_as_accounting_does(convention, d, layers):
    from scaling.accounting import count_parameters

    shape = concrete(d, layers)
    family = Family(32_000, 2048, aspect=d / layers, learned_positions=True)
    total = count_parameters(shape).total
    assert family.width(float(total)) == pytest.approx(d, rel=1e-4)  # the final norm is per layer in the family
    counted = Cost(convention, family).per_token(float(total))
    assert counted == pytest.approx(shape_flops_per_token(shape, convention), rel=1e-4)


@pytest.mark.parametrize("convention", ["kaplan", "6nd+attention", "exact"])
def test_the_exponent_of_the_cost_is_its_slope(convention):
    cost = Cost(convention, make_family(ShapeRequest()))
    for N in (1e7, 1e9, 1e11):
        slope = (math.log(cost.per_token(N * 1.0001)) - math.log(cost.per_token(N / 1.0001))) / (2 * math.log(1.0001))
        assert cost.exponent(N) == pytest.approx(slope, rel=1e-6)


def test_counting_without_embeddings_stretches_the_budget():
    plain, kaplan = allocate(1e19), allocate(1e19, flops_convention="kaplan")
    assert 6 * kaplan.params * kaplan.tokens > 1.2e19 and kaplan.loss < plain.loss
    assert kaplan.flops == pytest.approx(1e19, rel=1e-12) and "non_embedding" in kaplan.convention


def test_attention_is_counted_where_it_matters():
    short, long = allocate(1e22, context=2048), allocate(1e22, context=32_768)
    assert not short.attention["counted"] and short.attention["share_of_6N"] < 0.1
    assert short.params == allocate(1e22).params
    assert long.attention["counted"] and long.attention["share_of_6N"] > 0.1
    assert any("Attention at context 32,768" in w for w in long.warnings)
    assert 6 * long.params * long.tokens < 1e22 * 0.9
    assert long.flops == pytest.approx(1e22, rel=1e-12)


def test_an_unknown_convention_names_the_known():
    with pytest.raises(AllocationError, match='"8nd".*6nd, kaplan'):
        allocate(1e21, flops_convention="8nd")


# --- inference and limited data ---------------------------------------------------------------------------------------


def test_sardana_s_example():
    answer = allocate(law=SARDANA, reference="13B", inference_tokens="2T")
    found = answer.inference
    assert answer.params == pytest.approx(6.97e9, rel=1e-3)
    assert answer.tokens == pytest.approx(1.248e12, rel=1e-3)
    assert found["lifetime_flops"] == pytest.approx(8.005e22, rel=1e-3)
    assert found["training_only"]["lifetime_flops"] == pytest.approx(9.697e22, rel=1e-3)
    assert found["saved_flops"] == pytest.approx(1.69e22, rel=2e-3)
    assert found["saved_share"] == pytest.approx(0.174, abs=6e-4)
    assert found["constants"]["alpha"] == 0.336


@pytest.mark.parametrize(
    ("law", "params", "saved"),
    [("hoffmann2022-rounded", 8.02e9, 0.101), ("hoffmann2022", 7.12e9, 0.163), ("besiroglu2024", 6.10e9, 0.290)],
)
def test_the_saving_depends_on_the_constants(law, params, saved):
    answer = allocate(law=law, reference="13B", inference_tokens="2T")
    assert answer.params == pytest.approx(params, rel=2e-3)
    assert answer.inference["saved_share"] == pytest.approx(saved, abs=1e-3)


def test_a_larger_reference_served_more():
    answer = allocate(law=SARDANA, reference="30B", inference_tokens="10T")
    assert answer.params == pytest.approx(13.6e9, rel=3e-3)
    assert answer.tokens / answer.reference["tokens"] == pytest.approx(2.84, abs=0.01)
    assert answer.inference["saved_share"] == pytest.approx(0.280, abs=1e-3)


def test_a_lifetime_budget_is_the_dual_of_the_same_loss():
    by_loss = allocate(law=SARDANA, reference="13B", inference_tokens="2T")
    by_budget = allocate(by_loss.inference["lifetime_flops"], law=SARDANA, inference_tokens="2T")
    assert by_budget.params == pytest.approx(by_loss.params, rel=1e-8)
    assert by_budget.loss == pytest.approx(by_loss.loss, rel=1e-12)


def test_muennighoff_s_example():
    answer = allocate(1e22, law="muennighoff2023", unique_tokens="25B")
    assert answer.params == pytest.approx(7.027e9, rel=2e-4)
    assert answer.tokens == pytest.approx(2.3718e11, rel=2e-4)
    assert answer.data["epochs"] == pytest.approx(9.49, abs=5e-3)
    assert answer.loss == pytest.approx(2.222129, abs=1e-6)
    assert "need not match observed" in answer.data["note"]


@pytest.mark.parametrize(
    ("params", "tokens", "loss"), [(6.34e9, 242e9, 2.2256440889984477), (8.67e9, 178e9, 2.2269634075087867)]
)
def test_losses_of_the_datablations_readme(params, tokens, loss):
    answer = allocate(law="muennighoff2023", params=params, tokens=tokens, unique_tokens=25e9)
    assert answer.loss == pytest.approx(loss, rel=1e-12)


def test_the_solver_s_repeats_are_the_law_s():
    law = PUBLISHED["muennighoff2023"].law
    surface = Surface(law, 25e9)
    for N in (1e8, 3e9, 1e11, 1e13):
        for D in (1e9, 2.5e10, 2.6e10, 1e12):
            assert surface.loss(N, D) == pytest.approx(law.loss(N, D, 25e9), rel=1e-14)
            for exact, numeric in zip(surface.slopes(N, D), surface._differences(N, D), strict=True):
                if D != 2.5e10:  # a kink of the second kind, where a stencil mixes both sides
                    assert exact == pytest.approx(numeric, rel=2e-3, abs=1e-9)


def test_enough_distinct_tokens_give_the_plain_law():
    plain = allocate(1e22, law="muennighoff2023")
    for unique in (plain.tokens, 2 * plain.tokens):
        limited = allocate(1e22, law="muennighoff2023", unique_tokens=unique)
        assert limited.params == pytest.approx(plain.params, rel=1e-9)
        assert limited.loss == pytest.approx(plain.loss, rel=1e-12)
    assert plain.tokens_per_param == pytest.approx(19.61, abs=0.01)


def test_a_law_without_repeats_borrows_and_says_so():
    answer = allocate(1e22, unique_tokens=25e9)
    assert answer.data["epochs"] > 5
    assert any("borrowed from muennighoff2023" in w for w in answer.warnings)
    with pytest.raises(AllocationError, match="says nothing about repeats"):
        allocate(1e22, law=Interaction(), unique_tokens=25e9)


# --- which law --------------------------------------------------------------------------------------------------------


def write_fit(path, **changes):
    data = {"law": law_to_dict(PUBLISHED["besiroglu2024"].law), "status": "converged", "message": "why"} | changes
    path.write_text(json.dumps(data))
    return str(path)


def test_a_fit_is_read(tmp_path):
    answer = allocate(1e21, law=write_fit(tmp_path / "fit.json", inputs={"flops_range": [1e18, 1e19]}))
    assert answer.params == pytest.approx(allocate(1e21).params)
    assert answer.extrapolation_factor == pytest.approx(100)
    assert answer.law.status == "converged"


@pytest.mark.parametrize(
    ("status", "words"), [("at_bound", "AT A BOUND"), ("not_converged", "NOT CONVERGED"), ("odd", "odd")]
)
def test_a_fit_that_did_not_converge_is_loud(tmp_path, status, words):
    answer = allocate(1e21, law=write_fit(tmp_path / "fit.json", status=status))
    assert words in answer.warnings[0] and "Do not spend" in answer.warnings[0]


def test_an_unidentifiable_fit_is_refused(tmp_path):
    with pytest.raises(LawError, match="unidentifiable"):
        allocate(1e21, law=write_fit(tmp_path / "fit.json", status="unidentifiable"))


def test_a_missing_constant_is_never_filled_in(tmp_path):
    law = law_to_dict(PUBLISHED["besiroglu2024"].law)
    del law["beta"]
    with pytest.raises(LawError, match="fit.json.*beta missing"):
        allocate(1e21, law=write_fit(tmp_path / "fit.json", law=law))


def test_an_unknown_law_names_the_known():
    with pytest.raises(LawError, match='unknown law "chinchila".*besiroglu2024.*hoffmann2022'):
        allocate(1e21, law="chinchila")


def test_a_file_that_is_not_there_and_a_folder(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        allocate(1e21, law=str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="is a folder"):
        allocate(1e21, law=str(tmp_path))


def test_draws_that_do_not_belong_to_the_law_are_refused(tmp_path):
    draws = encode_draws(["E", "gamma"], [[1.8, 0.3], [1.9, 0.2]])
    with pytest.raises(LawError, match="draws of gamma"):
        allocate(1e21, law=write_fit(tmp_path / "fit.json", draws=draws))


@pytest.mark.parametrize("budget", [0, -1e21, math.inf, math.nan, "abc", "", "1e999"])
def test_a_budget_that_is_none(budget):
    with pytest.raises(InputError, match="budget"):
        allocate(budget)


def test_nothing_to_go_by():
    with pytest.raises(AllocationError, match="give a budget"):
        allocate()


def test_solve_is_pure():
    surface, cost = Surface(PUBLISHED["besiroglu2024"].law), Cost()
    assert solve(surface, cost, 1e21, Constraints()) == solve(surface, cost, 1e21, Constraints())


# --- other forms ------------------------------------------------------------------------------------------------------

TIED = TiedLaw(E=1.7, A=400, B=1500, alpha=0.35)
KAPLAN = KaplanLaw(N_c=8.8e13, D_c=5.4e13, alpha_N=0.076, alpha_D=0.095)
INTERACTION = InteractionLaw(E=1.7, A=400, B=1500, G=3e4, alpha=0.34, beta=0.36)


@pytest.mark.parametrize("law", [TIED, KAPLAN])
def test_forms_with_a_formula_of_their_own_agree_with_it(law):
    assert allocate(1e21, law=law).params == pytest.approx(law.N_opt(1e21), rel=1e-9)


@pytest.mark.parametrize("law", [TIED, KAPLAN, INTERACTION])
def test_every_form_is_stationary_and_its_dual_agrees(law):
    answer = allocate(1e21, law=law)
    N, D = answer.params, answer.tokens
    for factor in (0.99, 1.01):
        assert law.loss(N * factor, D / factor) > answer.loss
    assert allocate(law=law, target_loss=answer.loss).flops == pytest.approx(1e21, rel=1e-7)


def test_a_tied_fit_with_draws_has_intervals(tmp_path):
    rows = [[1.7, 400 * f, 1500, 0.35] for f in (0.9, 1.0, 1.1)]
    fit = {"law": law_to_dict(TIED), "draws": encode_draws(["E", "A", "B", "alpha"], rows)}
    answer = allocate(1e21, law=write_fit(tmp_path / "fit.json", **fit))
    low, high = answer.intervals["params"]
    assert low < TIED.N_opt(1e21) < high


@pytest.mark.parametrize("law", [ParameterLaw(1.7, 400, 0.34), TokenLaw(1.7, 410, 0.28), ComputeLaw(1.7, 1e3, 0.15)])
def test_a_law_of_one_variable_cannot_split_a_budget(law):
    with pytest.raises(AllocationError, match="does not say how to split"):
        allocate(1e21, law=law)
