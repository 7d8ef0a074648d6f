"""Puts the tables and pictures of the kept records into the pages of docs/.

    python benchmarks/evidence.py           # rewrites the tables and the pictures
    python benchmarks/evidence.py --check   # changes nothing; exit code 1 if one is out of date

The pages are Markdown written by hand. The table NAME of a page's study is between
`<!-- table: NAME -->` and `<!-- end -->`. A picture contains the digest of its records.
"""

import argparse
import hashlib
import importlib
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "benchmarks/claims"), str(ROOT)]

MARKED = re.compile(r"<!-- table: (.+?) -->\n.*?<!-- end -->", re.DOTALL)
MODULES = (  # studies; one without kept records changes nothing
    *("batch_scaling", "lars", "legw", "mixed_batch", "variants", "stacking_study"),
    *("learning_curves", "fine_tuning_scores", "install_matrix", "row_filling"),
    *("same_hour_search", "semantic_search"),
)


class Contents(NamedTuple):
    """The tables and pictures of a page.

    Args:
        title: Title of a new page.
        tables: {name: rows of cells, the head first}.
        pictures: {suffix of the picture's name: function that draws a figure}.
    """

    title: str
    tables: Mapping[str, Sequence[Sequence[Any]]]
    records: Sequence[pathlib.Path] = ()
    pictures: Mapping[str, Callable] = {}


def table(rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table, the head first."""
    head, *rest = rows
    return "\n".join(f"| {' | '.join(map(str, r))} |" for r in (head, ["---"] * len(head), *rest))


def text(page: pathlib.Path, contents: Contents) -> str:
    """The page with its tables; tables without marks are added at its end."""
    found = page.read_text(encoding="utf-8") if page.is_file() else f"# {contents.title}\n"
    marked = {
        name: f"<!-- table: {name} -->\n\n{table(rows)}\n\n<!-- end -->"
        for name, rows in contents.tables.items()
    }
    there = set(MARKED.findall(found))
    found = MARKED.sub(lambda match: marked.get(match[1], match[0]), found)
    new = [f"\n## {name}\n\n{rows}\n" for name, rows in marked.items() if name not in there]
    return found + "".join(new)


def write(page: pathlib.Path, contents: Contents) -> None:
    """Writes the tables into the page and the pictures next to it."""
    from official_bert.system.whole_files import write_text

    page.parent.mkdir(parents=True, exist_ok=True)
    found = text(page, contents)
    for ending, draw in contents.pictures.items():
        figure, path = draw(), _picture(page, ending)
        figure.tight_layout()
        figure.savefig(path, dpi=120, metadata={"Records": digest(contents.records)})
        if not page.exists():
            found += f"\n![{contents.title}]({path.name})\n"
    write_text(page, found)


def out_of_date(page: pathlib.Path, contents: Contents) -> list[pathlib.Path]:
    """The files among the page and its pictures that differ from the records."""
    stamp = b"Records\0" + digest(contents.records).encode()  # texts of a PNG are not compressed
    pictures = [_picture(page, ending) for ending in contents.pictures]
    pages = [page] * (text(page, contents) != page.read_text(encoding="utf-8"))
    return pages + [path for path in pictures if stamp not in path.read_bytes()]


def _picture(page, ending):
    return page.with_name(f"{page.stem}{ending}.png")


def digest(files: Sequence[pathlib.Path]) -> str:
    """SHA-256 of the bytes of all files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def kept() -> Iterator[tuple[pathlib.Path, Contents]]:
    """Every page with marked tables, and its contents."""
    import claim  # it imports this module

    for name in MODULES:
        module = importlib.import_module(name)
        yield from claim.kept(module.CLAIM) if hasattr(module, "CLAIM") else module.kept()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; 1: out of date")
    if not parser.parse_args().check:
        for page, contents in kept():
            write(page, contents)
        return 0
    old = [path.relative_to(ROOT) for each in kept() for path in out_of_date(*each)]
    for path in old:
        print(f"{path} is out of date; run python benchmarks/evidence.py.")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
