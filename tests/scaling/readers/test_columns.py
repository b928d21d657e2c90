"""Headers as people write them, and the refusal to choose between two."""

import pytest

from scaling.errors import InputError
from scaling.readers.columns import candidates, normalise, parse_mapping
from scaling.runs import read_runs


def roles(header):
    return {(c.role, c.exponent) for c in candidates(header)}


@pytest.mark.parametrize(
    ("header", "role", "exponent"),
    [
        ("N", "params", 0),
        ("params", "params", 0),
        ("n_params", "params", 0),
        ("parameters", "params", 0),
        ("Model Size", "params", 0),
        ("num_params", "params", 0),
        ("params_M", "params", 6),
        ("Params (B)", "params", 9),
        ("parameters in millions", "params", 6),
        ("numParams", "params", 0),
        ("parameter_count", "params", 0),
        ("#params", "params", 0),
        ("config.n_params", "params", 0),
        ("Training Tokens", "tokens", 0),
        ("D", "tokens", 0),
        ("tokens", "tokens", 0),
        ("training_tokens_B", "tokens", 9),
        ("throughput/total_tokens", "tokens", 0),
        ("Training FLOP", "flops", 0),
        ("C", "flops", 0),
        ("compute", "flops", 0),
        ("total_gflops", "flops", 9),
        ("throughput/total_gflops", "flops", 9),
        ("Compute (PFLOPs)", "flops", 15),
        ("C (1e18)", "flops", 18),
        ("loss", "loss", 0),
        ("val_loss", "loss", 0),
        ("eval/loss", "loss", 0),
        ("final_loss", "loss", 0),
        ("eval/paloma/macro_loss", "loss", 0),
        ("C4 Eval Loss", "loss", 0),
        ("metrics.val_loss", "loss", 0),
        ("L", "loss", 0),
        ("D (tokens)", "tokens", 0),
        ("Model size (parameters)", "params", 0),
        ("C (FLOPs)", "flops", 0),
        ("Loss (nats)", "loss", 0),
        ("Params [M]", "params", 6),
    ],
)
def test_knows_a_header(header, role, exponent):
    assert (role, exponent) in roles(header)


@pytest.mark.parametrize(
    "header",
    [
        "tokens_per_second",
        "d_model",
        "d_k",
        "n_layers",
        "l",
        "loss_std",
        "loss_c4_val_lo95",
        "z_loss",
        "loss_fn",
        "flops_per_token",
        "unique_tokens",
        "warmup_tokens",
        "batch_tokens",
        "num_workers",
        "loss_weight",
        "cc_mult",
        "size_t_shirt",
        "tflops",
        "GFLOPS",
    ],
)
def test_takes_no_other_column_for_a_role(header):
    assert not roles(header)


def test_pf_days_and_qualified_counts():
    (days,) = candidates("compute_pf_days")
    assert days.factor == 8.64e19
    assert {c.counts for h in ("N_no_emb", "n_params_nonemb", "Non_vocab_parameters") for c in candidates(h)} == {
        "non-embedding"
    }
    assert candidates("active_params")[0].counts == "active"


def test_normalise():
    assert [normalise(h) for h in ("Model Size", "numParams", "eval/loss", "config.N", " FLOPs ")] == [
        "model_size",
        "num_params",
        "eval_loss",
        "n",
        "flops",
    ]


def read(tmp_path, header, rows="1e6,1e8,3.5,4e6\n2e6,2e8,3.2,5e6\n", **options):
    path = tmp_path / "t.csv"
    path.write_text(header + "\n" + rows)
    return read_runs(str(path), **options)


@pytest.mark.parametrize(
    ("header", "options"),
    [
        ("N,D,loss,N_no_emb", ["params=N", "params=N_no_emb"]),
        ("params,tokens,train_loss,val_loss", ["loss=train_loss", "loss=val_loss"]),
        ("params,tokens,loss,val_loss", ["loss=loss", "loss=val_loss"]),
        ("N,D,loss,tokens_seen", ["tokens=tokens_seen", "tokens=D"]),
        ("params,compute,loss,training_flops", ["flops=compute", "flops=training_flops", "flops=6ND"]),
    ],
)
def test_two_candidates_stop_with_the_options_to_paste(tmp_path, header, options):
    with pytest.raises(InputError) as caught:
        read(tmp_path, header)
    for option in options:
        assert f'--map "{option}"' in str(caught.value)
    assert len(read(tmp_path, header, mapping=[options[-2] if "6ND" in options[-1] else options[-1]]))


def test_own_names_win_and_the_rivals_are_listed(tmp_path):
    runs = read(tmp_path, "n_params,n_tokens,loss,n_params_nonemb")
    assert runs.table["params"].tolist() == [1e6, 2e6]
    assert any('set aside: "n_params_nonemb"' in note for note in runs.notes)
    runs = read(tmp_path, "params,tokens,loss,loss_ptb")
    assert runs.table["loss"].tolist() == [3.5, 3.2] and any('"loss_ptb"' in note for note in runs.notes)


def test_columns_with_the_same_numbers_are_one(tmp_path):
    runs = read(tmp_path, "N,D,loss,eval_loss", "1e6,1e8,3.5,3.5\n2e6,2e8,3.2,3.2\n")
    assert any("the same numbers as" in note for note in runs.notes)


def test_mapping_by_hand_with_a_unit_and_by_computing(tmp_path):
    runs = read(
        tmp_path, "size x,D,loss,C", "1,1e8,3.5,9\n2,2e8,3.2,9\n", mapping={"params": "size x:M", "flops": "6ND"}
    )
    assert runs.table["params"].tolist() == [1e6, 2e6]
    assert runs.table["flops"].tolist() == [6e14, 2.4e15]
    assert any("in M (1 is 1M)" in note for note in runs.notes)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"params": "nope"}, 'no column "nope". Columns: params, tokens, loss, x'),
        (["params"], "write it as ROLE=COLUMN"),
        ({"parms": "x"}, 'unknown role "parms"'),
        (["loss=x", "loss=loss"], "loss is mapped twice"),
    ],
)
def test_wrong_mappings(tmp_path, mapping, message):
    with pytest.raises(InputError) as caught:
        read(tmp_path, "params,tokens,loss,x", mapping=mapping)
    assert message in str(caught.value)
    assert parse_mapping(None) == {}


def test_missing_roles_name_the_columns_and_the_option(tmp_path):
    with pytest.raises(InputError) as caught:
        read(tmp_path, "alpha,beta,gamma,delta")
    assert "no column for params, tokens, loss" in str(caught.value) and "alpha, beta, gamma, delta" in str(
        caught.value
    )
    with pytest.raises(InputError, match="--map tokens=COLUMN, or give the training compute"):
        read(tmp_path, "params,x,loss,y")


def test_derivations_are_named(tmp_path):
    cases = {
        "params,flops,loss,x": ("1e6,6e14,3.5,1\n", "tokens derived: D = C/(6N)", [1e6, 1e8, 6e14]),
        "tokens,flops,loss,x": ("1e8,6e14,3.5,1\n", "params derived: N = C/(6D)", [1e6, 1e8, 6e14]),
        "params,steps,loss,batch_tokens": ("1e6,100,3.5,1e6\n", 'tokens = "steps" x "batch_tokens"', [1e6, 1e8, 6e14]),
    }
    for header, (rows, note, expected) in cases.items():
        runs = read(tmp_path, header, rows)
        assert note in runs.notes
        assert runs.table[["params", "tokens", "flops"]].iloc[0].tolist() == pytest.approx(expected, rel=1e-15)


def test_small_sizes_ask_for_their_unit(tmp_path):
    runs = read(tmp_path, "N,D,loss,x", "0.07,1e9,3.5,1\n7,1e9,3.2,1\n")
    assert any("params run up to 7: if they are in millions or billions" in w for w in runs.warnings)


def test_non_embedding_counts_and_training_losses_are_named(tmp_path):
    runs = read(tmp_path, "N_no_emb,D,train_loss,x")
    assert any("non-embedding parameters" in w for w in runs.warnings)
    assert any("training loss, not a held-out one" in w for w in runs.warnings)


def test_a_lone_group_of_three_digits_in_a_loss_is_ambiguous(tmp_path):
    with pytest.raises(InputError, match=r'column "loss": "3,405" can be 3405 or 3\.405'):
        read(tmp_path, "params,tokens,loss,x", '1e6,1e8,"3,405",1\n')
    assert read(tmp_path, "params,tokens,loss,x", '1e6,1e8,"3,4059",1\n').table["loss"].tolist() == [3.4059]
    assert read(tmp_path, "params,tokens,loss,x", '"70,000",1e8,3.4,1\n').table["params"].tolist() == [70000]
