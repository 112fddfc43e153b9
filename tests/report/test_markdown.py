"""The report as Markdown, read back by a Markdown parser."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from reports import HOSTILE, hostile_report

from schemas.report import Lineage, Node, Passage, Sample
from tasks.report import markdown

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
# By default it refuses SVG images, and would hide links to strange places.
PARSER.validateLink = lambda url: True  # type: ignore[method-assign]


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def tokens() -> list:  # type: ignore[type-arg]
    return PARSER.parse(markdown.summary(hostile_report()))


def inline_tokens(tokens: list) -> list:  # type: ignore[type-arg]
    return [child for token in tokens if token.type == "inline" for child in token.children or ()]


def test_no_text_becomes_markup(tokens: list) -> None:  # type: ignore[type-arg]
    children = inline_tokens(tokens)
    allowed = {"text", "text_special", "strong_open", "strong_close", "code_inline", "image"}

    assert {child.type for child in children} <= allowed
    assert {token.type for token in tokens if token.type.startswith("html")} == set()
    # Code and bold are ours alone: the run hash, the remarks and the mark beside the headline numbers.
    assert [child.content for child in children if child.type == "code_inline"] == ["0123456789abcdef"]
    assert sum(child.type == "strong_open" for child in children) == len(HOSTILE) + 1
    images = [child.attrs["src"] for child in children if child.type == "image"]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in images)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("97.6%, 1,234 (a-b) bad_json datasets/a/shard_000000.parquet", None),
        ("_it_ __b__ a_", r"\_it\_ \_\_b\_\_ a\_"),
        ("https://example.org www.example.org a@b.c", r"https\://example.org www\.example.org a\@b.c"),
        ("# no heading", r"\# no heading"),
        ("- no list", r"\- no list"),
        ("a\n\n- b", "a - b"),
    ],
)
def test_only_what_could_be_markup_is_escaped(text: str, escaped: str | None) -> None:
    assert markdown.escape(text) == (escaped if escaped is not None else text)


def test_every_cell_reads_back_as_it_was(tokens: list) -> None:  # type: ignore[type-arg]
    report = hostile_report()
    cells = [
        "".join(child.content for child in tokens[place + 1].children or ())
        for place, token in enumerate(tokens)
        if token.type in ("td_open", "th_open")
    ]
    expected = [flat(cell) for row in report.ledger.rows for cell in row]

    start = cells.index(flat(report.ledger.columns[0].name))
    assert all(cell in cells[start:] for cell in expected)
    # No cell was cut in two by a bar.
    assert {token.type for token in tokens} >= {"table_open"}
    rows = [token for token in tokens if token.type == "tr_open"]
    tables = (1, *(len(HOSTILE),) * 8)
    assert len(rows) == sum(tables) + len(tables)


def test_plots_are_documents_of_their_own(tokens: list) -> None:  # type: ignore[type-arg]
    images = [child for child in inline_tokens(tokens) if child.type == "image"]

    assert len(images) == 4
    for image in images:
        data = base64.b64decode(image.attrs["src"].partition(",")[2], validate=True)
        root = ET.fromstring(data)  # noqa: S314 - our own output
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(root.attrib["width"]) > 0 and float(root.attrib["height"]) > 0
        assert root.find("{http://www.w3.org/2000/svg}style") is not None
        assert not [e for e in root.iter() if any(name.startswith("on") for name in e.attrib)]
        # Nothing but what we draw: a hostile label stays text.
        assert {e.tag.partition("}")[2] for e in root.iter()} <= {
            "svg",
            "style",
            "path",
            "rect",
            "text",
            "title",
        }


def test_mermaid_labels_hold_no_syntax() -> None:
    lineage = Lineage(
        ((Node('a"]; click x "https://example.org"', "<b>"),), (Node("run"),)), (((0, 0), (1, 0)),)
    )

    lines = list(markdown.mermaid(lineage))

    assert lines[0] == "flowchart LR"
    assert lines[1].count('"') == 2 and "<b>" not in lines[1] and "://" not in lines[1]
    assert re.fullmatch(r'  n0x0\["[^"\[\]<>]*<br/>#60;b#62;"\]', lines[1])
    assert lines[2:] == ['  n1x0["run"]', "  n0x0 --> n1x0"]


@pytest.mark.parametrize("text", ["```\nx", "````", "a\n```python\n`````\n"])
def test_a_sequence_cannot_leave_its_fence(text: str) -> None:
    sample = Sample("a bin", ((Passage("ask: ", False), Passage(text, True)),))

    tokens = PARSER.parse(markdown.bins((sample,)))

    [fence] = [token for token in tokens if token.type == "fence"]
    shown = [line for line in fence.content.splitlines() if line.startswith("┃ ")]
    assert [line.removeprefix("┃ ") for line in shown] == text.strip("\n").split("\n")
