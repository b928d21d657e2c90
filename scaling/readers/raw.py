"""From a path, a glob, a folder or standard input to raw tables: undo gzip and encodings."""

import gzip
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaling.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

TABLE_SUFFIXES = (".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".parquet", ".pq")
STDIN = "-"


@dataclass
class RawTable:
    """One file as it stands: columns under their own headers, and where each row stands in the file."""

    name: str
    frame: "pd.DataFrame"
    lines: "np.ndarray"  # 1-based: line numbers with the header as line 1, or record numbers
    unit: str = "line"  # "line" or "record"
    comma_decimals: bool = False  # whether a comma can be a decimal mark, as in text delimited by ";"
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    files: list[str] | None = None  # of each row, where several files with the same columns were joined

    def place(self, position: int) -> str:
        """Where a row stands, for a message."""
        return f"{self.files[position] if self.files else self.name} {self.unit} {self.lines[position]}"

    def sources(self) -> list[str]:
        """The files that it was read from."""
        return list(dict.fromkeys(self.files)) if self.files else [self.name]


def read_tables(sources: Any) -> list[RawTable]:
    """Read every file that `sources` names: a path, a glob, a folder, "-", a tracker address, or a sequence of these.

    A DataFrame is a table as well. Files with the same columns are joined into one. Raises InputError for a source that
    is missing, unreadable, empty or in no known format.
    """
    if hasattr(sources, "to_numpy"):
        return [_from_frame(sources)]
    names = [sources] if isinstance(sources, str | Path) else list(sources)
    if not names:
        raise InputError("no input: give a table of runs, for example runs.csv.")
    tables: list[RawTable] = []
    for name in names:
        tables.extend(_read_source(str(name)))
    return _join_alike(tables)


def _from_frame(frame: "pd.DataFrame") -> RawTable:
    import numpy as np

    if frame.empty:
        raise InputError("the DataFrame has no rows.")
    columns = [str(column) for column in frame.columns]
    return RawTable(
        "DataFrame", frame.reset_index(drop=True).set_axis(columns, axis=1), np.arange(len(frame)) + 1, "row"
    )


def _join_alike(tables: list[RawTable]) -> list[RawTable]:
    """Tables with the same columns and remarks as one, so that a thousand files cost little more than one."""
    if len(tables) < 2:
        return tables
    alike: dict[Any, list[RawTable]] = {}
    for table in tables:
        key = (*table.frame.columns, table.unit, table.comma_decimals, *table.notes, *table.warnings)
        alike.setdefault(key, []).append(table)
    return [_join(group) if len(group) > 1 else group[0] for group in alike.values()]


def _join(tables: list[RawTable]) -> RawTable:
    import numpy as np
    import pandas as pd

    first = tables[0]
    frame = pd.concat([table.frame.astype(object) for table in tables], ignore_index=True)
    files = [table.name for table in tables for _ in range(len(table.frame))]
    lines = np.concatenate([table.lines for table in tables])
    name = f"{first.name} and {len(tables) - 1} more files"
    return RawTable(name, frame, lines, first.unit, first.comma_decimals, first.notes, first.warnings, files)


def _read_source(name: str) -> list[RawTable]:
    from scaling.readers import trackers

    if trackers.is_address(name):
        return [trackers.read_address(name)]
    if trackers.is_event_folder(name):
        return [trackers.read_address(f"tensorboard:{name}")]
    if name == STDIN:
        return [parse_bytes("standard input", sys.stdin.buffer.read())]
    return [parse_bytes(str(path), read_file(path)) for path in find_files(name)]


def find_files(name: str) -> list[Path]:
    """The files behind a path, a glob or a folder of one file per run, in the order of their names."""
    path = Path(name)
    try:
        if path.is_dir():
            return _files_in_folder(path)
        if path.exists():
            return [path]
    except (OSError, ValueError) as error:  # a name too long or with a NUL
        raise InputError(f"{name[:80]}: cannot be opened ({getattr(error, 'strerror', None) or error}).") from error
    if any(mark in name for mark in "*?["):
        found = _glob(name)
        if not found:
            raise InputError(f"{name}: no file matches this pattern.")
        return found
    raise InputError(f"{name}: no such file.")


def _glob(pattern: str) -> list[Path]:
    import glob

    return [path for path in map(Path, sorted(glob.glob(pattern, recursive=True))) if path.is_file()]


def _files_in_folder(folder: Path) -> list[Path]:
    """The tables in a folder of one file per run. A folder that holds one table only is refused with its name."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and is_table_name(path.name))
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed ({error.strerror or error}).") from error
    own = [path for path in files if path.name == "runs.csv"]
    if own or len(files) == 1:
        raise InputError(f"{folder} is a folder; give the table in it: {(own or files)[0]}.")
    if not files:
        raise InputError(f"{folder} is a folder without tables ({', '.join(TABLE_SUFFIXES)}); give a file.")
    return files


def is_table_name(name: str) -> bool:
    """Whether a file name ends as a table's does, compressed or not."""
    return name.lower().removesuffix(".gz").endswith(TABLE_SUFFIXES) and not name.startswith(".")


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises InputError with the reason of the operating system."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from error


def parse_bytes(name: str, data: bytes) -> RawTable:
    """One table from the content of one file; what it is shows in its first bytes, not in its name."""
    if data[:2] == b"\x1f\x8b":
        data = _gunzip(name, data)
    if data[:4] == b"PAR1":
        from scaling.readers.records import parse_parquet

        return parse_parquet(name, data)
    if data[:4] == b"PK\x03\x04":
        raise InputError(f"{name}: this is a zip archive or a spreadsheet. Save the sheet as CSV and give that.")
    notes: list[str] = []
    text = decode_text(name, data, notes)
    if not text or text.isspace():
        raise InputError(f"{name}: the file is empty.")
    table = _parse_text(name, text)
    table.notes[:0] = notes
    return table


def _parse_text(name: str, text: bytes) -> RawTable:
    from scaling.readers.delimited import parse_delimited
    from scaling.readers.exports import read_export
    from scaling.readers.records import parse_json

    if text.lstrip()[:1] in (b"{", b"["):
        return parse_json(name, text)
    return read_export(parse_delimited(name, text))


def _gunzip(name: str, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name}: the gzip data is truncated or damaged ({error}). Copy the file again.") from error


def decode_text(name: str, data: bytes, notes: list[str]) -> bytes:
    r"""UTF-8 bytes with "\n" line ends, from UTF-8, UTF-16 with a byte-order mark, or Windows-1252."""
    wide = _utf16(data)
    if wide:
        try:
            data = data.decode(wide).encode("utf-8")
        except UnicodeError as error:
            raise InputError(f"{name}: starts like UTF-16 text but is not ({error}).") from error
        notes.append("decoded from UTF-16")
    data = data.removeprefix(b"\xef\xbb\xbf")
    zero = data.find(b"\x00")
    if zero >= 0:
        raise InputError(f"{name}: byte {zero} is zero: a binary file, not a table. Export it as CSV or JSON.")
    data = _to_utf8(name, data, notes)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data


def _utf16(data: bytes) -> str:
    """The UTF-16 codec of a text, by its byte-order mark or by zeros in every other byte; "" for other data."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    start = data[:64]
    for codec, first in (("utf-16-le", 1), ("utf-16-be", 0)):
        if len(start) >= 8 and not any(start[first::2]) and all(start[1 - first :: 2]):
            return codec
    return ""


def _to_utf8(name: str, data: bytes, notes: list[str]) -> bytes:
    try:
        data.decode("utf-8")
        return data
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} line {line}: bytes that are neither UTF-8 nor Windows-1252 text.") from error
    notes.append(f"decoded from Windows-1252 (line {line} is not UTF-8)")
    return text.encode("utf-8")
