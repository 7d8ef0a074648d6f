"""The documentation as a site: it builds without a warning, and holds together in a browser."""

import functools
import html.parser
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import browser
import peers
import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


class Links(html.parser.HTMLParser):
    """What a page leads to and shows, and the places in it that can be led to."""

    def __init__(self, text):
        super().__init__()
        self.found, self.anchors, self.fetched = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        if tag in ("a", "link"):
            self.found.add(attributes.get("href"))
        if tag in ("img", "script", "source"):
            self.found.add(attributes.get("src"))
        if tag in ("img", "script") or attributes.get("rel") in ("stylesheet", "icon"):
            self.fetched.add(attributes.get("src") or attributes.get("href"))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    peers.load("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served."""
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def pages(site):
    """{path in the site: its `Links`} of every page."""
    found = {path.relative_to(site).as_posix(): path for path in site.rglob("*.html")}
    return {name: Links(path.read_text()) for name, path in found.items() if name != "404.html"}


def place_of(site, page, path):
    """The file that a path in a page leads to, relative to the site."""
    if not path:
        return page
    place = os.path.normpath(os.path.join(os.path.dirname(page), path))
    return f"{place}/index.html".removeprefix("./") if (site / place).is_dir() else place


def test_every_link_of_every_page_leads_to_something_and_to_a_place_in_it(site):
    found = pages(site)
    assert len(found) > 40
    broken = []
    for name, page in found.items():
        for link in page.found - {None, ""}:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = place_of(site, name, urllib.parse.unquote(parts.path))
            known = found[path].anchors if path in found else {parts.fragment}
            if not (site / path).exists() or (parts.fragment and parts.fragment not in known):
                broken.append((name, link))
    assert broken == []


def test_nothing_comes_from_another_server(site):
    fetched = {link for page in pages(site).values() for link in page.fetched if link}
    assert {link for link in fetched if "//" in link and not link.startswith("data:")} == set()


def test_every_document_and_every_public_name_of_the_optimizers_is_in_the_site(site):
    import lamb_tf

    for path in (ROOT / "docs").rglob("*.md"):
        place = path.relative_to(ROOT / "docs").with_suffix("")
        place = place.parent if place.name == "README" else place
        assert (site / place / "index.html").exists(), path
    anchors = pages(site)["reference/lamb_tf/index.html"].anchors
    ends = {anchor.rpartition(".")[2] for anchor in anchors if anchor}
    assert {*lamb_tf.__all__} - {"__version__"} <= ends
    assert {"WarmupPolynomialDecay", "legw", "record", "read", "Log", "plot"} <= ends


def test_every_page_is_whole_in_a_browser_on_a_phone(site, address):
    with browser.open_browser() as opened:
        for name in pages(site):
            if name.startswith("source/"):  # code, each page as the other
                continue
            opened.open(address + name.removesuffix("index.html"), browser.PHONE)
            assert opened.hidden_width() == 0, name
            images = opened.images()
            assert all(width > 0 for width in images.values()), (name, images)
            fetched = opened.run("return performance.getEntriesByType('resource').map(r => r.name)")
            assert all(one.startswith((address, "data:", "blob:")) for one in fetched), name
            assert opened.errors() == [], name


@pytest.mark.parametrize("page", ["evidence/", "overview/", "schedules/", "results/small_wiki/"])
def test_the_pages_that_have_plots_show_them(address, page):
    with browser.open_browser() as opened:
        opened.open(address + page)
        assert any(width > 300 for width in opened.images().values())


def test_the_search_finds_trust_ratio(site, address):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    with browser.open_browser() as opened:
        opened.open(address)
        opened.driver.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys(
            "trust ratio"
        )

        def results(driver):
            found = driver.find_elements(By.CSS_SELECTOR, "a.md-search-result__link")
            return [link.get_attribute("href") for link in found]

        links = WebDriverWait(opened.driver, 20).until(results)
        first = urllib.parse.urlsplit(links[0]).path.strip("/")
        assert "trust ratio" in (site / first / "index.html").read_text().lower()
        assert opened.errors() == []
    index = json.loads((site / "search/search_index.json").read_text())
    assert not any(entry["location"].startswith("source/") for entry in index["docs"])
