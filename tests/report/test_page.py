"""The page: whole, escaped, alone, and readable by a machine that reads it aloud."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from reports import HOSTILE, hostile_report

from tasks.report.page import render_page

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Elements and texts of a page; fails on elements that are not closed in order."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page() -> bytes:
    return render_page(hostile_report())


@pytest.fixture(scope="module")
def read(page: bytes) -> Reader:
    return Reader(page)


def test_no_text_becomes_markup(read: Reader) -> None:
    tags = {tag for tag, _ in read.elements}

    assert not tags & {"script", "img", "iframe", "object", "link", "form", "foreignobject"}
    assert not [name for _, attributes in read.elements for name in attributes if name.startswith("on")]
    # A template engine that ran twice would have computed this.
    assert "49" not in "".join(read.texts)


def test_every_text_is_on_the_page_as_it_is(read: Reader) -> None:
    report = hostile_report()
    shown = "\n".join(read.texts)

    tables = (report.ledger, report.drift, report.reuse, report.inputs, report.outputs, report.versions)
    for table in (*tables, *report.rejects, *report.tables):
        assert table is not None
        for text in (*(column.name for column in table.columns), *(c for row in table.rows for c in row)):
            assert text in shown
    for text in (report.subject, *report.remarks, *(span.text for span in report.samples[0].sequences[0])):
        assert text in shown


def test_nothing_is_fetched_from_anywhere(page: bytes, read: Reader) -> None:
    urls = [
        value
        for _, attributes in read.elements
        for name, value in attributes.items()
        if name in ("href", "src", "srcset", "xlink:href", "action", "data", "poster")
    ]
    style = re.search(rb"<style>(.*?)</style>", page, re.DOTALL)

    assert len(urls) == len(HOSTILE)
    # Percent-encoded, so neither a scheme nor a host is left of any of them.
    assert not [url for url in urls if url is None or ":" in url or url.startswith("//")]
    assert style is not None and b"url(" not in style[1] and b"@import" not in style[1]
    policy = [m["content"] for m in read.named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0] is not None and policy[0].startswith("default-src 'none';")


def test_both_themes_and_narrow_screens_are_provided_for(page: bytes) -> None:
    assert b"@media (prefers-color-scheme:dark)" in page
    assert b'name="viewport" content="width=device-width' in page
    # The dark theme sets each colour the light one sets.
    light, dark = re.findall(rb":root\{(.*?)\}", page)
    assert {part.split(b":")[0] for part in light.split(b";")} == {
        part.split(b":")[0] for part in dark.split(b";")
    }


def test_tables_have_captions_and_heads_and_plots_have_names(read: Reader) -> None:
    assert len(read.named("caption")) == len(read.named("table")) > 0
    assert all(head.get("scope") in ("col", "row") for head in read.named("th"))
    assert all(plot.get("role") == "img" and plot.get("aria-label") for plot in read.named("svg"))
    assert len(read.named("svg")) == len(read.named("figure")) == 4
    assert read.named("html") == [{"lang": "en"}]
    assert len(read.named("h1")) == 1


def test_plots_inside_the_page_are_well_formed(page: bytes) -> None:
    for plot in re.findall(rb"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(plot)  # noqa: S314 - our own output


def test_the_same_report_gives_the_same_bytes(page: bytes) -> None:
    assert render_page(hostile_report()) == page


def test_a_report_without_its_optional_parts_is_a_page() -> None:
    bare = dataclasses.replace(
        hostile_report(),
        facts=(),
        remarks=(),
        drift=None,
        rejects=(),
        tables=(),
        charts=(),
        samples=(),
        reuse=None,
    )

    read = Reader(render_page(bare))

    assert len(read.named("table")) == 4
    assert not read.named("svg")


def test_half_a_surrogate_pair_does_not_stop_the_page() -> None:
    report = dataclasses.replace(hostile_report(), subject="role \ud800")

    assert b"role ?" in render_page(report)
