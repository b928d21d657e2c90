import json
import os

import numpy as np
import pytest

from scaling.errors import InputError
from scaling.files import to_json, write_text


def test_write_replaces_whole_files_and_leaves_no_temporary(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["a.txt"]


def test_written_files_have_the_usual_permissions(tmp_path):
    old = os.umask(0o022)
    try:
        write_text(tmp_path / "a", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        write_text(tmp_path, "x")


def test_an_unwritable_place_is_one_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "file" / "below", "x")


def test_json_is_strict_and_keeps_full_precision():
    text = to_json({"a": float("nan"), "b": [np.float64(1 / 3), np.int64(3), float("inf")], "c": np.arange(2)})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [1 / 3, 3, None], "c": [0, 1]}
