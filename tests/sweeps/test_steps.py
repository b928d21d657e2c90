"""The written-out step against automatic differentiation, and the flat optimizer against PyTorch's."""

import warnings
from dataclasses import replace

import pytest
import torch

from scaling.accounting import Shape
from sweeps.hand_step import HandStep
from sweeps.model import Transformer
from sweeps.recipe import EMBEDDING_RATE, Recipe, resolve
from sweeps.steps import AutogradStep, GraphStep, make_step, record_cuda_graph


def configure(*, attention="explicit", dtype="float32", positions="learned", context=16, **recipe):
    shape = Shape(d_model=24, n_layers=2, n_heads=3, vocab_size=40, context=context, positions=positions)
    recipe = Recipe(batch_tokens=4 * context, **recipe)
    return resolve(
        shape, 400 * context, corpus="c", corpus_hash="h", recipe=recipe, attention=attention, dtype=dtype, seed=2
    )


def move(step, *, noise=0.2, seed=4):
    """Move every weight off its start, alike for any step of one configuration."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in sorted(step.flat.weight):
            weight = step.flat.weight[name]
            weight.add_((torch.randn(weight.shape, generator=generator) * noise).to(weight.dtype))


def batch(config, seed=9):
    generator = torch.Generator().manual_seed(seed)
    block = torch.randint(40, (config.batch_tokens // config.context, config.context + 1), generator=generator)
    return block[:, :-1], block[:, 1:]


def pair(config, **kwargs):
    steps = HandStep(config), AutogradStep(config)
    for step in steps:
        move(step, **kwargs)
    return steps


@pytest.mark.parametrize("attention", ["explicit", "fused"])
@pytest.mark.parametrize(
    ("positions", "context"), [("learned", 16), ("sinusoidal", 16), ("none", 24), ("learned", 256)]
)
def test_gradients_are_those_of_automatic_differentiation(attention, positions, context):
    config = configure(attention=attention, positions=positions, context=context)
    hand, automatic = pair(config)
    for number in range(2):  # the second batch finds used buffers
        inputs, targets = batch(config, seed=number)
        torch.testing.assert_close(hand.gradients(inputs, targets), automatic.gradients(inputs, targets))
        for name, expected in automatic.flat.gradient.items():
            error = (hand.flat.gradient[name] - expected).norm() / expected.norm()
            assert error < 1e-5, (name, error)


@pytest.mark.parametrize(("context", "at_once"), [(16, 128), (256, 8), (1000, 4), (4096, 4)])
def test_held_out_windows_are_read_by_tokens_not_by_number(context, at_once):
    """About 2,048 tokens at once, never fewer than a batch: long contexts must not multiply the buffers of attention."""
    config = configure(context=context, attention="fused")
    hand, automatic = pair(config)
    generator = torch.Generator().manual_seed(3)
    windows = torch.randint(40, (5, context + 1), generator=generator)
    torch.testing.assert_close(hand.window_losses(windows), automatic.window_losses(windows), rtol=1e-5, atol=0)
    reader = hand if hand.B >= 2048 // context else hand._reader
    assert reader.B == at_once and reader.flat is hand.flat


def test_automatic_gradients_are_those_of_finite_differences():
    config = configure()
    step = AutogradStep(config)
    move(step)
    inputs, targets = batch(config)
    step.gradients(inputs, targets)
    direction = torch.randn(step.flat.values.shape, generator=torch.Generator().manual_seed(0))
    slope = float(direction @ step.flat.gradients)
    start, h, losses = step.flat.values.clone(), 1e-4, []
    for sign in (1, -1):
        step.flat.values.copy_(start + sign * h * direction)
        losses.append(float(step.gradients(inputs, targets)) * targets.numel())
    assert (losses[0] - losses[1]) / (2 * h) == pytest.approx(slope, rel=0.02)


def recorder(*, spoil=lambda step: None):
    """A recording as a GPU makes one: what was recorded runs again on the tensors it was recorded with."""
    made = []

    def record(body):
        body()
        made.append(body)

        def replay():
            body()
            spoil(body.__self__)

        return replay

    record.made = made
    return record


def test_a_recorded_step_follows_its_inputs_and_weights():
    config, record = configure(), recorder()
    recorded, plain = GraphStep(config, record), AutogradStep(config)
    for number in range(8):
        inputs, targets = batch(config, seed=number)
        losses = [float(step.gradients(inputs, targets)) for step in (recorded, plain)]
        assert losses[0] == losses[1] and torch.equal(recorded.flat.gradients, plain.flat.gradients)
        for step in (recorded, plain):
            step.flat.update(number, 1.0, inputs.numel())
    assert len(record.made) == 1 and torch.equal(recorded.flat.values, plain.flat.values)


def test_a_recording_that_gives_other_gradients_is_not_used():
    config = configure()
    step, plain = GraphStep(config, recorder(spoil=lambda step: step.flat.gradients.mul_(1.5))), AutogradStep(config)
    with pytest.warns(UserWarning, match="gradients 5.0e-01 off; it is launched anew"):
        for number in range(6):
            inputs, targets = batch(config, seed=number)
            step.gradients(inputs, targets)
            plain.gradients(inputs, targets)
            assert torch.equal(step.flat.gradients, plain.flat.gradients)


def test_a_step_that_cannot_be_recorded_goes_on_as_it_is():
    def refuse(body):
        raise RuntimeError("operation not permitted when stream is capturing")

    config = configure()
    step, plain = GraphStep(config, refuse), AutogradStep(config)
    with pytest.warns(UserWarning, match="not permitted when stream is capturing"):
        for number in range(6):
            inputs, targets = batch(config, seed=number)
            assert float(step.gradients(inputs, targets)) == float(plain.gradients(inputs, targets))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_gives_the_gradients_of_the_step_it_records():
    config = replace(configure(attention="fused", dtype="bfloat16"), device="cuda")
    step, plain = GraphStep(config, record_cuda_graph), AutogradStep(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(8):
            inputs, targets = batch(config, seed=number)
            losses = [float(each.gradients(inputs, targets)) for each in (step, plain)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-3)
            for each in (step, plain):
                each.flat.update(number, 1.0, inputs.numel())


@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_bfloat16_gradients_point_the_same_way(attention):
    config = configure(attention=attention, dtype="bfloat16")
    hand, reference = HandStep(config), AutogradStep(configure(attention=attention))
    for step in (hand, reference):
        move(step, noise=0.1)
    inputs, targets = batch(config)
    assert hand.gradients(inputs, targets) == pytest.approx(float(reference.gradients(inputs, targets)), rel=0.01)
    cosine = torch.cosine_similarity(hand.flat.gradients.float(), reference.flat.gradients, dim=0)
    assert cosine > 0.995


@pytest.mark.parametrize("factor", [60.0, 1000.0])
def test_scores_beyond_the_range_of_exp_are_shifted(factor):
    """Scores of some hundreds overflow exp in float32; the losses and gradients must be those of a safe softmax."""
    config = configure()
    hand, automatic = pair(config)
    for step in (hand, automatic):
        step.flat.weight["blocks.0.attention.qkv.weight"].mul_(factor)
        step.flat.weight["head.weight"].mul_(factor)
    inputs, targets = batch(config)
    losses = hand.gradients(inputs, targets), automatic.gradients(inputs, targets)
    assert torch.isfinite(losses[1])
    torch.testing.assert_close(*losses, rtol=1e-4, atol=0)
    assert torch.isfinite(hand.flat.gradients).all()
    if factor < 100:  # beyond, either way is lost to cancellation
        assert (hand.flat.gradients - automatic.flat.gradients).norm() < 0.01 * automatic.flat.gradients.norm()
    windows = torch.cat((inputs, targets[:, -1:]), dim=1)
    torch.testing.assert_close(hand.window_losses(windows), automatic.window_losses(windows), rtol=1e-4, atol=0)


def test_window_losses_do_not_depend_on_their_company():
    config = configure()
    hand, automatic = pair(config)
    windows = torch.randint(40, (11, 17), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    losses = hand.window_losses(windows)
    assert losses.shape == (11,) and losses.dtype == torch.float64
    torch.testing.assert_close(losses, automatic.window_losses(windows), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(losses[8:], hand.window_losses(windows[8:]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_an_update_is_clipped_adamw_with_the_rates_of_the_recipe(clip):
    config = configure(clip=clip, weight_decay=0.1, learning_rate=0.02, base_width=48)
    step = make_step(config)
    move(step)
    model = Transformer(config.shape(), attention="explicit", seed=2)
    model.load_state_dict({name: weight.clone() for name, weight in step.flat.weight.items()})
    embeddings = [p for n, p in model.named_parameters() if "embedding" in n]
    norms = [p for n, p in model.named_parameters() if "norm" in n]
    matrices = [p for n, p in model.named_parameters() if "embedding" not in n and "norm" not in n]
    groups = [{"params": group, "weight_decay": 0.0} for group in (matrices, embeddings, norms)]
    groups[0]["weight_decay"] = 0.1
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=1e-8)
    for number, factor in enumerate((0.5, 1.0, 1.0)):
        inputs, targets = batch(config, seed=number)
        step.gradients(inputs, targets)
        step.flat.update(number, factor, inputs.numel())
        for group, rate in zip(optimizer.param_groups, (0.02 * 2, 0.02 * EMBEDDING_RATE, 0.02), strict=True):
            group["lr"] = rate * factor
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(step.flat.weight[name], parameter.detach(), rtol=1e-4, atol=2e-5)


def test_master_weights_keep_what_bfloat16_would_lose():
    config = configure(dtype="bfloat16", learning_rate=1e-5)
    step = make_step(config)
    step.flat.values.add_(torch.randn(step.flat.values.shape, generator=torch.Generator().manual_seed(0)))
    step.flat.publish()
    before, seen = step.flat.values.clone(), step.flat.compute.clone()
    inputs, targets = batch(config)
    step.gradients(inputs, targets)
    step.flat.update(0, 1.0, inputs.numel())
    moved, shown = (step.flat.values != before).sum(), (step.flat.compute != seen).sum()
    assert moved > 5000 and moved > 10 * shown  # most updates are below a bfloat16's last place
    assert step.flat.weight["token_embedding.weight"].dtype == torch.bfloat16


def test_rotary_positions_and_one_thread():
    step = make_step(configure(positions="rotary"))
    assert isinstance(step, AutogradStep) and torch.get_num_threads() == 1
    assert isinstance(make_step(configure()), HandStep)
