"""Quantities as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.errors import InputError
from scaling.quantities import format_quantity, parse_positive, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("70B", 70e9),
        ("0.07B", 7e7),
        ("1.4T", 1.4e12),
        ("1e24", 1e24),
        ("5.76e23", 5.76e23),
        ("$10M", 1e7),
        ("$2.50", 2.5),
        ("32.0K", 32_000),
        ("1,000,000", 1e6),
        ("1_000", 1e3),
        ("2G", 2e9),
        (" 7 b ", 7e9),
        (".5", 0.5),
        ("-3", -3),
        (12, 12.0),
    ],
)
def test_reads_what_people_write(text, value):
    assert parse_quantity(text) == value


UNREADABLE = ["", "abc", "1,00,000", "70 BB", "nan", "inf", "e5", "1e", "1e9999999999", "0x10", "B", "70B tokens", None]


@pytest.mark.parametrize("text", UNREADABLE)
def test_refuses_the_rest_and_names_it(text):
    with pytest.raises(InputError, match="budget") as caught:
        parse_quantity(text, name="budget")
    assert str(text) in str(caught.value)


def test_a_long_text_is_cut_in_the_message():
    with pytest.raises(InputError) as caught:
        parse_quantity("7" * 5000 + "x")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1e999", "1e400T", 10**400])
def test_refuses_what_is_not_finite(value):
    with pytest.raises(InputError, match="finite"):
        parse_quantity(value)


@pytest.mark.parametrize("value", [0, "0", "-70B", -1.0])
def test_positive_means_above_zero(value):
    with pytest.raises(InputError, match="above zero"):
        parse_positive(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (72.25e9, "72.25B"),
        (1.3287e12, "1.329T"),
        (49408, "49.41K"),
        (5.76e23, "5.760e23"),
        (999.96e9, "1T"),
        (0.0, "0"),
        (1e-5, "1.000e-05"),
        (math.inf, "inf"),
        (None, "n/a"),
    ],
)
def test_writes_what_people_read(value, text):
    assert format_quantity(value) == text


@given(st.floats(min_value=1e-3, max_value=9e14))
def test_what_is_written_is_read_back(value):
    assert parse_quantity(format_quantity(value, digits=6)) == pytest.approx(value, rel=1e-5)
