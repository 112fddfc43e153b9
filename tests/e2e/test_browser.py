"""Without a terminal: a packing run from its form to its report, in a real browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium, hosts_asked_for
from egress import recorded, recording_environment
from local import RUN_TIMEOUT_S, Local
from playwright.sync_api import Page, Playwright, expect

from tasks.server.tokens import one_time_link

RUN_TIMEOUT_MS = RUN_TIMEOUT_S * 1_000
PACK_TOKENS = "3072"


@pytest.fixture(scope="module")
def browser(
    playwright: Playwright, tmp_path_factory: pytest.TempPathFactory, pictures: Path
) -> Iterator[Browser]:
    with chromium(playwright, tmp_path_factory.mktemp("browser") / "netlog.json", pictures) as opened:
        yield opened


def open_form(page: Page, local: Local, name: str) -> None:
    """The form of a deployment, reached as a user reaches it."""
    page.goto(one_time_link(local.ui, local.record.token))
    page.get_by_role("link", name="Deployments", exact=True).click()
    # The flow of that name has links, too.
    page.locator("a[href*='/deployments/deployment/']").get_by_text(name, exact=True).click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Custom run").click()
    page.get_by_role("button", name="Submit").wait_for()


def submit(page: Page) -> str:
    """Send the form, and look at the run it started; returns the run's id."""
    page.get_by_role("button", name="Submit").click()
    # The list below may still end with the run before; the note that appears is about this one.
    page.get_by_role("link", name="View run").click()
    page.wait_for_url("**/runs/flow-run/*")
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible(timeout=RUN_TIMEOUT_MS)
    found = re.search(r"flow-run/([0-9a-f-]{36})", page.url)
    assert found is not None
    return found[1]


def open_summary(page: Page, run: str) -> None:
    """The summary of a run, from the run's page."""
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_role("link", name="pack-sft-summary").click()
    # Every run's summary is listed; the newest comes first.
    page.locator("a[href*='/artifacts/artifact/']").first.click()
    expect(page.locator(f"a[href*='{run}']").first).to_be_visible()


def test_a_run_from_its_form_to_its_report_and_a_second_one_that_is_cached(
    local: Local, browser: Browser
) -> None:
    page = browser.page
    open_form(page, local, "pack-sft")
    page.get_by_label("Pack size").fill(PACK_TOKENS)
    browser.picture("form")
    first = submit(page)
    browser.picture("run")
    used = local.call(f"flow_runs/{first}")["parameters"]["config"]["pack"]["size"]
    assert used == int(PACK_TOKENS)

    open_summary(page, first)
    ledger = page.get_by_role("table").filter(has_text="not selected")
    expect(ledger).to_be_visible()
    read = ledger.get_by_role("row").filter(has_text=re.compile("^read")).inner_text().split()[1]
    assert int(read.replace(",", "")) > 1_000
    plots = page.locator("img[src^='data:image/svg+xml']")
    expect(plots.first).to_be_visible()
    widths = [plot.evaluate("image => image.complete && image.naturalWidth") for plot in plots.all()]
    assert widths and all(width > 100 for width in widths)
    browser.picture("summary")

    open_form(page, local, "pack-sft")
    page.get_by_label("Pack size").fill(PACK_TOKENS)
    second = submit(page)
    steps = [task["task_key"].split("-")[0] for task in local.tasks(second) if task["state_name"] == "Cached"]
    # One data set, in one part; three splits are packed.
    assert sorted(steps) == ["cut"] + ["pack"] * 3 + ["screen"] + ["tokenize"] + ["validate"] * 3
    page.get_by_role("tab", name="Task Runs").click()
    expect(page.get_by_text(re.compile("9 Cached"))).to_be_visible()
    browser.picture("cached")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("Pack size", "1", "greater than or equal to 2"),
        ("Reject limit", "1.5", "less than or equal to 1"),
        ("Name", "no/slash", "does not match"),
    ],
)
def test_a_bad_value_is_refused_in_the_form(
    field: str, value: str, message: str, local: Local, browser: Browser
) -> None:
    page = browser.page
    before = len(local.runs("pack-sft"))
    open_form(page, local, "pack-sft")
    place = page.get_by_label(field, exact=True).or_(page.get_by_label(f"{field} (Optional)", exact=True))
    place.first.fill(value)
    form = page.url
    page.get_by_role("button", name="Submit").click()
    said = place.first.evaluate("field => field.validationMessage")
    if said:
        # The browser itself shows it, beside the field, which it scrolls to and selects.
        assert message in said
        expect(place.first).to_be_focused()
    else:
        expect(page.get_by_text(message).first).to_be_visible()
    browser.picture(f"refused-{field.split()[0].lower()}")
    assert page.url == form
    assert len(local.runs("pack-sft")) == before


def test_nothing_reaches_out_to_the_internet(
    local: Local, playwright: Playwright, pictures: Path, tmp_path: Path, egress: Callable[[], list[str]]
) -> None:
    netlog = tmp_path / "netlog.json"
    with chromium(playwright, netlog, pictures) as browser:
        page = browser.page
        open_form(page, local, "build-probe-rows")
        submit(page)
        # Both show logos that lie on other hosts.
        for path, shown in (("work-pools/work-pool/local", "Work Pools"), ("blocks/catalog", "Blocks")):
            page.goto(f"{local.ui}/v2/{path}")
            expect(page.get_by_role("main").get_by_text(shown).first).to_be_visible()
        browser.picture("blocks")
        # A page is not able to, even if somebody else's artifact asks for it.
        blocked = page.evaluate(
            "() => fetch('http://192.0.2.1/').then(() => 'loaded', error => String(error))"
        )
        assert "Failed to fetch" in blocked
        answered = set(browser.answered)
    assert answered <= {"127.0.0.1", ""}
    assert hosts_asked_for(netlog) == {"127.0.0.1"}
    assert egress() == []


def test_the_record_of_connections_would_show_one(tmp_path: Path) -> None:
    log = tmp_path / "connections.log"
    code = (
        "import socket; near = socket.socket(); near.bind(('127.0.0.1', 0)); near.listen();"
        "socket.create_connection(near.getsockname());"
        "far = socket.socket(); far.settimeout(0); far.connect_ex(('192.0.2.1', 80))"
    )
    environ = {**os.environ, **recording_environment(log, os.environ)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    [line] = recorded(log)
    assert line.startswith("socket.connect ('192.0.2.1', 80)")
