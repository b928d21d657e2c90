"""Every format a table comes in: what it is shows in its bytes; a wrong one is one clear error with its place."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scaling.errors import InputError
from scaling.runs import read_runs

ROWS = [(1e6, 1e8, 3.5), (2e6, 2e8, 3.25), (4e6, 3e8, 3.0)]
CSV = "params,tokens,loss\n" + "".join(f"{n!r},{d!r},{loss!r}\n" for n, d, loss in ROWS)
RECORDS = [{"params": n, "tokens": d, "loss": loss} for n, d, loss in ROWS]


def write(folder: Path, name: str, content: bytes | str) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    return buffer.getvalue()


def rows_of(runs):
    return list(map(tuple, runs.table[["params", "tokens", "loss"]].to_numpy()))


SAME_TABLE = {
    "plain.csv": CSV,
    "byte_order_mark.csv": b"\xef\xbb\xbf" + CSV.encode(),
    "windows.csv": CSV.replace("\n", "\r\n"),
    "old_mac.csv": CSV.replace("\n", "\r"),
    "mixed_ends.csv": CSV.replace("\n", "\r\n", 2),
    "blank_lines.csv": "\n\n" + CSV.replace("\n", "\n\n"),
    "no_last_newline.csv": CSV.strip(),
    "tabs.tsv": CSV.replace(",", "\t"),
    "tabs_called.csv": CSV.replace(",", "\t"),
    "semicolons.csv": CSV.replace(",", ";"),
    "excel.csv": "sep=;\n" + CSV.replace(",", ";"),
    "bars.txt": CSV.replace(",", "|"),
    "quoted.csv": "\n".join(",".join(f'"{c}"' for c in line.split(",")) for line in CSV.split()),
    "comment.csv": "# a sweep of mine\n" + CSV,
    "empty_cells_below.csv": CSV + ",,\n,,\n",
    "trailing_delimiters.csv": "\n".join(line + "," for line in CSV.split()),
    "utf16.csv": CSV.encode("utf-16"),
    "utf16_without_mark.csv": CSV.encode("utf-16-be"),
    "packed.csv.gz": gzip.compress(CSV.encode()),
    "packed_but_named.csv": gzip.compress(CSV.encode()),
    "list.json": json.dumps(RECORDS),
    "wrapped.json": json.dumps({"project": "x", "runs": RECORDS}),
    "columns.json": json.dumps({k: [r[k] for r in RECORDS] for k in RECORDS[0]}),
    "pandas.json": pd.DataFrame(RECORDS).to_json(double_precision=15),
    "lines.jsonl": "\n".join(map(json.dumps, RECORDS)),
    "lines_packed.jsonl.gz": gzip.compress("\n".join(map(json.dumps, RECORDS)).encode()),
    "nested.json": json.dumps(
        [{"config": {"params": r["params"]}, "summary": {"tokens": r["tokens"], "loss": r["loss"]}} for r in RECORDS]
    ),
}


@pytest.mark.parametrize("name", SAME_TABLE)
def test_reads_the_same_table_from_every_format(tmp_path, name):
    assert rows_of(read_runs(write(tmp_path, name, SAME_TABLE[name]))) == ROWS


@pytest.mark.parametrize("name", ["runs.parquet", "renamed.csv"])
def test_reads_parquet_under_any_name(tmp_path, name):
    pytest.importorskip("pyarrow")
    assert rows_of(read_runs(write(tmp_path, name, parquet_bytes(pd.DataFrame(RECORDS))))) == ROWS


REFUSED = {
    "empty.csv": (b"", "the file is empty"),
    "blank.csv": (b" \n\n", "the file is empty"),
    "header_only.csv": (b"params,tokens,loss\n", "a header and no rows"),
    "no_header.csv": (b"1e6,1e8,3.5\n2e6,2e8,3.2\n", "line 1: numbers where column names are expected"),
    "short_row.csv": (CSV.encode() + b"5e6,1e9\n", "line 5: 2 cells, but the header names 3 columns"),
    "long_row.csv": (CSV.encode() + b"5e6,1e9,3.1,7\n", "line 5: 4 cells"),
    "unclosed_quote.csv": (CSV.encode() + b'5e6,1e9,"3.1\n', "line 5: a quote is opened here"),
    "two_losses.csv": (b"params,tokens,loss,loss\n1,2,3,4\n", 'line 1: two columns are called "loss"'),
    "binary.csv": (bytes(range(1, 256)) + b"\x00" * 9, "byte 255 is zero: a binary file"),
    "no_text.csv": (CSV.encode() + b"5e6,\x81\x8d,1\n", "line 5: bytes that are neither UTF-8 nor Windows-1252"),
    "sheet.xlsx": (b"PK\x03\x04" + b"\x00" * 30, "a zip archive or a spreadsheet"),
    "truncated.csv.gz": (gzip.compress(CSV.encode() * 50)[:50], "gzip data is truncated or damaged"),
    "damaged.parquet": (b"PAR1" + b"?" * 40 + b"PAR1", "damaged Parquet file"),
    "cut.json": (json.dumps(RECORDS)[:-20].encode(), "not JSON"),
    "cut.jsonl": (b'{"params": 1, "tokens": 2, "loss": 3}\n{"params": 1, "to', "line 2: not JSON"),
    "numbers.json": (b"[1, 2]", "record 1: expected an object, got 1"),
    "empty.json": (b"[]", "the list of runs is empty"),
    "deep.json": (b"[" * 100_000, "nested too deeply"),
    "doubled_key.json": (b'[{"params": 1, "params": 2, "tokens": 2, "loss": 3}]', '"params" stands twice'),
    "uneven.json": (b'{"params": [1, 2], "tokens": [2], "loss": [3, 3]}', "columns of different lengths"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_a_broken_file_with_its_place(tmp_path, name):
    content, message = REFUSED[name]
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(InputError) as caught:
        read_runs(write(tmp_path, name, content))
    assert message in str(caught.value) and name in str(caught.value)


def test_says_what_is_missing_for_parquet_without_its_library(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'isoflop\[parquet\]'"):
        read_runs(write(tmp_path, "runs.parquet", b"PAR1...."))


def test_row_is_the_line_of_the_record_even_after_quoted_line_breaks(tmp_path):
    text = 'params,tokens,loss,note\n1e6,1e8,3.5,"one\ntwo\nthree"\n\n2e6,2e8,3.25,plain\n'
    runs = read_runs(write(tmp_path, "notes.csv", text))
    assert runs.table["row"].tolist() == [2, 6]
    assert runs.table["note"].tolist() == ["one\ntwo\nthree", "plain"]


def test_windows_1252_text_is_said(tmp_path):
    runs = read_runs(
        write(
            tmp_path,
            "umlaut.csv",
            CSV.replace("loss", "loss,größe").replace("5\n", "5,1\n").replace("0\n", "0,2\n").encode("cp1252"),
        )
    )
    assert any("Windows-1252 (line 1" in note for note in runs.notes)


def test_globs_and_folders_join_files_with_their_source(tmp_path):
    for k, record in enumerate(RECORDS):
        write(tmp_path, f"run{k}.json", json.dumps(record))
    (tmp_path / "README.md").write_text("not a table")
    for source in (str(tmp_path), f"{tmp_path}/run*.json", [f"{tmp_path}/run{k}.json" for k in range(3)]):
        runs = read_runs(source)
        assert rows_of(runs) == ROWS
        assert [Path(s).name for s in runs.table["source"]] == ["run0.json", "run1.json", "run2.json"]
        assert len(runs.sources) == 3
    with pytest.raises(InputError, match="no row stands there"):
        read_runs(str(tmp_path), exclude=[f"{tmp_path}/run1.json record 2"])
    runs = read_runs(str(tmp_path), exclude=[f"{tmp_path}/run1.json record 1"])
    assert rows_of(runs) == [ROWS[0], ROWS[2]]
    write(tmp_path, "run3.json", json.dumps({"params": 1e6, "tokens": 1e8, "loss": "bad"}))
    with pytest.raises(InputError, match=r'run3\.json record 1: loss is "bad"'):
        read_runs(str(tmp_path))


def test_a_data_frame_is_a_table_too():
    runs = read_runs(pd.DataFrame(RECORDS).rename(columns={"params": "Model Size"}))
    assert rows_of(runs) == ROWS and runs.notes[0] == 'params = "Model Size"'
    with pytest.raises(InputError, match="DataFrame row 2: loss is"):
        read_runs(pd.DataFrame(RECORDS).assign(loss=[3.5, np.nan, 3.0]))
    with pytest.raises(InputError, match="no rows"):
        read_runs(pd.DataFrame(RECORDS).iloc[:0])


def test_columns_of_several_files_meet_under_one_role(tmp_path):
    write(tmp_path, "a.csv", "N,D,loss,lr\n1e6,1e8,3.5,0.1\n")
    write(tmp_path, "b.csv", "params,tokens,val_loss,peak_lr\n2e6,2e8,3.25,0.2\n")
    runs = read_runs(str(tmp_path))
    assert runs.table[runs.column("learning_rate")].tolist() == [0.1, 0.2]
    assert runs.column("lr") == runs.column("peak_lr") == "learning_rate"


def test_a_folder_with_one_table_and_an_empty_one_are_refused(tmp_path):
    with pytest.raises(InputError, match="a folder without tables"):
        read_runs(str(tmp_path))
    write(tmp_path, "runs.csv", CSV)
    with pytest.raises(InputError, match=r"is a folder; give the table in it: .*runs\.csv"):
        read_runs(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere.csv", "no such file"), ("x" * 5000, "cannot be opened"), ("no*.csv", "no file matches")],
)
def test_missing_files(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        read_runs(str(tmp_path / name))


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CSV.encode())))
    runs = read_runs("-")
    assert rows_of(runs) == ROWS and runs.sources == ["standard input"]


def test_the_exact_parser_and_the_fast_one_agree(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "params": rng.lognormal(18, 2, 200),
            "tokens": rng.lognormal(22, 2, 200),
            "loss": rng.lognormal(1, 0.3, 200),
            "note": ["a, b"] * 200,
        }
    )
    fast = read_runs(write(tmp_path, "fast.csv", frame.to_csv(index=False)))
    exact = read_runs(write(tmp_path, "exact.csv", frame.assign(note="a,\nb").to_csv(index=False)))
    for column in ("params", "tokens", "loss"):
        assert (fast.table[column] == frame[column]).all() and (exact.table[column] == frame[column]).all()
