from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rf.data import ErrorRate, edit_distance


def by_definition(ref: str, hyp: str) -> int:
    @cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        substitution = distance(i - 1, j - 1) + (ref[i - 1] != hyp[j - 1])
        return min(substitution, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(ref), len(hyp))


@given(st.text("abc", max_size=10), st.text("abc", max_size=10))
def test_edit_distance_is_the_least_number_of_edits(ref: str, hyp: str) -> None:
    assert edit_distance(ref, hyp) == by_definition(ref, hyp)


@pytest.mark.parametrize(
    ("ref", "hyp", "expected"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("", "", 0), ([1, 2, 3], [1, 3], 1), ([1], (1,), 0)],
)
def test_edit_distance_of_known_pairs(ref: list[int] | str, hyp: list[int] | str, expected: int) -> None:
    assert edit_distance(ref, hyp) == expected


def test_error_rate_weighs_by_reference_length() -> None:
    rate = ErrorRate()
    assert rate.add("abcdefgh", "abcdefgh") == 0
    assert rate.add("ab", "ba") == 2
    assert rate.percent == pytest.approx(20.0)
    assert (rate.num_errors, rate.num_labels, rate.num_sequences) == (2, 10, 2)


def test_error_rate_can_exceed_100_percent() -> None:
    rate = ErrorRate()
    rate.add("a", "bcd")
    assert rate.percent == pytest.approx(300.0)


def test_error_rate_without_reference_labels() -> None:
    rate = ErrorRate()
    assert rate.percent == 0.0
    rate.add("", "x")
    assert rate.percent == float("inf")
