"""Debian's Chromium, driven by Playwright, and what it asked the network for."""

from __future__ import annotations

import contextlib
import json
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Playwright

# Pages load in a second; loaded machines are slow.
TIMEOUT_MS = 60_000
_FLAGS = (
    "--no-sandbox",  # which Chromium refuses to do without as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Chromium's own services: updates, accounts, autofill. No page asks for them.
_OWN = (".google.com", ".googleapis.com", ".gvt1.com")


@contextlib.contextmanager
def chromium(playwright: Playwright, netlog: Path, pictures: Path, *flags: str) -> Iterator[Browser]:
    """A browser; every request of its pages and its own is in `netlog` once it is closed."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("Debian's chromium is not installed; as root: apt-get install chromium", pytrace=False)
    opened = playwright.chromium.launch(
        executable_path=program, args=[*_FLAGS, *flags, f"--log-net-log={netlog}"], timeout=TIMEOUT_MS
    )
    try:
        context = opened.new_context(viewport={"width": 1280, "height": 1000})
        context.set_default_timeout(TIMEOUT_MS)
        answered: set[str] = set()
        # What the policy of the pages refuses is a request that failed before it was sent.
        context.on("response", lambda response: answered.add(host_of(response.url)))
        yield Browser(context.new_page(), answered, pictures)
    finally:
        opened.close()


class Browser:
    """A page, the hosts that answered its requests, and where its pictures go."""

    def __init__(self, page: Page, answered: set[str], pictures: Path) -> None:
        self.page = page
        self.answered = answered
        self._pictures = pictures

    def picture(self, name: str) -> None:
        """Keep what the page shows."""
        self.page.screenshot(path=self._pictures / f"{name}.png", full_page=True)


def host_of(url: str) -> str:
    """The host of a URL; nothing for `data:` and `blob:`, which go nowhere."""
    parts = urllib.parse.urlsplit(url)
    return parts.hostname or "" if parts.scheme not in ("data", "blob") else ""


def hosts_asked_for(netlog: Path) -> set[str]:
    """Hosts of every request in Chromium's own log, but for its own services."""
    log = json.loads(netlog.read_text())
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    urls = (event.get("params", {}).get("url") for event in log["events"] if event["type"] == start)
    hosts = {host_of(url) for url in urls if url}
    return {host for host in hosts if host and not host.endswith(_OWN)}
