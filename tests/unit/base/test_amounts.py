"""Amounts, times and speeds as people read them."""

import pytest

from biphasic.amounts import (
    amount,
    clock,
    count,
    duration,
    gigabytes,
    hours,
    rough_duration,
    scientific,
    size,
    speed,
    thousands,
    two_digits,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(1, "arm"), "1 arm"), (count(1200, "arm"), "1,200 arms"),
        (amount(950), "950"), (amount(12_800), "12.8 K"), (amount(3_276_800), "3.28 M"),
        (amount(999_960), "1 M"), (scientific(3.12e15), "3.1 × 10¹⁵"), (scientific(0), "0"),
        (thousands(42_000), "42k"), (thousands(0), "0"), (thousands(1500), "1500"),
        (two_digits(0.523), "0.52"), (two_digits(99.7), "100"), (two_digits(1234.5), "1,234"),
    ],
)  # fmt: skip
def test_amounts(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size(950), "950 B"), (size(12_800), "12.8 kB"), (size(999_960), "1 MB"),
        (size(3.276e9), "3.28 GB"), (gigabytes(12.345e9), "12.35 GB"),
    ],
)  # fmt: skip
def test_bytes(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (duration(8.25), "8.2 s"), (duration(75), "1 min 15 s"), (duration(3599.7), "1 h 0 min"),
        (rough_duration(0.1), "1 second"), (rough_duration(100), "100 seconds"),
        (rough_duration(185), "3.1 minutes"), (rough_duration(75_600), "21 hours"),
        (rough_duration(400_000), "4.6 days"), (clock(100.9), "0:01:40"),
        (hours(3600), "1"), (hours(1800), "0.5"), (hours(30), "< 0.01"), (hours(0), "0"),
        (hours(99.7 * 3600), "100"), (hours(4_444_400), "1,235"),
    ],
)  # fmt: skip
def test_times(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("per_second", "expected"),
    [(None, ""), (2.14, "2.1/s"), (0.0717, "4.3/min"), (99.7, "100/s"), (4300.2, "4,300/s")],
)
def test_speeds(per_second, expected):
    assert speed(per_second) == expected
