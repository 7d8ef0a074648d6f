"""Hooks of the site's builder: links that work on GitHub work in the site too.

The sources link to files by their path in the repository: to pages, modules, folders and notebooks.
The builder reads only docs/. The hooks make every linked file a page or a download of the site, and
rewrite the links.
"""

import ast
import base64
import functools
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_NAMES = {"README.md": "overview.md"}  # docs/README.md is the first page of the site
_DOWNLOADS = {".png", ".json", ".jsonl", ".svg"}
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the notebooks, and the pages and downloads outside of docs/."""
    for path in sorted(linked() | {p.relative_to(ROOT).as_posix() for p in _always()}):
        uri = site_uri(path)
        if files.get_file_from_path(uri) is None:
            files.append(_file(path, uri, config))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrites the links of a page to their targets in the site."""
    source = repository_path(page.file.src_uri)
    if source is None:  # a listing, without links
        return markdown
    folder = posixpath.dirname(page.file.src_uri)

    def turned(target: str) -> str:
        path = resolved(source, target)
        return posixpath.relpath(site_uri(path), folder or ".") if path else target

    return with_links(markdown, turned)


def with_links(markdown: str, turned: Callable[[str], str]) -> str:
    """Markdown with each link's target replaced by `turned(target)`; code stays as it is."""
    return "".join(
        part if is_code else _LINK.sub(lambda m: m[1] + turned(m[2]) + (m[3] or "") + m[4], part)
        for is_code, part in parts(markdown)
    )


def parts(markdown: str) -> Iterator[tuple[bool, str]]:
    """Markdown in parts: (whether it is a fenced block of code, the text)."""
    found = re.split(r"(^```.*?^```[^\S\n]*$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for number, part in enumerate(found):
        yield number % 2 == 1, part


@functools.cache
def linked() -> frozenset[str]:
    """The paths in the repository that pages of the site link to, directly or through others."""
    found, left = set(), [path.relative_to(ROOT).as_posix() for path in _always()]
    while left:
        source = left.pop()
        text = "".join(part for is_code, part in parts(_markdown(source)) if not is_code)
        for match in _LINK.finditer(text):
            path = resolved(source, match[2])
            if path and path not in found:
                found.add(path)
                left += [path] if path.endswith((".md", ".ipynb")) else []
    return frozenset(found)


def resolved(source: str, target: str) -> str | None:
    """The target of a file's link as a path in the repository; `None` if it is outside."""
    if "://" in target or target.startswith(("mailto:", "data:")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def site_uri(path: str) -> str:
    """The place in the site of a path of the repository."""
    if path.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    if "/" not in path and path.endswith(".md"):
        return _NAMES.get(path, path.lower())
    if Path(path).suffix in {".md", *_DOWNLOADS}:
        return path
    return f"source/{path.removeprefix('.')}.md"


def repository_path(uri: str) -> str | None:
    """The path in the repository of a page of the site; `None` for pages of source code."""
    if uri.startswith("source/"):
        return None
    places = [path for path in linked() if site_uri(path) == uri]
    always = [path.relative_to(ROOT).as_posix() for path in _always()]
    return next((p for p in [*places, *always] if site_uri(p) == uri), f"docs/{uri}")


def _always():
    """The sources of the site that are in it without a link."""
    folders = (ROOT / "docs").rglob("*.md"), (ROOT / "docs/notebooks").glob("*.ipynb")
    results = (ROOT / "benchmarks/results").glob("*.md")
    return [path for found in (*folders, ROOT.glob("*.md"), results) for path in sorted(found)]


def _file(path, uri, config):
    if uri.endswith(".md"):
        return File.generated(config, uri, content=_markdown(path))
    return File.generated(config, uri, abs_src_path=str(ROOT / path))


def _markdown(path):
    """A file of the repository as Markdown."""
    full = ROOT / path
    if path.endswith(".md"):
        return full.read_text()
    if path.endswith(".ipynb"):
        return notebook(json.loads(full.read_text()))
    return _NOT_SEARCHED + (_listing(path, full) if full.is_dir() else _source(path, full))


def _source(path, full):
    return f"# `{path}`\n\n``````{full.suffix.removeprefix('.')}\n{full.read_text()}\n``````\n"


def _listing(path, full):
    """The modules of a folder with the first sentence of each."""
    rows = [f"| `{file.name}` | {_first_line(file)} |\n" for file in sorted(full.glob("*.*"))]
    return f"# `{path}/`\n\n| file | content |\n|---|---|\n{''.join(rows)}"


def _first_line(file):
    if file.suffix != ".py":
        return ""
    words = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
    return words.replace("|", "\\|").replace("<", "&lt;")


def notebook(content: dict) -> str:
    """A notebook as Markdown: its text, its code, and the outputs below the code."""
    return "\n\n".join(_cell(cell) for cell in content["cells"]) + "\n"


def _cell(cell):
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    shown = [_output(output) for output in cell["outputs"]]
    return "\n\n".join([f"```python\n{text}\n```", *filter(None, shown)])


def _output(output):
    if output["output_type"] == "stream":
        return _printed(output["text"])
    data = output.get("data", {})
    if "image/png" in data:
        picture = base64.b64encode(base64.b64decode("".join(data["image/png"]))).decode()
        return f"![plot](data:image/png;base64,{picture})"
    return _printed(data.get("text/plain", ""))


def _printed(lines):
    text = "".join(lines).rstrip()
    return f"```text\n{text}\n```" if text else ""
