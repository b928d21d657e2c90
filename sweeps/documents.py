"""Where text comes from: the documents of "python" and of "text:PATH" (files, folders, globs, JSONL, Parquet)."""

import glob
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scaling.errors import InputError

TEXT_SUFFIXES = frozenset(
    ".txt .text .md .markdown .rst .tex .org .adoc .html .htm .xml .csv .tsv .json .yaml .yml .toml .ini .cfg "
    ".py .pyi .c .h .cc .cpp .hpp .rs .go .java .js .ts .jsx .tsx .rb .pl .sh .r .jl .scala .kt .lua .sql".split()
)
RECORD_SUFFIXES = frozenset((".jsonl", ".ndjson", ".parquet"))
TEXT_FIELDS = ("text", "content", "document", "body")  # the first one present in a record or table is read
_SKIPPED_FOLDERS = frozenset(("site-packages", "dist-packages", "__pycache__", "node_modules"))
_BLOCK = 65536  # a file that stands alone is cut into documents of about this many bytes


@dataclass(frozen=True)
class SourceFile:
    """One file on disk, with what tells whether it changed."""

    path: Path
    size: int
    mtime_ns: int


def list_sources(spec: str) -> list[SourceFile]:
    """The files of a corpus specification, sorted by path.

    Raises InputError for an unknown specification, a missing path, or a path without readable text.
    """
    if spec == "python":
        return _walk(Path(sysconfig.get_paths()["stdlib"]), frozenset((".py",)))
    kind, _, where = spec.partition(":")
    if kind != "text" or not where:
        raise InputError(f'corpus: unknown corpus "{spec}". Known: "python", "text:PATH" (a file, folder or glob).')
    path = Path(os.path.expanduser(where))
    if path.is_dir():
        files = _walk(path, TEXT_SUFFIXES | RECORD_SUFFIXES)
    elif path.is_file():
        files = [_source(path)]
    else:
        names = sorted(glob.glob(str(path), recursive=True))
        files = [_source(Path(name)) for name in names if os.path.isfile(name)]
        if not files:
            raise InputError(f"corpus: {where}: no such file or folder, and no file matches it.")
    if not files:
        kinds = ", ".join(sorted(RECORD_SUFFIXES)) + ", .txt, .md, .rst, .py and other text"
        raise InputError(f"corpus: {where}: the folder holds no text. Files read: {kinds}.")
    return files


def read_documents(source: SourceFile, *, alone: bool) -> Iterator[bytes]:
    """The documents of one file: the records of JSONL and Parquet, else the file itself.

    With `alone` (the corpus is this one file) plain text is cut at line ends into blocks, so that it can be split.
    """
    suffix = source.path.suffix.lower()
    try:
        if suffix in (".jsonl", ".ndjson"):
            yield from _json_lines(source.path)
        elif suffix == ".parquet":
            yield from _parquet_rows(source.path)
        elif alone:
            yield from _blocks(source.path, max(2048, min(_BLOCK, source.size // 200)))
        else:
            yield source.path.read_bytes()
    except OSError as error:
        raise InputError(f"corpus: {source.path}: cannot be read ({error.strerror or error}).") from error


def _source(path: Path) -> SourceFile:
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"corpus: {path}: cannot be read ({error.strerror or error}).") from error
    return SourceFile(path, stat.st_size, stat.st_mtime_ns)


def _walk(root: Path, suffixes: frozenset[str]) -> list[SourceFile]:
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith("."))
        paths = [Path(folder, name) for name in names if not name.startswith(".")]
        files += [_source(path) for path in paths if path.suffix.lower() in suffixes and path.is_file()]
    return sorted(files, key=lambda source: str(source.path))


def _json_lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _json_text(path, number, line).encode()


def _json_text(path: Path, number: int, line: bytes) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f"corpus: {path} line {number}: not JSON ({error}).") from error
    texts = [record[field] for field in TEXT_FIELDS if field in record] if isinstance(record, dict) else [record]
    if not texts or not isinstance(texts[0], str):
        raise InputError(f"corpus: {path} line {number}: no text in it. Known fields: {', '.join(TEXT_FIELDS)}.")
    return texts[0]


def _parquet_rows(path: Path) -> Iterator[bytes]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f'corpus: {path}: Parquet needs pyarrow: pip install "isoflop[parquet]".') from error
    try:
        table = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, ValueError) as error:
        raise InputError(f"corpus: {path}: not a Parquet file ({error}).") from error
    with table:
        columns = [name for name in TEXT_FIELDS if name in table.schema_arrow.names]
        if not columns:
            names = ", ".join(table.schema_arrow.names)
            raise InputError(f"corpus: {path}: no text column among {names}. Known: {', '.join(TEXT_FIELDS)}.")
        for batch in table.iter_batches(columns=columns[:1]):
            for value in batch.column(0).to_pylist():
                if value is not None and not isinstance(value, str | bytes):
                    raise InputError(f"corpus: {path}: column {columns[0]} holds {type(value).__name__}, not text.")
                yield value.encode() if isinstance(value, str) else (value or b"")


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(size):
            yield block if block.endswith(b"\n") else block + file.readline(size)
