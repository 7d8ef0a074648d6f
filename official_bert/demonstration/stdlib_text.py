"""English text that comes with Python, for a demonstration without downloads.

Sources: the language reference of `help()` (`pydoc_data.topics`), and the docstrings and comments
of the standard library, which is parsed but never imported. Text that is not prose (code, tables,
option lists) is left out. A repeated paragraph is kept only once: otherwise held-out text could be
memorized.
"""

import ast
import inspect
import itertools
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Folders of third-party packages, and of tests, whose docstrings are rarely sentences.
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "ensurepip"}

_MIN_WORDS = 5
_MIN_LETTER_SHARE = 0.75  # of letters and spaces among a paragraph's characters


def documents(min_words: int = 60) -> Iterator[tuple[str, list[str]]]:
    """Yields (name, paragraphs) of each topic and module with `min_words` of prose.

    Order and content depend only on the Python version.
    """
    seen: set[str] = set()
    for name, texts in itertools.chain(_topics(), _modules()):
        fresh = []
        for paragraph in (p for text in texts for p in prose_paragraphs(text)):
            if paragraph not in seen:
                seen.add(paragraph)
                fresh.append(paragraph)
        if sum(len(paragraph.split()) for paragraph in fresh) >= min_words:
            yield name, fresh


def _topics() -> Iterator[tuple[str, list[str]]]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield f"topic {name}", [topics[name]]


def _modules() -> Iterator[tuple[str, list[str]]]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if _SKIPPED_FOLDERS.isdisjoint(relative.parts):
            try:
                source = path.read_text("utf-8")
                yield f"module {relative.as_posix()}", docstrings(source) + comments(source)
            except (SyntaxError, ValueError):  # a few files are invalid, or Latin-1, on purpose
                continue


def docstrings(source: str) -> list[str]:
    """The docstrings of a Python source, in order."""
    tree = ast.parse(source)
    owners = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    owners.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for node in owners if (text := ast.get_docstring(node))]


def comments(source: str) -> list[str]:
    """The comments on lines of their own in a Python source; adjacent lines are joined."""
    blocks = re.findall(r"(?:^[ \t]*#.*\n)+", source, re.MULTILINE)
    return [re.sub(r"^[ \t]*#+ ?", "", block, flags=re.MULTILINE) for block in blocks]


def prose_paragraphs(text: str) -> list[str]:
    """The paragraphs that are sentences, each on one line and without markup.

    >>> prose_paragraphs("Sort the list *in place* and return :const:`None`.\\n\\n>>> x.sort()")
    ['Sort the list in place and return None.']
    """
    paragraphs = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if ">>>" in block:
            continue
        block = re.sub(r"(\w-)\n\s*", r"\1", block)  # a word that was split at its hyphen
        line = _without_markup(" ".join(block.split()))
        if _is_prose(line):
            paragraphs.append(line)
    return paragraphs


def _without_markup(line: str) -> str:
    line = re.sub(r":[a-z:]+:`~?([^`<]+?)(?: *<[^`>]*>)?`", r"\1", line)  # :meth:`~str.join`
    line = re.sub(r"[`*]{2}([^`*]+)[`*]{2}|`([^`]+)`", r"\1\2", line)  # ``x``, **x**, `x`
    line = re.sub(r"(?<!\w)\*(\w[^*]*?)\*(?!\w)", r"\1", line)  # *x*
    line = re.sub(r"([*=\-~^\"])\1{3,}", "", line)  # the underlines of titles
    return re.sub(r"^[*\-•] |::$", "", line).strip()


def _is_prose(line: str) -> bool:
    words = line.split()
    if len(words) < _MIN_WORDS or not line[0].isalpha():
        return False
    letters = sum(character.isalpha() or character == " " for character in line)
    ends_well = line[-1] in ".!?:)"
    return ends_well and letters >= _MIN_LETTER_SHARE * len(line)
