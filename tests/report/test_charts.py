"""Bars as long as their numbers say, inside the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from schemas.report import Chart, Series
from tasks.report.charts import draw


def chart(*series: tuple[float, ...], upright: bool, labels: tuple[str, ...] = ()) -> Chart:
    names = labels or tuple(f"class {i}" for i in range(len(series[0])))
    made = tuple(Series(f"s{i}", values, tuple(map(str, values))) for i, values in enumerate(series))
    return Chart("Title", "What it shows.", "axis", names, made, upright)


def elements(drawn: Chart, kind: str, **attributes: str) -> list[ET.Element]:
    root = ET.fromstring(draw(drawn))  # noqa: S314 - our own output
    found = [e for e in root.iter(kind) if all(e.get(name) == value for name, value in attributes.items())]
    low, high = map(float, root.attrib["viewBox"].split()[2:])
    for e in root.iter("rect"):
        assert float(e.attrib["x"]) + float(e.attrib["width"]) <= low + 0.1
        assert 0 <= float(e.attrib["y"]) <= high - float(e.attrib["height"]) + 0.1
    return found


def test_columns_are_as_tall_as_their_values() -> None:
    bars = elements(chart((10.0, 0.0, 5.0, 20.0), upright=True), "rect", **{"class": "b0"})

    heights = [float(bar.attrib["height"]) for bar in bars]

    # The empty class has no bar.
    assert len(bars) == 3
    assert heights[2] == pytest.approx(2 * heights[0], abs=0.2) == pytest.approx(4 * heights[1], abs=0.4)
    assert [bar.findtext("title") for bar in bars] == ["class 0: 10.0", "class 2: 5.0", "class 3: 20.0"]


def test_one_of_a_million_is_still_seen() -> None:
    bars = elements(chart((1.0, 1_000_000.0), upright=True), "rect", **{"class": "b0"})

    assert float(bars[0].attrib["height"]) == 1


def test_many_classes_get_few_labels() -> None:
    many = chart(tuple(float(i) for i in range(24)), upright=True, labels=tuple(f"L{i}" for i in range(24)))

    shown = [e.text for e in elements(many, "text") if e.text and e.text.startswith("L")]

    assert shown == ["L0", "L4", "L8", "L12", "L16", "L20"]


def test_two_series_stand_side_by_side_under_a_legend() -> None:
    both = chart((3.0, 4.0), (1.0, 2.0), upright=True)

    for number in (0, 1):
        # Two bars and the legend's square.
        assert len(elements(both, "rect", **{"class": f"b{number}"})) == 3
    assert {"s0", "s1"} <= {e.text for e in elements(both, "text")}


def test_lines_show_what_was_got_of_what_was_asked() -> None:
    drawn = chart((100.0, 50.0), (100.0, 25.0), upright=False)

    tracks = [float(e.attrib["width"]) for e in elements(drawn, "rect", **{"class": "track"})]
    bars = [float(e.attrib["width"]) for e in elements(drawn, "rect", **{"class": "b0"})]

    assert tracks[0] == bars[0] == 2 * tracks[1] == 4 * bars[1]
    assert "25.0 of 50.0" in [e.text for e in elements(drawn, "text")]


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("values", [(), (0.0,), (0.0, 0.0)])
def test_nothing_to_draw_is_an_empty_picture(values: tuple[float, ...], upright: bool) -> None:
    assert not elements(chart(values, upright=upright), "rect", **{"class": "b0"})
