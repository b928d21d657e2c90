"""The transformer against the lecture's formulas written as plain loops over lists, and what each token may see."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.accounting import POSITIONS, Shape, count_parameters
from scaling.errors import SweepError
from sweeps.model import Cache, Transformer, attention_weights

EPSILON = 1e-5  # of the norms


def random_model(shape, *, seed=0, attention="fused"):
    """A model in float64 whose every weight is random: a head of zeros or a norm of ones would hide mistakes."""
    model = Transformer(shape, seed=seed, attention=attention).double()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.eval()


# ---- the formulas, one number at a time -----------------------------------------------------------------------------


def matvec(W, x):
    return [sum(w * v for w, v in zip(row, x, strict=True)) for row in W]


def norm(x, scale, shift):
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return [(v - mean) / math.sqrt(variance + EPSILON) * s + b for v, s, b in zip(x, scale, shift, strict=True)]


def softmax(z):
    top = max(z)
    e = [math.exp(v - top) for v in z]
    return [v / sum(e) for v in e]


def sinusoid(t, i, d):
    """sin(t / 10000^(2j/d)) at even places, cos at odd ones."""
    angle = t / 10000 ** (2 * (i // 2) / d)
    return math.sin(angle) if i % 2 == 0 else math.cos(angle)


def turned(x, t):
    """The pair (x_i, x_{i + half}) turned by t / 10000^(i / half), as complex numbers."""
    half = len(x) // 2
    pairs = [complex(x[i], x[i + half]) * complex(math.cos(a), math.sin(a))
             for i in range(half) for a in [t / 10000 ** (i / half)]]  # fmt: skip
    return [p.real for p in pairs] + [p.imag for p in pairs]


def attention_by_loops(X, weights, shape, mask):
    """softmax((Q K^T + M) / sqrt(d_h)) V for each head, the heads side by side, mixed by W_O."""
    h, d_h, n = shape.n_heads, shape.d_model // shape.n_heads, len(X)
    W = weights["qkv"]
    Wq, Wk, Wv = W[: shape.d_model], W[shape.d_model : 2 * shape.d_model], W[2 * shape.d_model :]
    joined = [[] for _ in X]
    for head in range(h):
        rows = slice(head * d_h, (head + 1) * d_h)
        Q, K, V = ([matvec(M[rows], x) for x in X] for M in (Wq, Wk, Wv))
        if shape.positions == "rotary":
            Q, K = [turned(q, t) for t, q in enumerate(Q)], [turned(k, t) for t, k in enumerate(K)]
        for t in range(n):
            scores = [sum(q * k for q, k in zip(Q[t], K[s], strict=True)) / math.sqrt(d_h) for s in range(n)]
            seen = softmax([scores[s] if s <= t or not mask else -math.inf for s in range(n)])
            joined[t] += [sum(seen[s] * V[s][i] for s in range(n)) for i in range(d_h)]
    return [matvec(weights["out"], row) for row in joined]


def logits_by_loops(model, tokens, mask=True):
    """Every formula of the lecture, top to bottom, for one sequence."""
    shape, state = model.shape, {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    d = shape.d_model
    X = [list(state["token_embedding.weight"][token]) for token in tokens]
    for t, x in enumerate(X):
        if shape.positions == "learned":
            X[t] = [a + b for a, b in zip(x, state["position_embedding.weight"][t], strict=True)]
        elif shape.positions == "sinusoidal":
            X[t] = [a + sinusoid(t, i, d) for i, a in enumerate(x)]
    for layer in range(shape.n_layers):
        part = {name.removeprefix(f"blocks.{layer}."): value for name, value in state.items()
                if name.startswith(f"blocks.{layer}.")}  # fmt: skip
        normed = [norm(x, part["norm1.weight"], part["norm1.bias"]) for x in X]
        weights = {"qkv": part["attention.qkv.weight"], "out": part["attention.out.weight"]}
        mixed = attention_by_loops(normed, weights, shape, mask)
        X = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(X, mixed, strict=True)]
        for t, x in enumerate(X):
            hidden = matvec(part["mlp.up.weight"], norm(x, part["norm2.weight"], part["norm2.bias"]))
            change = matvec(part["mlp.down.weight"], [max(0.0, v) for v in hidden])
            X[t] = [a + b for a, b in zip(x, change, strict=True)]
    return [matvec(state["head.weight"], norm(x, state["norm.weight"], state["norm.bias"])) for x in X]


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("attention", ["fused", "explicit"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_the_model_is_its_formulas(positions, attention, mask):
    shape = Shape(d_model=12, n_layers=2, n_heads=3, vocab_size=7, context=9, d_ff=20, positions=positions)
    model = random_model(shape, attention=attention)
    tokens = [3, 1, 4, 1, 5, 6, 2]
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), mask=mask)[0]
    expected = torch.tensor(logits_by_loops(model, tokens, mask), dtype=torch.float64)
    # the angles of the positions are computed in 32 bits
    tolerance = 1e-10 if positions in ("learned", "none") else 2e-5
    assert torch.allclose(logits, expected, rtol=tolerance, atol=tolerance)


# ---- what each token may see ----------------------------------------------------------------------------------------


@st.composite
def models(draw, positions=POSITIONS):
    heads = draw(st.sampled_from([1, 2, 3]))
    shape = Shape(
        d_model=heads * 2 * draw(st.integers(1, 4)),
        n_layers=draw(st.integers(1, 3)),
        n_heads=heads,
        vocab_size=draw(st.integers(3, 11)),
        context=draw(st.integers(2, 16)),
        d_ff=draw(st.none() | st.integers(1, 20)),
        positions=draw(st.sampled_from(positions)),
    )
    return random_model(shape, seed=draw(st.integers(0, 99)), attention=draw(st.sampled_from(["fused", "explicit"])))


@given(model=models(), data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_change_at_j_never_reaches_outputs_before_j(model, data):
    shape = model.shape
    n = data.draw(st.integers(2, shape.context))
    tokens = data.draw(st.lists(st.integers(0, shape.vocab_size - 1), min_size=n, max_size=n))
    j = data.draw(st.integers(1, n - 1))
    changed = list(tokens)
    changed[j] = (tokens[j] + 1) % shape.vocab_size
    with torch.no_grad():
        before, after = model(torch.tensor([tokens, changed]))
        without = model(torch.tensor([tokens, changed]), mask=False)
    assert torch.equal(before[:j], after[:j])
    assert not torch.equal(before[j], after[j])  # and it does reach its own
    assert not torch.equal(without[0, :j], without[1, :j])  # the mask it is that hides it


@given(model=models(positions=("none",)), data=st.data())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_without_mask_and_positions_order_means_nothing(model, data):
    n = model.shape.context
    tokens = torch.tensor(data.draw(st.lists(st.integers(0, model.shape.vocab_size - 1), min_size=n, max_size=n)))
    order = torch.tensor(data.draw(st.permutations(range(n))))
    with torch.no_grad():
        straight, permuted = model(torch.stack([tokens, tokens[order]]), mask=False)
    assert torch.allclose(straight[order], permuted, atol=1e-9)


@pytest.mark.parametrize(("positions", "sees_order"), [(p, p != "none") for p in POSITIONS])
def test_positions_tell_the_order_of_equal_tokens(positions, sees_order):
    """With the mask off, two equal tokens have equal outputs exactly where nothing tells them apart."""
    model = random_model(Shape(8, 2, 2, 5, 6, positions=positions))
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 1, 3, 4, 0]]), mask=False)[0]
    assert torch.allclose(logits[0], logits[2], atol=1e-9) == (not sees_order)


def test_rotary_positions_see_distances_only():
    """Attention weights of the last query are the same wherever the window stands; learned positions' are not."""
    tokens = torch.tensor([[1, 2, 3, 4]])
    for positions, same in (("rotary", True), ("learned", False), ("sinusoidal", False)):
        model = random_model(Shape(8, 1, 2, 5, 12, positions=positions))
        (here,) = attention_weights(model, tokens)
        shifted = Cache()
        with torch.no_grad():
            model(torch.tensor([[0] * 5]), cache=shifted)  # five tokens before it
            record = []
            model(tokens, cache=shifted, record=record)
        window = record[0][:, :, :, 5:]
        window = window / window.sum(-1, keepdim=True)  # among the four tokens of the window
        assert torch.allclose(window, here, atol=1e-5) == same, positions


def test_learned_positions_end_with_the_context_and_rotary_ones_do_not():
    tokens = torch.zeros(1, 7, dtype=torch.long)
    with pytest.raises(SweepError, match="7 tokens do not fit a context of 6"):
        random_model(Shape(8, 1, 2, 5, 6, positions="learned"))(tokens)
    for positions in ("sinusoidal", "rotary", "none"):
        assert random_model(Shape(8, 1, 2, 5, 6, positions=positions))(tokens).shape == (1, 7, 5)


@given(model=models())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_the_model_has_as_many_parameters_as_are_counted(model):
    counted = count_parameters(model.shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == counted.total
    named = dict(model.named_parameters())

    def size(*parts):
        return sum(p.numel() for name, p in named.items() if any(part in name for part in parts))

    assert size("attention.") == counted.attention
    assert size("mlp.") == counted.mlp
    assert size("norm") == counted.norms
    assert size("head.") == counted.head
    assert size("position_embedding") == counted.positions


@pytest.mark.parametrize(
    "changes",
    [{"n_kv_heads": 1}, {"gated_mlp": True}, {"tied": True}, {"norm": "rms"}, {"biases": "all"}, {"biases": "qkv"},
     {"head_dim": 3}],
)  # fmt: skip
def test_shapes_that_are_counted_but_not_trained_are_refused(changes):
    with pytest.raises(SweepError, match=f"{next(iter(changes))} = .* is counted but not trained"):
        Transformer(Shape(8, 1, 2, 5, 6, **changes))
