"""Numbers as people write them, correctly rounded once."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.errors import InputError
from scaling.readers.numbers import to_float64


def values(cells, **options):
    return to_float64(pd.Series(cells, dtype=object), **options).values.tolist()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("70B", 70e9),
        ("1.4T", 1.4e12),
        ("32.0K", 32e3),
        ("4.5E-05", 4.5e-5),
        ("1,000,000", 1e6),
        ("$10M", 1e7),
        ("0.07B", 7e7),
        ("1_000_000", 1e6),
        ("1 000 000", 1e6),
        ("\u22122.5", -2.5),
        ("1\u202f000", 1e3),
        (" 3.5 ", 3.5),
        ("1,234.5", 1234.5),
        ("125m", 125e6),
        ("1e400", np.inf),
    ],
)
def test_reads_a_number(text, value):
    assert values([text, "1"]) == [value, 1.0]


@pytest.mark.parametrize(
    "text", ["12abc", "1.2.3", "1,2,3", "1,00", "0x10", "1e", "70BB", "11%", "yes", "--1", "1e5 tokens"]
)
def test_refuses_what_is_no_number(text):
    found = to_float64(pd.Series([text, "2.5"], dtype=object))
    assert found.unreadable and np.isnan(found.values[0]) and found.values[1] == 2.5


def test_percentages_only_where_they_make_sense():
    assert values(["11%", "2.5%"], percent=True) == [0.11, 0.025]
    assert to_float64(pd.Series(["11%"], dtype=object)).unreadable


@pytest.mark.parametrize("word", ["", "nan", "NaN", "NA", "null", "None", "-", "n/a"])
def test_missing_words(word):
    found = to_float64(pd.Series([word, "2"], dtype=object))
    assert np.isnan(found.values[0]) and not found.unreadable


def test_integers_beyond_int64_are_the_nearest_float():
    big = 148825352007865852416
    assert values([big, str(big), 2**64 + 1]) == [float(big), float(big), float(2**64 + 1)]
    assert to_float64(pd.Series([2**63 + 2**11], dtype="uint64")).values[0] == float(2**63 + 2**11)


@given(st.decimals(min_value="0.001", max_value="999", places=3), st.sampled_from([3, 6, 9, 12]))
def test_a_unit_in_the_header_rounds_once(number, exponent):
    exact = Fraction(str(number)) * 10**exponent
    for column in (pd.Series([str(number)], dtype=object), pd.Series([float(number)])):
        assert to_float64(column, exponent=exponent).values[0] == float(exact)


def test_a_cell_with_its_own_suffix_must_agree_with_the_header():
    assert values(["70B", "7"], exponent=9) == [70e9, 7e9]
    assert to_float64(pd.Series(["70M"], dtype=object), exponent=9).unreadable


def test_decimal_commas_are_seen_and_the_ambiguous_column_is_refused():
    assert values(["3,4059", "3,4"]) == [3.4059, 3.4]
    assert values(["3,405", "1,000"]) == [3405.0, 1000.0]
    with pytest.raises(InputError, match=r'"3,405" can be 3405 or 3\.405'):
        to_float64(pd.Series(["3,405"], dtype=object), comma_decimals=True)


def test_truth_values_are_no_numbers():
    assert to_float64(pd.Series([True, False])).unreadable
    assert to_float64(pd.Series([True, 2], dtype=object)).texts == {0: "True"}
