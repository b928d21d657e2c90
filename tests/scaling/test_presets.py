"""Shapes from names and from config files: read right, or refused for a reason."""

import json

import pytest

from scaling.accounting import Shape, count_parameters
from scaling.errors import InputError, ScalingError
from scaling.presets import PRESETS, ff_width, preset, read_shape, shape_from_config, shape_to_dict

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def test_configs_of_known_types_count_as_published(tmp_path):
    assert count_parameters(shape_from_config(GPT2)).total == 124439808
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert count_parameters(read_shape(path)).total == 8030261248
    qwen = {**LLAMA, "model_type": "qwen2", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
            "num_key_value_heads": 64, "intermediate_size": 24576, "vocab_size": 152064}  # fmt: skip
    assert count_parameters(shape_from_config(qwen)).total == 72287920128


def test_tying_is_read_and_defaults_by_type():
    assert shape_from_config(GPT2).tied
    assert not shape_from_config({**GPT2, "tie_word_embeddings": False}).tied
    assert not shape_from_config(LLAMA).tied
    assert shape_from_config({**LLAMA, "tie_word_embeddings": True}).tied


def test_head_width_of_its_own():
    shape = shape_from_config({**LLAMA, "model_type": "gemma", "hidden_size": 3072, "num_attention_heads": 16,
                               "num_key_value_heads": 16, "head_dim": 256})  # fmt: skip
    assert shape.attention_width == 4096
    assert count_parameters(shape).attention == 32 * 4 * 3072 * 4096


@pytest.mark.parametrize("name", PRESETS)
def test_a_shape_survives_being_written_and_read(name):
    shape = preset(name).shape
    assert count_parameters(shape_from_config(shape_to_dict(shape))) == count_parameters(shape)
    assert shape_from_config({"shape": shape_to_dict(shape), "params": 1}) == shape_from_config(shape_to_dict(shape))


def test_expansion_factors_need_not_be_whole():
    assert ff_width(4096, 8 / 3) == 10923
    assert ff_width(8192, 3) == 24576
    assert ff_width(64, 3.5) == 224
    with pytest.raises(InputError, match="expansion = 0"):
        ff_width(64, 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**GPT2, "model_type": "mamba"}, 'model_type "mamba" is not known. Known: gpt2'),
        ({"hidden_size": 64}, 'model_type "None" is not known'),
        ({**LLAMA, "num_local_experts": 8}, "a mixture of 8 experts"),
        ({key: value for key, value in GPT2.items() if key != "n_layer"}, "num_hidden_layers or n_layer missing"),
        ({**GPT2, "n_embd": "wide"}, "d_model = 'wide' must be a whole number"),
        ({**LLAMA, "attention_bias": True}, "attention_bias without mlp_bias"),
        ({"d_model": 64, "n_layers": 2}, "n_heads, vocab_size, context missing"),
    ],
)
def test_a_config_that_would_be_a_guess_is_refused(config, message):
    with pytest.raises(InputError, match=message):
        shape_from_config(config)


def test_biases_of_a_config_are_read():
    assert shape_from_config({**LLAMA, "attention_bias": True, "mlp_bias": True}).biases == "all"


def test_bad_files_and_names_say_what_is_wrong(tmp_path):
    with pytest.raises(InputError, match='unknown preset "gpt5". Known presets: lecture, gpt2'):
        preset("gpt5")
    for path, content in ((tmp_path / "missing.json", None), (tmp_path / "list.json", "[1]"), (tmp_path, None)):
        if content is not None:
            path.write_text(content)
        with pytest.raises(ScalingError, match=path.name):
            read_shape(path)


def test_the_lectures_demo_is_the_lectures_shape():
    assert preset("lecture").shape == Shape(d_model=64, n_layers=2, n_heads=4, vocab_size=256, context=128)
