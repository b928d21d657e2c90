"""The compiled step against automatic differentiation and the written-out step, and what happens without a compiler."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scaling.accounting import Shape
from scaling.errors import SweepError
from sweeps import native, numerics
from sweeps import recipe as recipe_module
from sweeps.corpus import load_corpus
from sweeps.evaluation import Evaluator
from sweeps.grid import read_grid
from sweeps.hand_step import HandStep
from sweeps.launch import prepare
from sweeps.native_step import NativeStep, check, is_available
from sweeps.probe import _choose
from sweeps.recipe import Recipe, resolve
from sweeps.steps import AutogradStep, make_step
from sweeps.store import Store
from sweeps.training import _Column

sys.path.insert(0, str(Path(__file__).parent))
from text_for_tests import write_files  # noqa: E402

needs_compiler = pytest.mark.skipif(native.find_compiler() is None, reason="needs a C++ compiler")


def configure(*, d=24, heads=3, layers=2, ff=None, vocab=40, context=16, windows=4, positions="learned", **recipe):
    shape = Shape(
        d_model=d, n_layers=layers, n_heads=heads, d_ff=ff, vocab_size=vocab, context=context, positions=positions
    )
    recipe = Recipe(batch_tokens=windows * context, **recipe)
    return resolve(shape, 400 * context, corpus="c", corpus_hash="h", recipe=recipe, attention="native", seed=2)


def batch(config, seed=9):
    generator = torch.Generator().manual_seed(seed)
    size = (config.batch_tokens // config.context, config.context + 1)
    block = torch.randint(config.vocab_size, size, generator=generator)
    return block[:, :-1], block[:, 1:]


def moved(config, kind, *, noise=0.2):
    """A step with every weight moved off its start, alike for every kind of step."""
    step = kind(config if kind is NativeStep else replace(config, attention="explicit"))
    step.flat.values.add_(noise * torch.randn(step.flat.values.shape, generator=torch.Generator().manual_seed(4)))
    return step


SHAPES = {
    "the recipe's": {},
    "every width with a tail": {"d": 21, "heads": 3, "ff": 50, "vocab": 39, "context": 37, "windows": 3},
    "widths below a vector": {"d": 6, "heads": 2, "ff": 5, "vocab": 7, "context": 5},
    "two panels, four blocks of queries": {"d": 96, "heads": 3, "vocab": 256, "context": 128, "windows": 2},
    "deeper than a product at a time": {"d": 80, "heads": 1, "ff": 600, "vocab": 300, "context": 16, "layers": 1},
    "four sequences side by side": {"d": 192, "heads": 2, "layers": 1, "context": 128, "windows": 5},
    "one head, one token": {"d": 16, "heads": 1, "context": 1, "windows": 9},
    "sinusoidal": {"positions": "sinusoidal"},
    "no positions": {"positions": "none", "layers": 3},
}


@needs_compiler
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_automatic_differentiation(name):
    config = configure(**SHAPES[name])
    mine, automatic = moved(config, NativeStep), moved(config, AutogradStep)
    for number in range(2):  # the second batch finds used buffers
        inputs, targets = batch(config, seed=number)
        torch.testing.assert_close(mine.gradients(inputs, targets), automatic.gradients(inputs, targets))
        for part, expected in automatic.flat.gradient.items():
            error = (mine.flat.gradient[part] - expected).norm() / expected.norm().clamp(min=1e-6)
            assert error < 2e-5, (part, error)


@needs_compiler
@pytest.mark.parametrize("name", SHAPES)
def test_window_losses_are_those_of_the_model(name):
    config = configure(**SHAPES[name])
    mine, automatic = moved(config, NativeStep), moved(config, AutogradStep)
    size = (11, config.context + 1)
    windows = torch.randint(config.vocab_size, size, generator=torch.Generator().manual_seed(0)).to(torch.int16)
    losses = mine.window_losses(windows)
    assert losses.shape == (11,) and losses.dtype == torch.float64
    torch.testing.assert_close(losses, automatic.window_losses(windows.long()), rtol=1e-5, atol=1e-5)
    assert torch.equal(losses[8:], mine.window_losses(windows[8:]))  # whatever their company


@needs_compiler
def test_the_same_bits_every_time_and_from_any_layout_of_the_batch():
    config = configure()
    first, second = moved(config, NativeStep), moved(config, NativeStep)
    inputs, targets = batch(config)
    loss = first.gradients(inputs, targets)
    by_columns = [tokens.to(torch.int32).T.contiguous().T for tokens in (inputs, targets)]
    assert float(loss) == float(second.gradients(*by_columns))
    assert torch.equal(first.flat.gradients, second.flat.gradients)


@needs_compiler
@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_updates_are_those_of_the_flat_parameters(clip):
    config = configure(clip=clip, weight_decay=0.1, learning_rate=0.02, base_width=48)
    mine, hand = moved(config, NativeStep), moved(config, HandStep)
    for number, factor in enumerate((0.5, 1.0, 1.0)):
        inputs, targets = batch(config, seed=number)
        mine.gradients(inputs, targets)
        hand.flat.gradients.copy_(mine.flat.gradients)  # their last digits alone would move weights without a gradient
        for step in (mine, hand):
            step.flat.update(number, factor, inputs.numel())
    for name, values in hand.flat.state().items():
        torch.testing.assert_close(mine.flat.state()[name], values, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("factor", [60.0, 1000.0])
def test_large_scores_and_logits_stay_finite(factor):
    config = configure()
    mine, automatic = moved(config, NativeStep), moved(config, AutogradStep)
    for step in (mine, automatic):
        step.flat.weight["blocks.0.attention.qkv.weight"].mul_(factor)
        step.flat.weight["head.weight"].mul_(factor)
    inputs, targets = batch(config)
    torch.testing.assert_close(mine.gradients(inputs, targets), automatic.gradients(inputs, targets), rtol=1e-4, atol=0)
    assert torch.isfinite(mine.flat.gradients).all()


@needs_compiler
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["token_embedding.weight", "blocks.1.mlp.up.weight", "head.weight", "norm.bias"])
def test_a_lost_weight_is_a_lost_loss(part, value):
    """What is not a number must not come out as a plausible loss, nor its update leave weights that look alive."""
    config = configure()
    step = moved(config, NativeStep)
    step.flat.weight[part].fill_(value)
    inputs, targets = batch(config)
    assert not torch.isfinite(step.gradients(inputs, targets))
    step.flat.update(0, 1.0, inputs.numel())
    assert not torch.isfinite(step.flat.values).all()


@needs_compiler
def test_a_token_outside_the_vocabulary_is_refused_and_nothing_is_written():
    config = configure()
    step = moved(config, NativeStep)
    inputs, targets = batch(config)
    step.gradients(inputs, targets)
    before = step.flat.gradients.clone()
    for wrong in (40, -1):
        spoilt = targets.clone()
        spoilt[2, 5] = wrong
        with pytest.raises(SweepError, match="window 2 holds a token outside the vocabulary of 40"):
            step.gradients(inputs, spoilt)
    assert torch.equal(step.flat.gradients, before)


@needs_compiler
def test_training_goes_as_with_the_written_out_step():
    config = configure(learning_rate=0.01)
    mine, hand = make_step(config), make_step(replace(config, attention="explicit"))
    assert isinstance(mine, NativeStep) and isinstance(hand, HandStep)
    for number in range(30):
        inputs, targets = batch(config, seed=number % 3)
        losses = [float(step.gradients(inputs, targets)) for step in (mine, hand)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        for step in (mine, hand):
            step.flat.update(number, 1.0, inputs.numel())
    assert losses[0] < 2.5  # from ln 40 = 3.7


# The compiler


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache, nothing remembered of an earlier compilation, and a quick one to come."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_FLAGS", tuple("-O1" if flag == "-O3" else flag for flag in native._FLAGS))
    remembered = (native.library, native.fingerprint, check)
    for function in remembered:
        function.cache_clear()
    yield tmp_path
    for function in remembered:
        function.cache_clear()


def compiler(folder, script):
    path = folder / "compiler"
    path.write_text(f"#!{sys.executable}\nimport sys\nif '--version' in sys.argv: sys.exit(print('1.0'))\n{script}\n")
    path.chmod(0o755)
    return str(path)


def built(folder):
    return [path.name for path in (folder / "cache" / "isoflop" / "native").iterdir()]


@needs_compiler
def test_the_library_is_built_once(fresh, monkeypatch):
    monkeypatch.setenv("CXX", f"{native.find_compiler()} -DSAID_TWICE")  # options count too
    assert is_available()
    (name,) = built(fresh)
    path = fresh / "cache" / "isoflop" / "native" / name
    stamp = path.stat().st_mtime_ns
    native.library.cache_clear()
    native.library()
    assert path.stat().st_mtime_ns == stamp and name == f"step-{native.fingerprint()}.so"


@needs_compiler
def test_a_damaged_library_is_named(fresh):
    path = fresh / "cache" / "isoflop" / "native" / f"step-{native.fingerprint()}.so"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    with pytest.warns(UserWarning, match=r"step-.*so cannot be loaded \(.*\). Delete it; where its folder does not allow"):
        assert not is_available()


def test_without_a_compiler_the_choice_is_among_the_others(fresh, monkeypatch):
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(fresh))
    assert not is_available()
    shape = configure().shape()
    assert ("float32", "native") not in numerics._candidates(shape, "cpu", None, None)
    with pytest.raises(SweepError, match=r'needs a C\+\+ compiler, and none was found .* set attention = "fused"'):
        NativeStep(configure())


def test_a_compiler_that_is_named_and_not_there(fresh, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.warns(UserWarning, match="CXX = 'no-such-compiler -m64', but there is no such program. Correct or unset it"):
        assert not is_available()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('step.cpp:3:1: error: no such type', file=sys.stderr); sys.exit(1)", "step.cpp:3:1: error: no such type"),
        ("sys.stderr.buffer.write(b'erreur \\xe9'); sys.exit(1)", "erreur"),
        ("sys.exit(3)", "it ends with status 3"),
    ],
)
def test_a_compiler_that_fails_is_named_with_its_first_error(fresh, monkeypatch, script, message):
    monkeypatch.setenv("CXX", compiler(fresh, script))
    with pytest.raises(SweepError, match=f"compiler cannot compile step.cpp: {message}"):
        native.library()
    with pytest.warns(UserWarning, match=f"{message}.* Training goes on without the compiled step"):
        assert not is_available()
    assert built(fresh) == []


def test_a_library_that_does_not_run_is_not_kept(fresh, monkeypatch):
    script = "open(sys.argv[sys.argv.index('-o') + 1], 'wb').write(b'no library')"
    monkeypatch.setenv("CXX", compiler(fresh, script))
    with pytest.warns(UserWarning, match=r"compiler made of step.cpp does not run here \(status 1\). Set CXX to another"):
        assert not is_available()
    assert built(fresh) == []


def spoil(folder, monkeypatch, right, wrong):
    """Compile a source in which one thing is wrong, as a compiler at fault might."""
    text = native.SOURCE.read_text()
    assert text.count(right) == 1
    source = folder / "step.cpp"
    source.write_text(text.replace(right, wrong))
    monkeypatch.setattr(native, "SOURCE", source)


@needs_compiler
def test_a_compiler_that_gets_it_wrong_is_found_out(fresh, monkeypatch):
    spoil(fresh, monkeypatch, "after == RELU) v = v < 0.0f", "after == RELU) v = v < 0.1f")
    message = f"what {re.escape(native.find_compiler())} made of step.cpp gives (the loss|gradients) that are .* off"
    with pytest.raises(SweepError, match=message):
        NativeStep(configure())
    with pytest.warns(UserWarning, match=message):
        assert not is_available()


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("const float keep = 1.0f - a.rate * a.decay", "const float keep = 1.0f + a.rate * a.decay"),
        ("second[i] * a.beta2 + g * g", "second[i] * a.beta2 + g * 2 * g"),
        ("total += dot(int(length)", "total = dot(int(length)"),
        ("        g.accumulate = true;", "        g.accumulate = false;"),
        ("sequences{*model, space, n, i > 0}", "sequences{*model, space, n, false}"),
        ("({n, width, end, block, T, value", "({n, width, end - (start > 0), block, T, value"),
        ("Vec v = acc[r][q];", "Vec v = !PART && Q == TILE_VECTORS && r == 5 ? acc[r][q] * 1.1f : acc[r][q];"),
    ],
)
def test_the_check_reaches_every_part(fresh, monkeypatch, right, wrong):
    spoil(fresh, monkeypatch, right, wrong)
    with pytest.raises(SweepError, match="gives .* that are .* off"):
        check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_cache_that_cannot_be_written(fresh, monkeypatch):
    monkeypatch.setenv("CXX", compiler(fresh, ""))
    (fresh / "cache").mkdir(mode=0o500)
    with pytest.raises(SweepError, match="native: cannot write in .*native"):
        native.library()


# Where it is chosen


CANNOT = [
    ({"dtype": "bfloat16"}, {}, "is float32, not bfloat16"),
    ({"device": "cuda"}, {}, "is for a CPU, not cuda"),
    ({}, {"positions": "rotary"}, "knows learned, sinusoidal, none positions, not rotary"),
    ({}, {"context": 8192}, "would keep 1,536 MiB of attention weights for 2 layers of 3 heads at a context of 8,192"),
]


@pytest.mark.parametrize(("numbers", "changes", "message"), CANNOT)
def test_what_it_cannot_train_is_refused_when_planned_and_is_no_candidate(numbers, changes, message):
    shape = replace(configure().shape(), **changes)
    recipe = Recipe(batch_tokens=shape.context)
    with pytest.raises(SweepError, match=f'recipe: attention = "native" {message}.*Set attention = "fused"'):
        resolve(shape, 10 * shape.context, corpus="c", corpus_hash="h", recipe=recipe, attention="native", **numbers)
    with pytest.raises(SweepError, match=f'numerics: attention = "native" {message}'):
        numerics._candidates(shape, numbers.get("device", "cpu"), numbers.get("dtype"), "native")
    pairs = numerics._candidates(shape, numbers.get("device", "cpu"), numbers.get("dtype"), None)
    assert pairs and all(attention != "native" for _, attention in pairs)


@needs_compiler
def test_where_it_can_be_had_it_is_a_candidate():
    shape = configure().shape()
    assert ("float32", "native") in numerics._candidates(shape, "cpu", None, None)
    assert numerics._candidates(shape, "cpu", None, "native") == [("float32", "native")]
    assert ("float32", "native") not in numerics._candidates(shape, "cpu", None, "fused")


def test_a_shape_that_it_cannot_train_does_not_follow_one_that_it_can():
    """A long context and many layers: the attention weights of the larger shape are too many to keep."""
    small = configure(context=1024, d=16, heads=1, layers=1)
    large = replace(small, d_model=24, n_heads=12, n_layers=24)
    chosen, asked = {}, []

    def choose_numerics(shape, device, **options):
        asked.append(shape.d_model)
        return ("float32", "fused") if recipe_module.why_not_native(shape, "float32", device) else ("float32", "native")

    _choose(choose_numerics, [small, large], chosen, {}, 1.0)
    assert asked == [16, 24] and [pair[1] for pair in chosen.values()] == ["native", "fused"]


@needs_compiler
def test_a_checkpoint_of_another_compilation_is_said(monkeypatch, tmp_path):
    write_files(tmp_path / "text")
    corpus = load_corpus(f"text:{tmp_path}/text", cache_dir=tmp_path / "cache")
    config = replace(configure(vocab=256), corpus=corpus.name, corpus_hash=corpus.hash)
    column = _Column([config], corpus)
    state = column.state()
    column.restore(state)
    with pytest.warns(UserWarning, match="its checkpoint was written by a step compiled otherwise"):
        column.restore({**state, "machine_code": "another"})


@needs_compiler
def test_windows_of_another_length_are_a_fault_of_ours():
    config = configure()
    step = NativeStep(config)
    with pytest.raises(AssertionError):
        step.window_losses(torch.zeros(3, config.context + 9, dtype=torch.int64))


@needs_compiler
def test_the_evaluator_reads_with_it():
    config = configure(vocab=256)
    text = np.random.default_rng(0).integers(0, 256, 20_000, dtype=np.uint8)

    class Corpus:
        validation, hardness = text, text.astype(np.float16)

    losses = [
        Evaluator(Corpus, context=16, windows=300).evaluate(moved(config, kind)).loss for kind in (NativeStep, HandStep)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_plan_says_that_the_compiler_failed(tmp_path, monkeypatch):
    """The timing runs in a process of its own; what it is warned of must reach whoever asked."""
    write_files(tmp_path / "text")
    grid = tmp_path / "grid.toml"
    grid.write_text(
        f'corpus = "text:{tmp_path}/text"\nsizes = [{{ d_model = 8, n_layers = 1 }}]\ntokens = ["16K"]\n'
        'context = 16\nbatch_tokens = 64\ndtype = "float32"\n'
    )
    monkeypatch.setenv("CXX", compiler(tmp_path, "sys.exit(3)"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    planned = prepare(read_grid(grid), Store(tmp_path / "out"), choose_seconds=0.01)
    assert planned.plan.configs[0].attention in ("explicit", "fused")
    assert any("cannot compile step.cpp: it ends with status 3. Training goes on without" in note for note in planned.plan.notes)
