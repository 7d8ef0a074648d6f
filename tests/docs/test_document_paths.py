"""The files that the documents name, and those that their links lead to, exist."""

import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A full stop may end the sentence, so a path ends in a letter; placeholders in <> are no paths.
PATH = re.compile(
    r"(?<![\w/.])(?:official_bert|lamb_tf|docs|benchmarks|tests)/[\w/.-]*\.[a-z]+\b(?![\w<])"
)


def prose(document):
    return re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_every_path_that_a_document_names_exists():
    named = {(one, path) for one in DOCUMENTS for path in PATH.findall(one.read_text())}
    assert {
        (one.relative_to(ROOT).as_posix(), path)
        for one, path in named
        if not (ROOT / path).exists()
    } == set()


def test_every_link_of_a_document_leads_to_a_file():
    links = {(d, link) for d in DOCUMENTS for link in re.findall(r"\]\(([^)#]+)[^)]*\)", prose(d))}
    relative = {(d, link) for d, link in links if "://" not in link}
    assert {
        (d.relative_to(ROOT).as_posix(), link)
        for d, link in relative
        if not (d.parent / link).exists()
    } == set()


@functools.cache
def anchors(document):
    """GitHub's, from the titles; unlike those of the site, they keep neighbouring hyphens."""
    titles = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    plain = (re.sub(r"\]\([^)]*\)", "]", title).lower() for title in titles)
    found = [re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain]
    again = (f"{a}-{found[:n].count(a)}" for n, a in enumerate(found) if a in found[:n])
    return {*found, *again}


def test_every_link_within_the_documents_leads_to_a_title_on_github():
    broken = set()
    for document in DOCUMENTS:
        for path, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", prose(document)):
            page = document.parent / path if path else document
            if page.is_file() and page.suffix == ".md" and anchor not in anchors(page):
                broken.add((document.relative_to(ROOT).as_posix(), path, anchor))
    assert broken == set()


def test_the_paths_of_this_test_are_found_in_text():
    text = "`lamb_tf/lamb.py`, [x](../docs/tpu.md), benchmarks/results/a_b.md. tests/test_<x>.py"
    assert PATH.findall(text) == ["lamb_tf/lamb.py", "benchmarks/results/a_b.md"]


def test_every_page_and_every_result_is_in_the_navigation_of_the_site():
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    shown = set(re.findall(r"[\w/.]+\.md", text))
    results = {p.relative_to(ROOT).as_posix() for p in (ROOT / "benchmarks/results").glob("*.md")}
    docs = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "docs").rglob("*.ipynb")}
    assert shown == docs | results | notebooks | {"overview.md", "changelog.md", "contributing.md"}
