"""What other pages, other host names and signed-out browsers try: to have the worker run a command of theirs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, chromium
from local import Local
from playwright.sync_api import Frame, Page, Playwright, expect

from tasks.server.http import wait_until
from tasks.server.tokens import one_time_link

ATTACK = (Path(__file__).parent / "attack.js").read_text()
# Leads to this computer in the browser, as a name does whose owner changes its address while a page is open.
NAME = "attacker.test"
RUN_S = 60


class _Pages(BaseHTTPRequestHandler):
    """A page at every path; below /sandboxed, one in a frame that has no origin."""

    def do_GET(self) -> None:
        inner = '<iframe sandbox="allow-scripts allow-forms" srcdoc="<body>inner"></iframe>'
        body = b"<!doctype html><body>" + (inner if self.path == "/sandboxed" else "hello").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """Port of another server on this computer."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def browser(
    playwright: Playwright, tmp_path_factory: pytest.TempPathFactory, pictures: Path
) -> Iterator[Browser]:
    names = f"--host-resolver-rules=MAP {NAME} 127.0.0.1"
    with chromium(playwright, tmp_path_factory.mktemp("attacks") / "netlog.json", pictures, names) as opened:
        yield opened


@contextlib.contextmanager
def signed(browser: Browser, local: Local, signed_in: bool) -> Iterator[Page]:
    """A new page, in a browser that has the cookie or not."""
    context = browser.page.context
    context.clear_cookies()
    if signed_in:
        page = context.new_page()
        page.goto(one_time_link(local.ui, local.record.token))
        page.wait_for_url(f"{local.ui}/v2/**")
        page.close()
    page = context.new_page()
    try:
        yield page
    finally:
        page.close()


def order(local: Local, marker: Path) -> dict[str, Any]:
    """A request for a run that is a shell command."""
    deployment = local.deployment("validate")
    return {
        "path": f"/api/deployments/{deployment['id']}/create_flow_run",
        "body": {"job_variables": {"command": f"touch {marker}"}},
    }


def ordered(local: Local, marker: Path) -> list[Any]:
    """The runs that came of such requests."""
    commands = [run["job_variables"].get("command", "") for run in local.runs("validate")]
    return [command for command in commands if str(marker) in command]


@pytest.mark.parametrize("signed_in", [True, False])
@pytest.mark.parametrize("place", ["site", "sandboxed", "neighbour", "rebound", "localhost"])
def test_another_page_gets_nothing(
    place: str, signed_in: bool, local: Local, browser: Browser, elsewhere: int, tmp_path: Path
) -> None:
    port = local.ui.rpartition(":")[2]
    page_url, target = {
        "site": (f"http://{NAME}:{elsewhere}/", local.ui),
        "sandboxed": (f"http://{NAME}:{elsewhere}/sandboxed", local.ui),
        # The same site, in the browser's eyes, so that it sends the cookie along.
        "neighbour": (f"http://127.0.0.1:{elsewhere}/", local.ui),
        # The page's own origin, in the browser's eyes.
        "rebound": (f"http://{NAME}:{port}/", f"http://{NAME}:{port}"),
        "localhost": (f"http://localhost:{port}/", f"http://localhost:{port}"),
    }[place]
    with signed(browser, local, signed_in) as page:
        statuses: list[int] = []
        page.on(
            "response", lambda seen: statuses.append(seen.status) if seen.url.startswith(target) else None
        )
        page.goto(page_url)
        if target in page_url:
            expect(page.get_by_text(f"only at {local.ui}")).to_be_visible()
        attacker: Page | Frame = page.frames[1] if place == "sandboxed" else page
        ended = attacker.evaluate(ATTACK, {"target": target, **order(local, tmp_path / "marker")})
    harmless = {"failed", "opaque", "sent", "403", "401"}
    assert len(ended) == 14 and set(ended.values()) <= harmless, ended
    assert {ended[name] for name in ended if "websocket" in name} | {ended["image"]} == {"failed"}
    assert statuses and set(statuses) <= {401, 403}, statuses
    assert ordered(local, tmp_path) == []


def test_a_page_of_its_own_gets_nothing_without_the_cookie(
    local: Local, browser: Browser, tmp_path: Path
) -> None:
    with signed(browser, local, signed_in=False) as page:
        page.goto(f"{local.ui}/v2/deployments")
        expect(page.get_by_text("not signed in")).to_be_visible()
        ended = page.evaluate(ATTACK, {"target": local.ui, **order(local, tmp_path / "marker")})
    assert {ended[name] for name in ended if name.startswith(("fetch", "preflight", "read"))} <= {
        "401",
        "opaque",
    }
    assert ended["websocket"] == ended["websocket without protocol"] == "failed"
    assert ordered(local, tmp_path) == []


def test_the_same_requests_run_the_command_for_its_user(
    local: Local, browser: Browser, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    with signed(browser, local, signed_in=True) as page:
        page.goto(f"{local.ui}/v2/deployments")
        ended = page.evaluate(ATTACK, {"target": local.ui, **order(local, marker)})
    assert ended["fetch"] == ended["fetch with cookies"] == "201"
    assert ended["read"] == "200" and ended["websocket"] == "auth_success"
    assert len(ordered(local, marker)) >= 2
    assert wait_until(marker.exists, RUN_S), "the worker did not run the command: the attacks show nothing"


def test_a_link_opens_the_ui_once(local: Local, browser: Browser) -> None:
    link = one_time_link(local.ui, local.record.token)
    with signed(browser, local, signed_in=False) as page:
        page.goto(link)
        page.wait_for_url(f"{local.ui}/v2/**")
        page.get_by_role("link", name="Deployments", exact=True).wait_for()
        # Some time later the library for usage data has a cookie here as well; nothing of it leaves.
        [cookie] = [cookie for cookie in page.context.cookies() if cookie["name"].startswith("gristmill-")]
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["domain"] == "127.0.0.1"
        assert local.record.token not in cookie["value"]
        assert cookie["name"] not in page.evaluate("document.cookie")
    with signed(browser, local, signed_in=False) as page:
        page.goto(link)
        expect(page.get_by_text("used before")).to_be_visible()
        assert page.context.cookies() == []


def test_a_link_clicked_on_another_page_opens_the_ui(local: Local, browser: Browser, elsewhere: int) -> None:
    with signed(browser, local, signed_in=False) as page:
        page.goto(f"http://{NAME}:{elsewhere}/")
        page.evaluate("url => { location.href = url }", one_time_link(local.ui, local.record.token))
        page.wait_for_url(f"{local.ui}/v2/**")
        # The browser keeps the cookie back from links elsewhere; the answer leads on.
        page.goto(f"http://{NAME}:{elsewhere}/")
        page.evaluate("url => { location.href = url }", f"{local.ui}/v2/deployments")
        page.get_by_role("link", name="Continue").click()
        page.locator("a[href*='/deployments/deployment/']").first.wait_for()


def test_a_run_is_cancelled_on_its_page(local: Local, browser: Browser, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    wanted = order(local, marker)
    wanted["body"]["job_variables"]["command"] = f"sh -c 'touch {marker}; exec sleep 300'"
    run = local.call(wanted["path"].removeprefix("/api/"), wanted["body"])["id"]
    assert wait_until(marker.exists, RUN_S)
    with signed(browser, local, signed_in=True) as page:
        page.goto(f"{local.ui}/v2/runs/flow-run/{run}")
        page.get_by_role("button", name="Open menu").click()
        page.get_by_role("menuitem", name="Cancel").click()
        page.get_by_role("button", name="Cancel").last.click()
    assert wait_until(lambda: local.call(f"flow_runs/{run}")["state_type"] == "CANCELLED", RUN_S)
