"""A corpus of bytes: gathered, de-duplicated, split by document, cached as memory-mapped arrays. Torch-free.

Documents are compared whole; of equal ones the first is kept. A keyed hash of each document's content decides its
side, so the split moves neither with file names nor with the machine. A document whose lines stand for the most part in
a training document as well is a near-duplicate and never serves for validation.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scaling.errors import InputError
from sweeps.documents import SourceFile, list_sources, read_documents

FORMAT = 5  # of the cache; raise it when the split or the layout changes
VALIDATION_FRACTION = 0.1
VALIDATION_BYTES = 3_000_000  # at most: 23,000 windows of 128 bytes
END_OF_DOCUMENT = b"\0"
NEAR_DUPLICATE = 0.5  # share of a document's long lines that also stand in training documents
PARTS = ("train", "validation")
_PRIOR = 4.0  # counts
_COUNTED_AT_ONCE = 1 << 22  # bytes
_LONG_LINE = 24  # shorter lines ("return None", "else:") are everyone's


@dataclass(frozen=True)
class Corpus:
    """Byte tokens in two parts that share no document. `train` and `validation` are read-only memory maps."""

    name: str
    hash: str  # of the content of both parts: 16 hex digits
    train: np.ndarray = field(repr=False, compare=False)  # (n,) uint8
    validation: np.ndarray = field(repr=False, compare=False)  # (m,) uint8
    hardness: np.ndarray = field(repr=False, compare=False)  # (m,) float16: of each byte of `validation`, see `_hardness`
    n_files: int
    n_documents: int
    n_duplicates: int  # whole-document copies left out
    n_near_duplicates: int  # kept out of validation, and trained on
    folder: Path
    tokenizer: str = "bytes"
    vocab_size: int = 256
    bytes_per_token: float = 1.0

    @property
    def unique_tokens(self) -> int:
        """Tokens of the training part: more than these in a run are repetition."""
        return len(self.train)


def load_corpus(spec: str, *, cache_dir: str | os.PathLike | None = None) -> Corpus:
    """The corpus of a specification, "python" or "text:PATH", built on first use and mapped from the cache afterwards.

    "python" is the standard library's own .py sources of the running interpreter, without site-packages. PATH is a
    file, a folder or a glob of text, JSONL or Parquet. The cache lies in `cache_dir`, else in $XDG_CACHE_HOME/isoflop,
    else in ~/.cache/isoflop; it is rebuilt whenever a source file's size or time changed.

    Raises InputError when nothing can be read, or when the text is too short to split.
    """
    sources = list_sources(spec)
    base = Path(cache_dir) if cache_dir is not None else default_cache()
    folder = base / f"{spec.partition(':')[0]}-{_fingerprint(spec, sources)}"
    if not (folder / "meta.json").is_file():
        _build(spec, sources, folder)
    return _open(spec, folder)


def default_cache() -> Path:
    """$XDG_CACHE_HOME/isoflop, else ~/.cache/isoflop."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isoflop"


def _fingerprint(spec: str, sources: list[SourceFile]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {spec}".encode())
    for source in sources:
        digest.update(f"{source.path.absolute()}\0{source.size}\0{source.mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _open(spec: str, folder: Path) -> Corpus:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        hardness = np.load(folder / "hardness.npy", mmap_mode="r", allow_pickle=False)
        files = (folder / f"{part}.bin" for part in PARTS)
        train, validation = (np.memmap(file, dtype=np.uint8, mode="r") for file in files)
        lengths = (meta["train_bytes"], meta["validation_bytes"], meta["validation_bytes"])
        if (len(train), len(validation), len(hardness)) != lengths:
            raise ValueError("a part has another length than its record says")
        counts = {name: meta[name] for name in ("n_files", "n_documents", "n_duplicates", "n_near_duplicates")}
        arrays = {"train": train, "validation": validation, "hardness": hardness}
        return Corpus(name=spec, hash=meta["hash"], folder=folder, **arrays, **counts)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"corpus: the cache {folder} cannot be read ({error}). Delete that folder.") from error


def _build(spec: str, sources: list[SourceFile], folder: Path) -> None:
    """Write the cache beside its place, then rename: whoever comes second keeps the first one's."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise InputError(f"corpus: cannot write a cache in {folder.parent} ({error.strerror or error}).") from error
    try:
        meta = _write_parts(spec, sources, temporary)
        train, validation = (np.memmap(temporary / f"{part}.bin", dtype=np.uint8, mode="r") for part in PARTS)
        np.save(temporary / "hardness.npy", _hardness(train, validation))
        (temporary / "meta.json").write_text(json.dumps(meta, indent=2))
        os.rename(temporary, folder)
    except OSError as error:
        if not (folder / "meta.json").is_file():
            raise InputError(f"corpus: cannot write the cache {folder} ({error.strerror or error}).") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_parts(spec: str, sources: list[SourceFile], folder: Path) -> dict:
    keys = [hashlib.blake2b(document, digest_size=16).digest() for document in _documents(sources)]
    sizes = [len(document) for document in _documents(sources)]
    kept = _first_of_each(keys, sizes)
    chosen = _choose_validation(keys, sizes, kept)
    near = _near_duplicates(sources, kept, chosen)
    chosen -= near
    digest = hashlib.sha256(b"bytes")
    written = {"train": 0, "validation": 0}
    with open(folder / "train.bin", "wb") as train, open(folder / "validation.bin", "wb") as validation:
        for index, document in enumerate(_documents(sources)):
            if index in kept:
                part, file = ("validation", validation) if index in chosen else ("train", train)
                written[part] += file.write(document) + file.write(END_OF_DOCUMENT)
                digest.update(part.encode() + keys[index])
    if min(written.values()) < 1024:
        raise InputError(
            f"corpus: {spec}: {sum(written.values()):,} bytes leave {written['train']:,} to train on and "
            f"{written['validation']:,} to validate on; each part needs at least 1,024. Give more text."
        )
    return {
        "spec": spec,
        "hash": digest.hexdigest()[:16],
        "train_bytes": written["train"],
        "validation_bytes": written["validation"],
        "n_files": len(sources),
        "n_documents": len(kept),
        "n_duplicates": sum(size > 0 for size in sizes) - len(kept),
        "n_near_duplicates": len(near),
    }


def _hardness(train: np.ndarray, validation: np.ndarray) -> np.ndarray:
    """How hard each byte of `validation` is, roughly, (m,) float16: the mean of two tables' -log p(byte | before it).

    One counts pairs of `train`, with a tenth of a count added everywhere; the other triples, with `_PRIOR` counts as the
    pairs have it. The first byte of all has neither and counts as zero.
    """
    pairs, triples = np.zeros(256**2), np.zeros(256**3, dtype=np.int32)
    for start in range(0, len(train), _COUNTED_AT_ONCE):
        part = train[max(0, start - 2) : start + _COUNTED_AT_ONCE].astype(np.int32)
        new = part if start == 0 else part[1:]
        pairs += np.bincount(new[:-1] * 256 + new[1:], minlength=256**2)
        np.add.at(triples, (part[:-2] * 256 + part[1:-1]) * 256 + part[2:], 1)
    table = pairs.reshape(256, 256) + 0.1
    after_one = (table / table.sum(axis=1, keepdims=True)).ravel()
    contexts = triples.reshape(-1, 256).sum(axis=1)
    text = validation.astype(np.int32)
    last_two = text[:-1] * 256 + text[1:]
    p = after_one[last_two]  # of the bytes from the second
    hardness = np.zeros(len(text))
    hardness[1:] = -np.log(p)
    seen = triples[last_two[:-1] * 256 + text[2:]]
    p = (seen + _PRIOR * p[1:]) / (contexts[last_two[:-1]] + _PRIOR)  # of the bytes from the third
    hardness[2:] = (hardness[2:] - np.log(p)) / 2
    return hardness.astype(np.float16)


def _documents(sources: list[SourceFile]) -> Iterator[bytes]:
    for source in sources:
        yield from read_documents(source, alone=len(sources) == 1)


def _first_of_each(keys: list[bytes], sizes: list[int]) -> set[int]:
    first: dict[bytes, int] = {}
    for index, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        if size:
            first.setdefault(key, index)
    return set(first.values())


def _choose_validation(keys: list[bytes], sizes: list[int], kept: set[int]) -> set[int]:
    """Documents in the order of their hashes until a tenth of the bytes, or three million, are reached.

    So that many documents speak, none larger than an eighth of that is taken; where such do not make up three times as
    much, larger ones are too.
    """
    target = min(VALIDATION_BYTES, VALIDATION_FRACTION * sum(sizes[i] for i in kept))
    order = sorted(kept, key=lambda index: keys[index])
    largest = target / 8
    while sum(sizes[i] for i in order if sizes[i] <= largest) < 3 * target:
        largest *= 2
    chosen: set[int] = set()
    total = 0
    for index in order[: len(order) // 2]:
        if sizes[index] > largest:
            continue
        if total + sizes[index] / 2 > target:
            break
        chosen.add(index)
        total += sizes[index]
    return chosen


def _near_duplicates(sources: list[SourceFile], kept: set[int], chosen: set[int]) -> set[int]:
    """Of the chosen documents those most of whose long lines also stand in documents that are not chosen."""
    lines = {i: _long_lines(document) for i, document in enumerate(_documents(sources)) if i in chosen}
    wanted = set().union(*lines.values()) if lines else set()
    seen: set[int] = set()
    for index, document in enumerate(_documents(sources)):
        if index in kept and index not in chosen:
            seen |= wanted & _long_lines(document)
    return {i for i, own in lines.items() if own and len(own & seen) > NEAR_DUPLICATE * len(own)}


def _long_lines(document: bytes) -> set[int]:
    return {hash(line.strip()) for line in document.split(b"\n") if len(line) >= _LONG_LINE}
