"""Whatever the bytes: the right table or one clear error that names the file, never another exception."""

import csv
import gzip
import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaling.errors import ScalingError
from scaling.readers.raw import parse_bytes
from scaling.runs import read_runs

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

positive = st.floats(min_value=1e-3, max_value=1e15, allow_nan=False)
cells = st.one_of(
    positive.map(repr),
    st.integers(-(10**25), 10**25).map(str),
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            "nan",
            "inf",
            "-inf",
            "70B",
            "32.0K",
            "11%",
            "1,000,000",
            "3,5",
            '"',
            "a\nb",
            "NULL",
            "1e999",
            "\ufeff",
            "٣",
            "1_0",
            "0x1",
        ]
    ),
)
headers = st.one_of(
    st.sampled_from(
        [
            "params",
            "N",
            "n_params",
            "tokens",
            "D",
            "loss",
            "val_loss",
            "C",
            "flops",
            "status",
            "lr",
            "Name",
            "params_M",
            "",
        ]
    ),
    st.text(max_size=10),
)


def read_or_refuse(path):
    """The runs, or None after one clear error that names the file."""
    try:
        runs = read_runs(str(path))
    except ScalingError as error:
        assert path.name in str(error) or "--map" in str(error)
        assert str(error).strip() and len(str(error)) < 6000
        return None
    values = runs.table[["params", "tokens", "loss", "flops"]].to_numpy()
    assert values.dtype == np.float64 and np.isfinite(values).all() and (values > 0).all()
    return runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@FUZZ
@given(content=st.binary(max_size=400))
def test_any_bytes(folder, content):
    (folder / "bytes.csv").write_bytes(content)
    read_or_refuse(folder / "bytes.csv")


@FUZZ
@given(
    content=st.binary(min_size=1, max_size=200),
    where=st.integers(0, 2000),
    kind=st.sampled_from(["csv", "gzip", "parquet", "json"]),
)
def test_a_damaged_file(folder, content, where, kind):
    frame = pd.DataFrame({"params": [1e6, 2e6], "tokens": [1e8, 2e8], "loss": [3.5, 3.2], "note": ["x", "y"]})
    whole = {
        "csv": lambda: frame.to_csv(index=False).encode(),
        "gzip": lambda: gzip.compress(frame.to_csv(index=False).encode(), mtime=0),
        "json": lambda: frame.to_json(orient="records").encode(),
        "parquet": lambda: _parquet(frame),
    }[kind]()
    where %= len(whole)
    (folder / "damaged").write_bytes(whole[:where] + content + whole[where + len(content) :])
    read_or_refuse(folder / "damaged")
    (folder / "cut").write_bytes(whole[:where])
    read_or_refuse(folder / "cut")


def _parquet(frame):
    pytest.importorskip("pyarrow")
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    return buffer.getvalue()


@FUZZ
@given(
    names=st.lists(headers, min_size=1, max_size=6),
    rows=st.lists(st.lists(cells, min_size=1, max_size=6), max_size=6),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    ends=st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
)
def test_any_table_of_cells(folder, names, rows, quoting, delimiter, ends, encoding):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=ends)
    writer.writerows([names, *rows])
    (folder / "cells.csv").write_bytes(text.getvalue().encode(encoding, "replace"))
    read_or_refuse(folder / "cells.csv")


@FUZZ
@given(
    rows=st.lists(st.tuples(positive, positive, positive, st.text(max_size=8)), min_size=1, max_size=8),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    ends=st.sampled_from(["\n", "\r\n", "\n\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_a_good_table_comes_back_exactly(folder, rows, delimiter, ends, quoting):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=ends)
    writer.writerow(["N", "tokens", "val_loss", "note"])
    clean = [(n, d, loss, note.replace("\x00", "").replace("\r", "\n")) for n, d, loss, note in rows]
    writer.writerows([[repr(n), repr(d), repr(loss), note] for n, d, loss, note in clean])
    content = text.getvalue()
    try:
        encoded = content.encode()
    except UnicodeEncodeError:  # half of a surrogate pair cannot be written at all
        return
    (folder / "good.csv").write_bytes(encoded)
    runs = read_or_refuse(folder / "good.csv")
    assert runs is not None
    assert [tuple(r) for r in runs.table[["params", "tokens", "loss"]].to_numpy()] == [row[:3] for row in clean]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(headers, inner, max_size=4),
    max_leaves=12,
)


@FUZZ
@given(value=json_values, lines=st.booleans())
def test_any_json(folder, value, lines):
    text = "\n".join(map(json.dumps, value)) if lines and isinstance(value, list) else json.dumps(value)
    (folder / "value.json").write_text(text, encoding="utf-8", errors="replace")
    read_or_refuse(folder / "value.json")


def test_a_cell_of_ten_megabytes(folder):
    head = "params,tokens,loss,note\n1e6,1e8,3.5,"
    for name, tail in (("long.csv", "x" * 10_000_000), ("quoted.csv", '"' + "x\n" * 5_000_000 + '"')):
        (folder / name).write_text(head + tail + "\n2e6,1e8,3.2,y\n")
        runs = read_or_refuse(folder / name)
        assert len(runs) == 2 and len(runs.table["note"][0]) == 10_000_000
    assert runs.table["row"].tolist() == [2, 2 + 5_000_001]
    (folder / "number.csv").write_text("params,tokens,loss\n1e6,1e8," + "9" * 10_000_000 + "\n")
    assert read_or_refuse(folder / "number.csv") is None


def test_the_longest_cell_never_floods_the_message(folder):
    (folder / "wordy.csv").write_text("params,tokens,loss\n1e6,1e8," + "word " * 100_000 + "\n")
    with pytest.raises(ScalingError) as caught:
        read_runs(str(folder / "wordy.csv"))
    assert "line 2" in str(caught.value) and len(str(caught.value)) < 400


@FUZZ
@given(names=st.lists(headers, min_size=1, max_size=8))
def test_columns_are_never_lost(names):
    """Every header is a column of the raw table, or the file is refused for doubling one."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
        [names, [str(k + 1) for k in range(len(names))]]
    )
    try:
        table = parse_bytes("t.csv", text.getvalue().encode("utf-8", "replace").replace(b"\x00", b""))
    except ScalingError:
        return
    assert table.frame.shape == (1, len(names)) and not math.isnan(table.lines[0])
