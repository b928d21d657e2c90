"""Shapes by name, and from files: a Hugging Face-style config.json, or a shape as this toolkit writes it.

A config is read only for a model type whose biases, norms, MLP and positions are known here: a config.json does not
say how many matrices its MLP has, and a guess would be a plausible wrong number.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from scaling.accounting import Shape
from scaling.errors import InputError
from scaling.fit_file import read_json_object


@dataclass(frozen=True)
class Preset:
    """A shape by name, and where it comes from."""

    name: str
    shape: Shape
    source: str


_GPT2 = "Radford et al. 2019, table 2; head tied, biases"
_GPT3 = "Brown et al. 2020, arXiv:2005.14165, table 2.1; tokenizer and biases of GPT-2"
_CHINCHILLA = "Hoffmann et al. 2022, arXiv:2203.15556, table A9; positions are relative there, counted as none"


def _gpt(d: int, layers: int, heads: int, context: int = 1024) -> Shape:
    return Shape(d, layers, heads, 50257, context, tied=True, biases="all")


def _chinchilla(d: int, layers: int, heads: int) -> Shape:
    return Shape(d, layers, heads, 32000, 2048, positions="none", biases="all")


def _llama(d: int, layers: int, heads: int, vocab: int, context: int, ff: int, **options: Any) -> Shape:
    return Shape(
        d, layers, heads, vocab, context, d_ff=ff, gated_mlp=True, positions="rotary", norm="rms", **options
    )


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("lecture", Shape(64, 2, 4, 256, 128), "the demo: 2 blocks, d = 64, 4 heads, learned positions, bytes"),
        Preset("gpt2", _gpt(768, 12, 12), _GPT2),
        Preset("gpt2-medium", _gpt(1024, 24, 16), _GPT2),
        Preset("gpt2-large", _gpt(1280, 36, 20), _GPT2),
        Preset("gpt2-xl", _gpt(1600, 48, 25), _GPT2),
        Preset("gpt3-small", _gpt(768, 12, 12, 2048), _GPT3),
        Preset("gpt3", _gpt(12288, 96, 96, 2048), _GPT3),
        Preset("chinchilla-74m", _chinchilla(640, 10, 10), _CHINCHILLA),
        Preset("chinchilla-1.1b", _chinchilla(1792, 26, 14), _CHINCHILLA),
        Preset("chinchilla-6.8b", _chinchilla(3584, 40, 28), _CHINCHILLA),
        Preset("llama2-7b", _llama(4096, 32, 32, 32000, 4096, 11008), "Touvron et al. 2023, arXiv:2307.09288"),
        Preset(
            "llama3-8b",
            _llama(4096, 32, 32, 128256, 8192, 14336, n_kv_heads=8),
            "Grattafiori et al. 2024, arXiv:2407.21783, table 3",
        ),
        Preset(
            "qwen1.5-72b",
            _llama(8192, 80, 64, 152064, 32768, 24576, biases="qkv"),
            "its published config.json: MLP of 3 d, gated, biases on queries, keys and values",
        ),
    )
}


def preset(name: str) -> Preset:
    """The preset of that name. Raises InputError that lists the known names."""
    if name not in PRESETS:
        raise InputError(f'unknown preset "{name}". Known presets: {", ".join(PRESETS)}.')
    return PRESETS[name]


_GPT2_LIKE = {"gated_mlp": False, "norm": "layer", "biases": "all", "positions": "learned"}
_LLAMA_LIKE = {"gated_mlp": True, "norm": "rms", "biases": "none", "positions": "rotary"}
# model_type: (facts that its config.json leaves unsaid, whether the head is tied when the config does not say)
MODEL_TYPES: dict[str, tuple[dict[str, Any], bool]] = {
    "gpt2": (_GPT2_LIKE, True),
    "gpt_neox": ({**_GPT2_LIKE, "positions": "rotary"}, False),
    "llama": (_LLAMA_LIKE, False),
    "mistral": (_LLAMA_LIKE, False),
    "qwen2": ({**_LLAMA_LIKE, "biases": "qkv"}, False),
    "gemma": (_LLAMA_LIKE, True),
}
_KEYS = {  # field of Shape: names in configs, first found wins
    "d_model": ("hidden_size", "n_embd"),
    "n_layers": ("num_hidden_layers", "n_layer"),
    "n_heads": ("num_attention_heads", "n_head"),
    "n_kv_heads": ("num_key_value_heads",),
    "vocab_size": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions", "n_ctx"),
    "d_ff": ("intermediate_size", "n_inner"),
    "head_dim": ("head_dim",),
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_OPTIONAL = ("n_kv_heads", "d_ff", "head_dim")


def shape_from_config(config: Mapping[str, Any], *, where: str = "config") -> Shape:
    """The shape of a Hugging Face-style config (`model_type`, `hidden_size` or `n_embd`, ...), or of a mapping with
    this toolkit's own field names (`d_model`, `n_layers`, ...), alone or under "shape".

    Raises InputError for an unknown model type, a mixture of experts, a missing or an impossible size.
    """
    if isinstance(config.get("shape"), Mapping):
        return shape_from_config(config["shape"], where=where)
    own = {field.name for field in fields(Shape)}
    if "model_type" not in config and "d_model" in config:
        return _own_shape({key: value for key, value in config.items() if key in own}, where)
    experts = next((config[key] for key in _EXPERTS if config.get(key)), 1)
    if experts != 1:
        raise InputError(f"{where}: a mixture of {experts} experts; only dense models are counted. Give N instead.")
    facts, tied_by_default = _model_type(config, where)
    sizes = {name: next((config[k] for k in keys if config.get(k) is not None), None) for name, keys in _KEYS.items()}
    missing = [" or ".join(_KEYS[name]) for name, value in sizes.items() if value is None and name not in _OPTIONAL]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing. Add what is missing, or give the shape by flags.")
    tied = config.get("tie_word_embeddings")
    told = {**facts, **_told_biases(config, facts)}
    return _own_shape({**sizes, **told, "tied": tied_by_default if tied is None else tied}, where)


def read_shape(path: str | os.PathLike) -> Shape:
    """`shape_from_config` of a JSON file. Raises InputError that names the file."""
    return shape_from_config(read_json_object(path), where=str(path))


def shape_to_dict(shape: Shape) -> dict[str, Any]:
    """The shape under its own field names, widths resolved: what `shape_from_config` reads back."""
    resolved = {"d_ff": shape.ff_width, "n_kv_heads": shape.kv_heads, "head_dim": shape.head_width}
    return {**asdict(shape), **resolved}


def ff_width(d_model: int, expansion: float) -> int:
    """MLP width for an expansion factor, whole or not, rounded to the nearest whole number (8/3 at d = 4096: 10923).

    Raises InputError for a factor that is not above zero.
    """
    if not 0 < expansion < float("inf"):
        raise InputError(f"expansion = {expansion} must be finite and above zero.")
    return max(1, round(d_model * expansion))


def _model_type(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], bool]:
    name = config.get("model_type")
    if name not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise InputError(f'{where}: model_type "{name}" is not known. Known: {known}; or give the shape by flags.')
    return MODEL_TYPES[name]


def _told_biases(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
    """Biases that a Llama-like config switches on by itself; one switch alone is a shape that is not counted here."""
    switches = [bool(config.get(key)) for key in ("attention_bias", "mlp_bias")]
    if not any(switches) or facts["biases"] == "all":
        return {}
    if not all(switches):
        raise InputError("config: attention_bias without mlp_bias, or the reverse, is not counted here.")
    return {"biases": "all"}


def _own_shape(values: Mapping[str, Any], where: str) -> Shape:
    required = ("d_model", "n_layers", "n_heads", "vocab_size", "context")
    missing = [name for name in required if values.get(name) is None]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing. A shape needs {', '.join(required)}.")
    try:
        return Shape(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
