"""Known models against a law: the table, the verdicts, models of one's own."""

import pytest

from scaling.allocation import allocate
from scaling.allocation.surface import Surface
from scaling.audit import (
    NamedModel,
    audit,
    justifying_inference,
    known_models,
    parse_model,
    read_models,
    select_models,
)
from scaling.errors import InputError, LawError
from scaling.laws import PUBLISHED

TABLE = {  # C, D/N, N*, D*, loss gap under the constants of Besiroglu et al. 2024
    "LaMDA": (1.38e23, 1.23, 34.7e9, 662e9, 0.025),
    "GPT-3": (3.15e23, 1.71, 53.0e9, 990e9, 0.016),
    "Jurassic-1": (3.20e23, 1.69, 53.5e9, 998e9, 0.016),
    "Gopher": (5.04e23, 1.07, 67.5e9, 1.25e12, 0.021),
    "MT-NLG": (8.59e23, 0.51, 88.7e9, 1.61e12, 0.031),
    "Chinchilla": (5.88e23, 20.0, 73.0e9, 1.34e12, 0.000),
    "PaLM": (2.53e24, 1.44, 154e9, 2.73e12, 0.012),
    "OPT": (1.89e23, 1.03, 40.8e9, 0.77e12, 0.027),
    "BLOOM": (3.87e23, 2.08, 58.9e9, 1.09e12, 0.013),
    "LLaMA 7B": (0.40e23, 149, 18.5e9, 0.36e12, 0.017),
    "LLaMA 13B": (0.78e23, 77, 25.9e9, 0.50e12, 0.007),
    "LLaMA 33B": (2.73e23, 43, 49.3e9, 0.92e12, 0.002),
    "LLaMA 65B": (5.48e23, 21.5, 70.4e9, 1.30e12, 0.000),
    "Llama 2 7B": (0.84e23, 286, 26.9e9, 0.52e12, 0.026),
    "Llama 2 70B": (8.4e23, 28.6, 87.7e9, 1.60e12, 0.0005),
    "Llama 3 8B": (7.2e23, 1875, 81e9, 1.48e12, 0.054),
    "Llama 3 70B": (6.3e24, 214, 246e9, 4.26e12, 0.010),
    "Llama 3.1 405B": (3.79e25, 38.5, 618e9, 10.2e12, 0.001),
}
UNDERTRAINED = {"GPT-3", "Gopher", "MT-NLG", "Jurassic-1", "LaMDA", "PaLM", "OPT", "BLOOM"}
BALANCED = {"Chinchilla", "LLaMA 33B", "LLaMA 65B", "Llama 2 70B", "Llama 3.1 405B"}


@pytest.fixture(scope="module")
def found():
    return {row.model.name: row for row in audit().models}


def test_every_model_of_the_table_is_there(found):
    assert set(found) == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_the_audit_table(found, name):
    C, ratio, params, tokens, gap = TABLE[name]
    row = found[name]
    assert row.flops == pytest.approx(C, rel=0.01)
    assert row.tokens_per_param == pytest.approx(ratio, rel=0.01)
    assert row.params_optimal == pytest.approx(params, rel=0.01)
    assert row.tokens_optimal == pytest.approx(tokens, rel=0.015)
    assert row.loss_gap == pytest.approx(gap, abs=6e-4)


def test_verdicts(found):
    verdicts = {name: row.verdict for name, row in found.items()}
    assert {name for name, verdict in verdicts.items() if verdict == "undertrained"} == UNDERTRAINED
    assert {name for name, verdict in verdicts.items() if verdict == "balanced"} == BALANCED
    rest = set(verdicts) - UNDERTRAINED - BALANCED
    assert all(verdicts[name] == "over-trained, as for inference" for name in rest)


def test_wasted_compute_is_what_the_same_loss_would_take(found):
    row = found["GPT-3"]
    assert row.flops / allocate(target_loss=row.loss).flops == pytest.approx(row.wasted_compute_factor, rel=1e-9)


def test_serving_so_much_would_make_the_split_the_cheapest(found):
    row = found["Llama 3 8B"]
    again = allocate(target_loss=row.loss, inference_tokens=row.inference_tokens)
    assert again.params == pytest.approx(8e9, rel=1e-6) and again.tokens == pytest.approx(15e12, rel=1e-6)
    surface = Surface(PUBLISHED["besiroglu2024"].law)
    assert justifying_inference(surface, 175e9, 300e9) is None


def test_gpt_3_is_no_optimum_and_says_which_law():
    (row,) = audit(select_models(["GPT-3"])).models
    text = row.sentence("besiroglu2024")
    assert "D/N 1.71" in text and "not an optimum: under besiroglu2024" in text
    assert (row.params_optimal, row.tokens_optimal) == (pytest.approx(53.0e9, rel=2e-3), pytest.approx(990e9, rel=2e-3))
    (rounded,) = audit(select_models(["GPT-3"]), law="hoffmann2022-rounded").models
    assert rounded.params_optimal == pytest.approx(24.5e9, rel=3e-3)
    assert rounded.tokens_optimal == pytest.approx(2.14e12, rel=3e-3)


def test_what_is_not_certain_is_marked_with_a_reason():
    doubtful = {model.name for model in known_models() if not model.certain}
    assert doubtful == {"LaMDA", "OPT", "BLOOM", "Llama 3 8B", "Llama 3 70B"}
    for model in known_models():
        assert model.source and model.date and (model.certain or model.note), model.name
    warnings = audit().warnings
    assert all(any(w.startswith(f"{name}: N or D is not certain") for w in warnings) for name in doubtful)
    assert any("extrapolations" in w for w in warnings)


def test_a_model_of_ones_own():
    (row,) = audit([parse_model("mine=70B,1.4T")]).models
    assert row.model == NamedModel("mine", 70e9, 1.4e12) and row.verdict == "balanced"


BAD_MODELS = ["mine", "mine=70B", "=70B,1T", "mine=70B,1T,3", "mine=x,1T", "mine=70B,0", "mine=-1,1T"]


@pytest.mark.parametrize("text", BAD_MODELS)
def test_a_model_that_cannot_be_read(text):
    with pytest.raises(InputError, match="mine|NAME=N,D"):
        parse_model(text)


def test_models_from_a_csv(tmp_path):
    path = tmp_path / "models.csv"
    path.write_text("Model,N,D,remark\nsmall,1B,20B,ours\nlarge,7e9,1.4e11,\n")
    assert [(m.name, m.params, m.tokens) for m in read_models(path)] == [("small", 1e9, 20e9), ("large", 7e9, 1.4e11)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column name .or model.; found nothing"),
        ("name,params\nx,1B\n", "no column tokens"),
        ("name,params,tokens\n", "no rows below the header"),
        ("name,params,tokens\nx,1B,many\n", "line 2: tokens: cannot read"),
        ("name,params,tokens\nx,1B,1T\ny,-1,1T\n", "line 3: params.*above zero"),
        ("name,params,tokens\n,1B,1T\n", "line 2: the name is empty"),
        ("name,params,tokens\nx,1B\n", "line 2: tokens"),
    ],
)
def test_a_csv_that_cannot_be_read(tmp_path, text, message):
    path = tmp_path / "models.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_models(path)


def test_a_csv_that_is_not_there_or_a_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_models(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_models(tmp_path)


def test_an_unknown_model_lists_the_known():
    with pytest.raises(InputError, match='unknown model "GPT-5".*Gopher.*--model'):
        select_models(["GPT-5"])
    assert [m.name for m in select_models(["llama 3"])] == ["Llama 3 8B", "Llama 3 70B", "Llama 3.1 405B"]


def test_an_empty_list_and_an_unknown_law():
    with pytest.raises(InputError, match="no models"):
        audit([])
    with pytest.raises(LawError, match="unknown law"):
        audit(law="nobody2030")
