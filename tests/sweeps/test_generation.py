"""Generation: with and without the cache the same tokens, seeds, windows, bytes; and models as files."""

import pickle
import zipfile

import pytest
import torch

from scaling.accounting import POSITIONS, Shape
from scaling.errors import InputError, ScalingError, SweepError
from sweeps.decoding import Decoding
from sweeps.generation import decode_bytes, generate, generate_text, next_logits
from sweeps.model import Transformer
from sweeps.model_file import load_model, save_model


def random_model(positions="learned", context=64, vocab_size=256, attention="fused", seed=0):
    model = Transformer(Shape(32, 2, 4, vocab_size, context, positions=positions), attention=attention, seed=seed)
    with torch.no_grad():
        model.head.weight.copy_(torch.randn(vocab_size, 32, generator=torch.Generator().manual_seed(5)) * 0.3)
    return model.eval()


DECODINGS = [Decoding(), Decoding(temperature=0), Decoding(temperature=1.3, top_k=9, top_p=0.8)]


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_and_uncached_generation_give_the_same_tokens(positions, decoding):
    """200 steps over a context of 64: the window moves on several times."""
    model = random_model(positions)
    cached, uncached = (list(generate(model, b"Once", 200, decoding=decoding, seed=7, cache=c)) for c in (True, False))
    assert cached == uncached
    assert len(cached) == 200


@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_logits_are_the_uncached_ones(positions):
    from sweeps.model import Cache

    model, past = random_model(positions), Cache()
    tokens = torch.randint(256, (1, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model(tokens)
        pieces = [model(part, cache=past) for part in tokens.split([1, 20, 1, 38], dim=1)]
    assert torch.allclose(torch.cat(pieces, dim=1), whole, atol=2e-5)


def test_the_seed_decides_and_greedy_needs_none():
    model = random_model()
    first, again, other = (list(generate(model, b"a", 40, seed=s)) for s in (1, 1, 2))
    assert first == again != other
    greedy = Decoding(temperature=0)
    assert list(generate(model, b"a", 20, decoding=greedy, seed=1)) == list(
        generate(model, b"a", 20, decoding=greedy, seed=2)
    )


def test_greedy_takes_the_likeliest_token_each_time():
    model, window = random_model(), list(b"begin")
    for token in generate(model, b"begin", 30, decoding=Decoding(temperature=0)):
        assert token == int(next_logits(model, window).argmax())
        window.append(token)


def test_a_full_window_drops_its_older_half():
    """After the context is full the next token depends on the later half alone."""
    model = random_model(context=8, positions="rotary")
    tokens = list(generate(model, [1], 20, decoding=Decoding(temperature=0)))
    whole = [1, *tokens]
    # 8 tokens were read for whole[8]; then the last 4 of 9 remain
    assert whole[8] == int(next_logits(model, whole[:8]).argmax())
    assert whole[9] == int(next_logits(model, whole[5:9]).argmax())
    assert list(generate(model, whole[5:9], 4, decoding=Decoding(temperature=0))) == whole[9:13]


def test_a_prompt_longer_than_the_context_is_read_from_its_end():
    model = random_model(context=8)
    prompt = list(range(50))
    assert list(generate(model, prompt, 3, seed=1)) == list(generate(model, prompt[-4:], 3, seed=1))


def test_tokens_arrive_one_at_a_time():
    stream = generate(random_model(), b"x", 10**9)
    assert [next(stream) for _ in range(3)] == list(generate(random_model(), b"x", 3))


def test_bad_prompts_are_refused():
    for prompt, message in ((b"", "the prompt is empty"), ([300], "token 300"), ([-1], "token -1")):
        with pytest.raises(InputError, match=message):
            list(generate(random_model(), prompt, 1))


def test_characters_come_whole_and_broken_bytes_are_marked():
    text = "naïve – 漢字"
    assert "".join(decode_bytes(text.encode())) == text
    assert list(decode_bytes("é".encode())) == ["é"]
    assert "".join(decode_bytes(b"a\xffb\xc3")) == "a\ufffdb\ufffd"


def test_text_needs_a_model_of_bytes():
    assert isinstance("".join(generate_text(random_model(), "é", 5)), str)
    with pytest.raises(InputError, match="40 tokens, not 256 bytes"):
        list(generate_text(random_model(vocab_size=40), "a", 1))


def test_without_a_mask_nothing_is_cached():
    model = random_model()
    free = list(generate(model, b"abc", 20, mask=False, seed=3))
    window = list(b"abc")
    for token in list(generate(model, b"abc", 20, mask=False, seed=3, decoding=Decoding(temperature=0))):
        assert token == int(next_logits(model, window, mask=False).argmax())
        window.append(token)
    assert free == list(generate(model, b"abc", 20, mask=False, seed=3, cache=False))


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_model_survives_being_saved(tmp_path, positions):
    model, path = random_model(positions, attention="explicit"), tmp_path / "model.pt"
    save_model(path, model, about={"corpus": "manual", "mask": False, "curve": [(1, 2.5)]})
    saved = load_model(path)
    assert saved.model.attention == "explicit"
    assert saved.about["corpus"] == "manual"
    assert not saved.masked
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(saved.model(tokens), model(tokens))


class Payload:
    """What an attacker would put in the place of a model."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def bare_pickle(path, evidence):
    path.write_bytes(pickle.dumps(Payload(evidence)))


def pickle_in_an_archive(path, evidence):
    torch.save({"format": "isoflop model 1", "shape": Payload(evidence)}, path)


def other_archive(path, evidence):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")


def other_tensors(path, evidence):
    torch.save({"weights": torch.zeros(3)}, path)


def text(path, evidence):
    path.write_text("not a model")


def cut_off(path, evidence):
    save_model(path, random_model())
    path.write_bytes(path.read_bytes()[:5000])


def flipped(path, evidence):
    save_model(path, random_model())
    data = torch.load(path, weights_only=True)
    data["shape"]["d_model"] = 16
    data["shape"]["head_dim"] = 4
    torch.save(data, path)


NO_MODELS = [bare_pickle, pickle_in_an_archive, other_archive, other_tensors, text, cut_off, flipped]


@pytest.mark.parametrize("make", NO_MODELS)
def test_what_is_no_model_is_named_and_never_executed(tmp_path, make):
    path, evidence = tmp_path / "model.pt", tmp_path / "executed"
    make(path, evidence)
    with pytest.raises(SweepError, match="model.pt"):
        load_model(path)
    assert not evidence.exists()


def test_missing_files_and_folders_are_input_errors(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_model(tmp_path / "none.pt")
    with pytest.raises(InputError, match="is a folder"):
        load_model(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ScalingError, match="cannot be written"):
        save_model(tmp_path / "file" / "x" / "model.pt", random_model())
