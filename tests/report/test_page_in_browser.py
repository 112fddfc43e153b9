"""The page as a browser shows it: light and dark, on a phone and on a desk, and never asking for anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from support import chat, config_of, mill_serially, write_jsonl

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(small_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with rejects, long names and long words."""
    root = tmp_path_factory.mktemp("page")
    rows: list[Any] = [chat(f"ask {i}", "answer" * i) for i in range(60)]
    role = {"messages": [{"role": "r" * 300, "content": "<script>document.title = 'run'</script>"}]}
    source = write_jsonl(root / f"{'long-name-' * 8}.jsonl", [*rows, role])
    config = config_of(
        root / "out", source, small_tokenizer, datasets=[{"name": "chats" * 15, "path": str(source)}]
    )
    mill_serially(config)
    return root / "out" / "latest" / "report.html"


def opened(browser: Browser, report: Path, **options: Any) -> tuple[Page, list[str]]:
    """The page, and every request and message it caused."""
    page = browser.new_context(**options).new_page()
    noise: list[str] = []
    page.on("request", lambda request: noise.append(request.url))
    page.on("console", lambda message: noise.append(message.text))
    page.goto(report.as_uri())
    return page, noise


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_but_tables_scrolls_sideways(width: int, browser: Browser, report: Path) -> None:
    page, noise = opened(browser, report, viewport={"width": width, "height": 800})

    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("svg.plot").count() == 3
    assert all(plot.bounding_box()["width"] > 200 for plot in page.locator("svg.plot").all())  # type: ignore[index]
    assert noise == [report.as_uri()]
    assert page.title().endswith(report.resolve().parent.name)


def test_colours_follow_the_reader(browser: Browser, report: Path) -> None:
    shown = {}
    for scheme in ("light", "dark"):
        page, _ = opened(browser, report, color_scheme=scheme)
        shown[scheme] = [
            page.locator(place).first.evaluate(f"e => getComputedStyle(e).{name}")
            for place, name in (
                ("body", "backgroundColor"),
                ("body", "color"),
                ("mark", "backgroundColor"),
                ("svg.plot .b0", "fill"),
                ("svg.plot text", "fill"),
            )
        ]

    assert all(light != dark for light, dark in zip(*shown.values(), strict=True))


def test_the_numbers_of_a_plot_open_without_scripts(browser: Browser, report: Path) -> None:
    page, _ = opened(browser, report, java_script_enabled=False)

    page.locator("figure summary").first.click()

    assert page.locator("figure table").first.is_visible()
