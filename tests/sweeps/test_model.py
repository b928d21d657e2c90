"""The transformer against a plain loop written from its formulas, and what must hold of it whatever its weights."""

import math

import pytest
import torch

from scaling.accounting import Shape, count_parameters
from scaling.errors import SweepError
from sweeps.model import Cache, Transformer, attention_weights

SHAPE = {"d_model": 24, "n_layers": 2, "n_heads": 3, "vocab_size": 31, "context": 10}


def make(attention="explicit", *, noise=0.3, **changes):
    """A model with every weight moved off its start, so that nothing is zero, one or symmetric."""
    model = Transformer(Shape(**{**SHAPE, **changes}), attention=attention, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
    return model.eval()


def some_tokens(batch=2, length=10, vocab=31):
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(1))


def loop(model, tokens):
    """Logits of one sequence, token by token and head by head, from the formulas alone."""
    w = {name: p.detach().double() for name, p in model.named_parameters()}
    d, h = model.shape.d_model, model.shape.n_heads
    width = d // h

    def norm(x, name):
        centred = x - x.mean()
        return w[f"{name}.weight"] * centred / torch.sqrt((centred**2).mean() + 1e-5) + w[f"{name}.bias"]

    xs = [w["token_embedding.weight"][t] + w["position_embedding.weight"][i] for i, t in enumerate(tokens)]
    for layer in range(model.shape.n_layers):
        b = f"blocks.{layer}"
        normed = [norm(x, f"{b}.norm1") for x in xs]
        queries, keys, values = (
            [w[f"{b}.attention.qkv.weight"][i * d : (i + 1) * d] @ x for x in normed] for i in range(3)
        )
        for i in range(len(xs)):
            heads = []
            for head in range(h):
                part = slice(head * width, (head + 1) * width)
                scores = [queries[i][part] @ keys[j][part] / math.sqrt(width) for j in range(i + 1)]
                weights = [math.exp(s) for s in scores]
                heads.append(sum(e * values[j][part] for j, e in enumerate(weights)) / sum(weights))
            xs[i] = xs[i] + w[f"{b}.attention.out.weight"] @ torch.cat(heads)
        for i, x in enumerate(xs):
            hidden = torch.clamp(w[f"{b}.mlp.up.weight"] @ norm(x, f"{b}.norm2"), min=0)
            xs[i] = x + w[f"{b}.mlp.down.weight"] @ hidden
    return torch.stack([w["head.weight"] @ norm(x, "norm") for x in xs])


@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_it_computes_the_formulas(attention):
    model, tokens = make(attention).double(), some_tokens()
    with torch.no_grad():
        logits = model(tokens)
    for row in range(len(tokens)):
        torch.testing.assert_close(logits[row], loop(model, tokens[row]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_fused_and_explicit_attention_agree(positions):
    tokens = some_tokens()
    fused, explicit = (make(kind, positions=positions).double()(tokens) for kind in ("fused", "explicit"))
    torch.testing.assert_close(fused, explicit, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_a_token_never_reaches_what_stands_before_it(attention, positions):
    model, tokens = make(attention, positions=positions), some_tokens(1)
    with torch.no_grad():
        before = model(tokens)
        for j in range(10):
            changed = tokens.clone()
            changed[0, j] = (changed[0, j] + 7) % 31
            after = model(changed)
            assert torch.equal(after[0, :j], before[0, :j])
            assert not torch.allclose(after[0, j], before[0, j])


def test_without_mask_a_token_sees_its_successors():
    model, tokens = make(), some_tokens(1)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 7) % 31
    with torch.no_grad():
        assert not torch.allclose(model(tokens, mask=False)[0, 0], model(changed, mask=False)[0, 0])


@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_without_mask_and_positions_it_is_permutation_equivariant(attention):
    model, tokens = make(attention, positions="none").double(), some_tokens(1)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[:, order], mask=False), model(tokens, mask=False)[:, order])
        assert not torch.allclose(model(tokens[:, order]), model(tokens)[:, order])  # the mask breaks it


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("n_heads", [1, 2, 3, 6])
def test_parameters_are_those_accounted_for_and_do_not_depend_on_heads(positions, n_heads):
    shape = Shape(**{**SHAPE, "n_heads": n_heads, "positions": positions})
    model, count = Transformer(shape), count_parameters(shape)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(sizes.values()) == count.total
    assert sum(n for name, n in sizes.items() if ".attention." in name) == count.attention
    assert sum(n for name, n in sizes.items() if ".mlp." in name) == count.mlp
    assert count.total == count_parameters(Shape(**{**SHAPE, "positions": positions})).total


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_with_a_cache_the_logits_are_the_same(attention, positions):
    model, tokens = make(attention, positions=positions).double(), some_tokens()
    cache, pieces = Cache(), []
    with torch.no_grad():
        for part in (tokens[:, :4], tokens[:, 4:5], tokens[:, 5:]):
            pieces.append(model(part, cache=cache))
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens))
    assert cache.length == 10


def test_attention_weights_are_causal_and_sum_to_one():
    weights = attention_weights(make("fused"), some_tokens())
    assert [w.shape for w in weights] == [(2, 3, 10, 10)] * 2
    for w in weights:
        torch.testing.assert_close(w.sum(dim=-1), torch.ones(2, 3, 10))
        assert torch.equal(w, w.tril())


def test_the_seed_alone_decides_the_start_and_the_start_knows_nothing():
    torch.manual_seed(1)
    first = Transformer(Shape(**SHAPE), seed=7)
    torch.manual_seed(2)
    second, third = Transformer(Shape(**SHAPE), seed=7), Transformer(Shape(**SHAPE), seed=8)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.token_embedding.weight, third.token_embedding.weight)
    assert torch.equal(first(some_tokens()), torch.zeros(2, 10, 31))  # every token as likely: the loss is ln V


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gated_mlp": True}, "gated_mlp = True is counted but not trained"),
        ({"n_kv_heads": 1}, "n_kv_heads = 1 is counted"),
        ({"tied": True}, "tied = True is counted"),
        ({"norm": "rms"}, "norm = 'rms' is counted"),
        ({"positions": "rotary", "n_heads": 8}, "even head width, not 3"),
    ],
)
def test_shapes_that_are_not_trained_are_refused(changes, message):
    with pytest.raises(SweepError, match=message):
        Transformer(Shape(**{**SHAPE, **changes}))


def test_more_tokens_than_the_context_are_refused():
    with pytest.raises(SweepError, match="11 tokens do not fit a context of 10"):
        make()(some_tokens(length=11))
    with pytest.raises(SweepError, match='unknown attention "flash"'):
        Transformer(Shape(**SHAPE), attention="flash")
