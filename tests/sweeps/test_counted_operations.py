"""n^2 d, h n^2 and 6ND, counted in the operations that the model really runs, not computed a second time by formula."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from scaling.accounting import Shape, attention_memory, count_parameters, flops_per_token, training_flops
from scaling.attention_cost import layer_cost
from scaling.presets import preset
from sweeps import model as model_module
from sweeps.generation import generate
from sweeps.model import Cache, Transformer, explicit_attention


class Operations(TorchDispatchMode):
    """Every matrix product, as (name, multiply-adds, values written), and the largest tensor written by anything."""

    def __init__(self):
        super().__init__()
        self.products, self.largest = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        for tensor in out if isinstance(out, tuple) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        if name in ("mm", "bmm"):
            a, b = args[:2]
            batch = a.shape[0] if name == "bmm" else 1
            self.products.append((name, batch * a.shape[-2] * a.shape[-1] * b.shape[-1], out.numel()))
        return out


def operations(shape, n, *, attention="explicit"):
    with torch.no_grad(), Operations() as seen:
        Transformer(shape, attention=attention)(torch.zeros(1, n, dtype=torch.long))
    return seen


@pytest.mark.parametrize("n", [1, 7, 32, 64])
def test_attention_multiplies_n_squared_d_twice_and_writes_h_n_squared_scores(n):
    shape = Shape(d_model=24, n_layers=3, n_heads=4, vocab_size=11, context=64)
    batched = [row for row in operations(shape, n).products if row[0] == "bmm"]
    assert len(batched) == 2 * 3  # scores and mixing, in each layer
    assert [multiplied for _, multiplied, _ in batched] == [n * n * 24] * 6
    assert [written for _, _, written in batched[::2]] == [4 * n * n] * 3
    assert sum(row[1] for row in batched) == 3 * layer_cost(shape, n).attention
    assert attention_memory(shape, tokens=n, bytes_per_value=4).scores == 4 * batched[0][2]


def test_scores_do_not_depend_on_heads_in_work_but_do_in_memory():
    work, memory = set(), []
    for heads in (1, 2, 4, 8):
        batched = [row for row in operations(Shape(24, 1, heads, 11, 16), 16).products if row[0] == "bmm"]
        work.add(batched[0][1])
        memory.append(batched[0][2])
    assert work == {16 * 16 * 24}
    assert memory == [16 * 16 * heads for heads in (1, 2, 4, 8)]


def test_projections_mlp_and_head_multiply_as_the_layer_cost_says():
    shape, n = Shape(24, 3, 4, 11, 64, d_ff=70), 20
    plain = [multiplied for name, multiplied, _ in operations(shape, n).products if name == "mm"]
    cost = layer_cost(shape, n)
    assert sum(plain) == 3 * (cost.projections + cost.mlp) + n * 11 * 24
    assert sorted(plain[:4]) == sorted([3 * n * 24 * 24, n * 24 * 24, n * 24 * 70, n * 70 * 24])


def test_a_recurrent_layer_multiplies_2_n_d_squared():
    d, n = 16, 9
    cell = torch.nn.RNNCell(d, d, bias=False)
    x, h = torch.randn(n, 1, d), torch.zeros(1, d)
    with torch.no_grad(), Operations() as seen:
        for t in range(n):
            h = cell(x[t], h)
    assert sum(row[1] for row in seen.products) == layer_cost(Shape(d, 1, 1, 5, 5), n).recurrent == 2 * n * d * d


def test_fused_attention_never_writes_the_scores():
    shape, n = Shape(16, 1, 4, 11, 512), 512
    q = torch.randn(1, 4, n, 4)
    with torch.no_grad(), Operations() as explicit:
        explicit_attention(q, q, q, mask=True)
    with torch.no_grad(), Operations() as fused:
        F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert explicit.largest == 4 * n * n == attention_memory(shape, bytes_per_value=1).scores
    assert fused.largest == 4 * n * 4  # the output, n d
    # the kernel keeps h n normalisers in 32 bits for its backward pass
    normalisers = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, True)[1]
    assert normalisers.numel() * normalisers.element_size() == attention_memory(shape).fused


def profiled(shape, *, batch=1, attention="explicit", device="cpu"):
    """FLOPs of forward and backward over full contexts, by PyTorch's own counter: (all, of attention)."""
    model = Transformer(shape, attention=attention).to(device)
    tokens = torch.zeros(batch, shape.context, dtype=torch.long, device=device)
    with FlopCounterMode(display=False) as counter:
        logits = model(tokens)
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    by_operation = counter.get_flop_counts()["Global"]
    of_attention = sum(n for op, n in by_operation.items() if "bmm" in str(op) or "scaled_dot" in str(op))
    return counter.get_total_flops(), of_attention


@pytest.mark.parametrize("shape", [preset("lecture").shape, Shape(96, 3, 6, 500, 64, d_ff=200, positions="rotary")])
def test_training_flops_are_the_profilers_to_the_last_operation(shape):
    total, of_attention = profiled(shape, batch=2)
    parts, tokens = flops_per_token(shape), 2 * shape.context
    assert of_attention == parts.attention * tokens  # 12 L T d a token: the mask hides, it saves no work
    assert total == parts.total * tokens


def test_6nd_of_gpt3_is_the_profilers_within_one_per_cent(monkeypatch):
    """GPT-3's shape, untied, on the meta device: every operation runs, no number is computed."""
    monkeypatch.setattr(model_module, "initialise", lambda model, seed: None)
    gpt3 = preset("gpt3").shape
    shape = Shape(gpt3.d_model, gpt3.n_layers, gpt3.n_heads, gpt3.vocab_size, gpt3.context)
    with torch.device("meta"):
        total, of_attention = profiled(shape, device="meta")
    N = count_parameters(shape).total
    assert total - of_attention == pytest.approx(training_flops(N, shape.context), rel=0.01)
    share = of_attention / training_flops(N, shape.context)
    assert share == pytest.approx(flops_per_token(shape).attention_share, rel=1e-12)
    assert 0.027 < share < 0.028  # named, and the reason why the total is further than 1 % from 6ND
    assert total == pytest.approx(training_flops(N, shape.context) * (1 + share), rel=0.01)


def test_6nd_of_the_lectures_model_misses_what_it_should():
    """6N counts embedding and positions, which multiply nothing: at this size they are a fifth of N."""
    shape = preset("lecture").shape
    total, of_attention = profiled(shape)
    counted = count_parameters(shape)
    looked_up = counted.token_embedding + counted.positions + counted.norms
    assert (total - of_attention) / shape.context == 6 * (counted.total - looked_up)
    assert looked_up / counted.total == pytest.approx(0.18, abs=0.005)


def test_tying_the_head_changes_parameters_and_no_work():
    """A head that is the embedding's own matrix: the same products, fewer arrays."""
    shape = Shape(48, 1, 2, 301, 16)
    with torch.no_grad():
        untied, tied = (Transformer(shape, attention="explicit") for _ in range(2))
        tied.head.weight = tied.token_embedding.weight
        counts = []
        for model in (untied, tied):
            with FlopCounterMode(display=False) as counter:
                model(torch.zeros(1, 16, dtype=torch.long))
            counts.append((counter.get_total_flops(), sum(p.numel() for p in model.parameters())))
    tied_shape = Shape(48, 1, 2, 301, 16, tied=True)
    assert counts[0][0] == counts[1][0] == flops_per_token(tied_shape).total * 16 / 3
    assert counts[0][1] - counts[1][1] == 301 * 48
    assert counts[1][1] == count_parameters(tied_shape).total


def test_a_cached_step_multiplies_n_d_and_reads_the_cache_that_is_counted():
    shape = Shape(16, 2, 4, 11, 64)
    model, past = Transformer(shape, attention="explicit"), Cache()
    with torch.no_grad():
        model(torch.zeros(1, 40, dtype=torch.long), cache=past)
        with Operations() as seen:
            model(torch.zeros(1, 1, dtype=torch.long), cache=past)
    assert [m for name, m, _ in seen.products if name == "bmm"] == [41 * 16] * 4
    kept = sum(tensor.numel() * tensor.element_size() for pair in past.keys_values for tensor in pair)
    assert kept == attention_memory(shape, tokens=41, bytes_per_value=4).kv_cache


def test_generation_with_a_cache_does_the_work_of_each_token_once():
    shape = Shape(16, 2, 4, 11, 64)
    model, work = Transformer(shape, attention="explicit"), {}
    for cache in (True, False):
        with FlopCounterMode(display=False) as counter:
            list(generate(model, [1], 60, cache=cache))
        work[cache] = counter.get_total_flops()
    weights = 2 * count_parameters(shape).matmul_active
    attention = 2 * 2 * 2 * 16  # layers, scores and mixing, two FLOPs, d: for each pair of tokens
    steps = range(1, 61)
    assert work[True] == sum(weights + attention * n for n in steps)
    assert work[False] == sum(n * weights + attention * n * n for n in steps)
    assert math.isclose(work[False] / work[True], 30, rel_tol=0.25)
