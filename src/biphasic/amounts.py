"""Amounts, times and speeds as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

_LEVELS = (0.05, 0.1)  # Levels of tests: a p value beside one is not written as equal to it.
MOST_BITS = 128  # Maximum size of a given whole number: a product of some still fits into a float.
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def count(number: int, noun: str) -> str:
    """Format `1 arm`, `2 arms`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def level_within(margin: float) -> str:
    """Format a margin as `level within 2 points`."""
    return f"level within {margin:g} point{'' if margin == 1 else 's'}"


def tried(times: int) -> str:
    """Format a number of attempts as ` (tried 3 times)`; empty for one."""
    return f" (tried {times:,} times)" if times > 1 else ""


def amount(number: float) -> str:
    """Format a count with three digits: `950`, `12.8 K`, `3.28 M`."""
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        # 999,950 is a million in three digits, not a thousand thousands.
        if number >= 0.9995 * scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f}"


def thousands(number: int) -> str:
    """Format whole thousands as `42k`, other numbers in digits, for names."""
    return f"{number // 1000}k" if number and number % 1000 == 0 else str(number)


def two_digits(number: float) -> str:
    """Format a number with two digits, or all of them before the point: `0.52`, `9.5`, `1,234`."""
    # 9.95 would be "10" and 99.5 "1e+02".
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"


def superscript(number: int) -> str:
    """Format an integer as an exponent."""
    return str(number).translate(_SUPERSCRIPTS)


def scientific(number: float) -> str:
    """Format a large number as `3.1 × 10¹⁵`."""
    if number == 0:
        return "0"
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    return f"{mantissa} × 10{superscript(int(exponent))}"


def size(num_bytes: float) -> str:
    """Format a number of bytes with three digits: `950 B`, `12.8 kB`, `3.28 GB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        # 999,950 is a megabyte in three digits, not 1e+03 kB.
        if num_bytes >= 0.9995 * scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def gigabytes(num_bytes: float) -> str:
    """Format a number of bytes for a column of gigabytes: `12.35 GB`."""
    return f"{num_bytes / 1e9:,.2f} GB"


def duration(seconds: float) -> str:
    """Format a time in its two largest units."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    whole, rest = divmod(round(seconds / 60), 60)
    return f"{whole} h {rest} min"


def rough_duration(seconds: float) -> str:
    """Format a time of which only the size is known: `40 seconds`, `3 minutes`, `21 hours`."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{float(f'{seconds / length:.2g}'):,g} {unit}"
    return count(max(round(seconds), 1), "second")


def hours(seconds: float) -> str:
    """Format a time as a number of hours, without the unit: `< 0.01`, `0.52`, `1,234`."""
    return "< 0.01" if 0 < seconds < 36 else two_digits(seconds / 3600)


def clock(seconds: float) -> str:
    """Format a time as `0:01:40`."""
    return str(timedelta(seconds=int(seconds)))


def speed(per_second: float | None) -> str:
    """Format a speed: `2.1/s` or `4.3/min`; empty if unknown."""
    if not per_second:
        return ""
    number, unit = (per_second, "s") if per_second >= 0.1 else (60 * per_second, "min")
    return f"{two_digits(number)}/{unit}"


def round_ticks(
    low: float, high: float, *, most: int, sizes: Sequence[float] = (1, 2, 2.5, 5, 10)
) -> list[float]:
    """Return round numbers from `low` to `high`, about `most` of them."""
    # They are multiples of one of some sizes times a power of ten.
    if low == high:
        return [low]
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(size * power for size in sizes if size * power >= least)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(index * step, 6) for index in range(first, last + 1)]


def percent_number(share: float) -> str:
    """Format a share in percent without the sign, for names: `40`, `12.5`."""
    return f"{100 * share:.4g}"


def percent(share: float) -> str:
    """Format a share as `40 %`."""
    return f"{percent_number(share)} %"


def points(share: float) -> str:
    """Format a share as percentage points, such as a score from [0, 1]: `87.85`."""
    return number(100 * share)


def number(points: float) -> str:
    """Format percentage points with two decimals; zero has no sign."""
    return f"{points:z.2f}"


def p_value(p: float) -> str:
    """Format a p value: `< 0.001`, `0.013`, `0.0501`."""
    decimals = 3
    while float(f"{p:.{decimals}f}") in _LEVELS and p not in _LEVELS:
        decimals += 1
    return "< 0.001" if p < 0.001 else f"{p:.{decimals}f}"


def probability(p: float) -> str:
    """Format a p value in a sentence: `p < 0.001`, `p = 0.013`."""
    return f"p {'' if p < 0.001 else '= '}{p_value(p)}"


def rate(learning_rate: float) -> str:
    """Format a learning rate as `2e-5`."""
    mantissa, _, exponent = f"{learning_rate:.6e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
