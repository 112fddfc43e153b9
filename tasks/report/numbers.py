"""Format numbers for people; what is formatted keeps its number for programs, see `Figure`."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.report import Figure

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def count(value: float) -> Figure:
    """Format a whole number in groups of three digits.

    >>> count(1234567)
    '1,234,567'
    """
    return Figure(f"{value:,.0f}", value)


def counted(number: int, noun: str) -> str:
    """Format a count with its noun.

    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def share(part: float, whole: float = 1.0) -> Figure:
    """Format a share in percent; a share that is almost all or almost nothing never looks like all or nothing.

    >>> share(1, 3), share(0, 3), share(3, 3), share(99_999, 100_000), share(1, 100_000), share(0, 0)
    ('33.3%', '0%', '100%', '>99.9%', '<0.1%', '–')
    """
    if not whole:
        return Figure("–", None)
    percent = 100 * part / whole
    text = f"{percent:.0f}%" if percent in (0, 100) else f"{percent:.1f}%"
    if 0 < percent < 0.1:
        text = "<0.1%"
    if 99.9 < percent < 100:
        text = ">99.9%"
    return Figure(text, part / whole)


def size(num_bytes: float) -> Figure:
    """Format bytes in decimal units.

    >>> size(999), size(1_234_567), size(12_345_678), size(0)
    ('999 B', '1.23 MB', '12.3 MB', '0 B')
    """
    value, unit = float(num_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    digits = f"{value:.0f}" if unit == 0 else _three_digits(value)
    return Figure(f"{digits} {_UNITS[unit]}", num_bytes)


def short(value: float) -> str:
    """Format a number for an axis.

    >>> short(0), short(950), short(1_500), short(20_000), short(3_200_000)
    ('0', '950', '1.5k', '20k', '3.2M')
    """
    for step, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= step:
            return f"{value / step:.3g}{suffix}"
    return f"{value:.4g}"


def binary(value: int) -> Figure:
    """Format a power of two briefly.

    >>> binary(512), binary(2048), binary(1 << 20)
    ('512', '2Ki', '1Mi')
    """
    for power, prefix in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if value >= 1 << power:
            return Figure(f"{value >> power}{prefix}", value)
    return Figure(str(value), value)


def plain(value: float) -> Figure:
    """Format a number as it is, such as an id or a version.

    >>> plain(128009)
    '128009'
    """
    return Figure(str(value), value)


def some_of(names: Sequence[str], most: int = 3) -> str:
    """List the first names, and how many more there are.

    >>> some_of(["a", "b"]), some_of(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {count(rest)} more" if rest > 0 else "")


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
