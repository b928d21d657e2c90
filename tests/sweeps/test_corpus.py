"""The corpus: what is gathered, how it is split, and what is refused."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scaling.errors import InputError
from sweeps.corpus import load_corpus

sys.path.insert(0, str(Path(__file__).parent))
from text_for_tests import write_files  # noqa: E402


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_the_parts_hold_every_document_once_and_share_none(tmp_path, cache):
    folder = write_files(tmp_path / "texts")
    corpus = load_corpus(f"text:{folder}", cache_dir=cache)
    train, validation = (set(bytes(part).split(b"\0")) - {b""} for part in (corpus.train, corpus.validation))
    documents = {path.read_bytes() for path in folder.iterdir()}
    assert train | validation == documents and not train & validation
    assert len(validation) >= 2
    assert corpus.n_files == corpus.n_documents == 40
    assert corpus.unique_tokens == len(corpus.train)


def test_copies_are_trained_on_once_and_counted(tmp_path, cache):
    folder = write_files(tmp_path / "texts")
    (folder / "copy.txt").write_bytes((folder / "part000.txt").read_bytes())
    corpus = load_corpus(f"text:{folder}", cache_dir=cache)
    assert (corpus.n_files, corpus.n_documents, corpus.n_duplicates) == (41, 40, 1)


def test_a_near_duplicate_of_a_training_document_is_not_validated_on(tmp_path, cache):
    folder = write_files(tmp_path / "texts")
    plain = load_corpus(f"text:{folder}", cache_dir=cache)
    held_out = bytes(plain.validation).split(b"\0")[0]
    for number in range(30):  # near-copies of a held-out document: some of them, or it, would be held out
        (folder / f"near{number}.txt").write_bytes(held_out + b"\nanother ending %d" % number)
    corpus = load_corpus(f"text:{folder}", cache_dir=cache)
    assert corpus.n_near_duplicates > 0
    assert not any(held_out in document for document in bytes(corpus.validation).split(b"\0"))


def test_the_hash_follows_the_content_and_not_the_place(tmp_path, cache):
    a, b = write_files(tmp_path / "a"), write_files(tmp_path / "b")
    first, second = (load_corpus(f"text:{folder}", cache_dir=cache) for folder in (a, b))
    assert first.hash == second.hash and np.array_equal(first.validation, second.validation)
    (b / "part003.txt").write_text("another text altogether, of no great length, but different")
    assert load_corpus(f"text:{b}", cache_dir=cache).hash != first.hash


def test_the_cache_is_used_and_mapped(tmp_path, cache, monkeypatch):
    spec = f"text:{write_files(tmp_path / 'texts')}"
    first = load_corpus(spec, cache_dir=cache)
    monkeypatch.setattr("sweeps.corpus._write_parts", lambda *args: pytest.fail("built a second time"))
    second = load_corpus(spec, cache_dir=cache)
    assert second == first and isinstance(second.train, np.memmap)
    assert np.array_equal(second.hardness, first.hardness)


def test_a_damaged_cache_is_named(tmp_path, cache):
    spec = f"text:{write_files(tmp_path / 'texts')}"
    corpus = load_corpus(spec, cache_dir=cache)
    (corpus.folder / "train.bin").write_bytes(b"short")
    with pytest.raises(InputError, match="another length.*Delete that folder"):
        load_corpus(spec, cache_dir=cache)


def test_hardness_is_the_mean_of_what_counted_pairs_and_triples_say(tmp_path, cache, monkeypatch):
    monkeypatch.setattr("sweeps.corpus._COUNTED_AT_ONCE", 1000)  # many parts: none may lose what spans two
    corpus = load_corpus(f"text:{write_files(tmp_path / 'texts')}", cache_dir=cache)
    text, held_out = bytes(corpus.train), bytes(corpus.validation)
    for i in (2, 100, len(held_out) - 1):
        before, this = held_out[i - 2 : i], held_out[i : i + 1]
        pair = (occurrences(text, before[1:] + this) + 0.1) / (occurrences(text[:-1], before[1:]) + 25.6)
        triple = (occurrences(text, before + this) + 4 * pair) / (occurrences(text[:-1], before) + 4)
        assert corpus.hardness[i] == pytest.approx(-(math.log(pair) + math.log(triple)) / 2, rel=1e-3)
    assert corpus.hardness[0] == 0 and len(corpus.hardness) == len(held_out)


def occurrences(text: bytes, part: bytes) -> int:
    return sum(text.startswith(part, i) for i in range(len(text)))


def test_json_lines_and_parquet_give_their_text(tmp_path, cache):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = write_files(tmp_path / "texts")
    texts = [path.read_text() for path in sorted(folder.iterdir())]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"id": i, "text": text}) for i, text in enumerate(texts)))
    parquet.write_table(pyarrow.table({"n": range(len(texts)), "text": texts}), tmp_path / "a.parquet")
    places = (folder, tmp_path / "a.jsonl", tmp_path / "a.parquet")
    hashes = {load_corpus(f"text:{place}", cache_dir=cache).hash for place in places}
    assert len(hashes) == 1


def test_a_single_file_is_cut_into_documents(tmp_path, cache):
    folder = write_files(tmp_path / "texts")
    whole = "\n".join(path.read_text() for path in sorted(folder.iterdir()))
    (tmp_path / "one.txt").write_text(whole)
    corpus = load_corpus(f"text:{tmp_path / 'one.txt'}", cache_dir=cache)
    assert corpus.n_documents > 20
    assert 0.05 < len(corpus.validation) / len(whole) < 0.15
    assert load_corpus(f"text:{tmp_path}/on*.txt", cache_dir=cache).hash == corpus.hash  # a glob of that file


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pythn", 'unknown corpus "pythn". Known: "python", "text:PATH"'),
        ("text:", "unknown corpus"),
        ("text:{tmp}/absent.txt", "no such file or folder"),
        ("text:{tmp}/empty", "the folder holds no text"),
        ("text:{tmp}/tiny.txt", "needs at least 1,024"),
        ("text:{tmp}/bad.jsonl", r"bad.jsonl line 2: not JSON"),
        ("text:{tmp}/nofield.jsonl", r"nofield.jsonl line 1: no text in it. Known fields: text"),
        ("text:{tmp}/bad.parquet", "not a Parquet file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, cache, spec, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "tiny.txt").write_text("short")
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    (tmp_path / "nofield.jsonl").write_text('{"words": "none"}\n')
    (tmp_path / "bad.parquet").write_text("PAR")
    with pytest.raises(InputError, match=message):
        load_corpus(spec.format(tmp=tmp_path), cache_dir=cache)
    assert not cache.exists() or not any(cache.iterdir())  # nothing half-built stays


def test_the_standard_library_is_a_corpus(cache):
    corpus = load_corpus("python", cache_dir=cache)
    assert len(corpus.train) > 5_000_000 and len(corpus.validation) > 500_000
    assert b"def " in bytes(corpus.validation[:100_000])


def test_loading_a_corpus_imports_no_torch(tmp_path):
    code = "import sys, sweeps.corpus, sweeps.recipe, sweeps.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
