"""The pages of docs/: their tables and pictures are those of the records, the prose is theirs."""

import importlib
import re
import shutil
import sys

import evidence  # after the path of benchmarks, which claim_studies adds
import pytest
from claim_studies import ROOT

PAGES = {page.stem: (page, contents) for page, contents in evidence.kept()}
STUDIES = ("batch_scaling", "legw", "mixed_batch", "variants")
GIVEN = {"5.5", "0.5", "0.1", "0.001", "0.01"}  # limits and settings that a page states
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?!\.?\d)")


def test_every_table_and_picture_is_that_of_its_records():
    assert [path for each in evidence.kept() for path in evidence.out_of_date(*each)] == []
    for page, contents in evidence.kept():
        marks = set(evidence.MARKED.findall(page.read_text()))
        assert {*contents.tables} <= marks, page  # none is added at a page's end


def test_a_table_or_a_picture_that_is_not_that_of_its_records_is_named(
    tmp_path, monkeypatch, capsys
):
    page, contents = PAGES["variants"]
    copy = tmp_path / "docs/variants.md"
    evidence.write(copy, contents)
    assert copy.read_text().startswith("# Variants of LAMB compared\n\n## losses\n\n<!-- table: ")
    assert "![Variants of LAMB compared](variants.png)" in copy.read_text()
    shutil.copy(page, copy)
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "kept", lambda: [(copy, contents)])
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--check"])
    assert evidence.main() == 0
    copy.write_text(copy.read_text().replace("| N-LAMB | 0.012 |", "| N-LAMB | 0.006 |"))
    picture = copy.with_suffix(".png")
    picture.write_bytes(
        picture.read_bytes().replace(evidence.digest(contents.records).encode(), b"0" * 64)
    )
    before = copy.read_bytes(), picture.read_bytes()
    assert evidence.main() == 1
    assert capsys.readouterr().out.split("\n")[0].startswith("docs/variants.md is out of date")
    assert (copy.read_bytes(), picture.read_bytes()) == before
    monkeypatch.setattr(sys, "argv", ["evidence.py"])
    assert evidence.main() == 0
    assert copy.read_text() == page.read_text()


@pytest.mark.parametrize("name", STUDIES)
def test_a_kept_study_is_complete(name):
    claim = importlib.import_module(name).CLAIM
    (_, first), *_ = PAGES[name][1].tables["measured"][1:]
    trials = len(claim.trials(claim.settings, []))
    assert first.startswith(f"{trials} of {trials} done; ")


@pytest.mark.parametrize("name", sorted({*PAGES} - {"installing"}))
def test_the_figures_in_a_pages_prose_are_in_its_tables(name):
    page = PAGES[name][0].read_text()
    tables = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    found = [float(n) for n in NUMBER.findall(tables.replace(",", ""))]
    prose = re.sub(r"^## Published results\n.*?(?=^## )", "", page, flags=re.M | re.S)
    prose = "\n".join(line for line in prose.splitlines() if line[:1] not in ("|", " ", "#"))
    prose = re.sub(r"arXiv \S+|`[^`]*`|\]\([^)]*\)", "", prose)
    unknown = [
        number
        for number in NUMBER.findall(prose)
        if number not in {f"{value:.{len(number.partition('.')[2])}f}" for value in found} | GIVEN
    ]
    assert unknown == []


def rows(name, table):
    return {row[0]: row[1:] for row in PAGES[name][1].tables[table][1:]}


def test_the_losses_of_the_readme_are_those_of_the_page():
    tuned, untuned = rows("batch_scaling", "tuned"), rows("batch_scaling", "untuned")
    shown = dict(re.findall(r"^\| ([A-Z][^|]*?) \| ((?:\d|–).*) \|$", section(), re.MULTILINE))
    assert set(shown) == set(tuned)
    for name, row in shown.items():
        of_tuned, of_untuned = tuned[name], untuned[name]
        of_page = [of_tuned[0], of_tuned[2], of_untuned[2], of_tuned[3], of_untuned[3]]
        for cell, of in zip(row.split(" | "), of_page, strict=True):
            loss = re.match(r"(\d\.\d{3}) ±", of)
            assert (
                (cell == "diverges") if loss is None else abs(float(cell) - float(loss[1])) < 0.0051
            )


def test_the_figures_of_the_readmes_advice_are_those_of_the_pages():
    advice = re.findall(r"^- (.*(?:\n  .*)*)", section(), re.MULTILINE)
    assert len(advice) == 5
    for words in advice:
        linked = re.search(r"docs/evidence/(\w+)\.md", words)
        page = PAGES[linked[1] if linked else "batch_scaling"][0].read_text()
        differences = {f"{abs(float(d)):.1f}" for d in re.findall(r"([-+]\d+\.\d+) ±", page)}
        assert set(re.findall(r"\b\d\.\d\b", words)) <= differences, words


def section():
    readme = (ROOT / "README.md").read_text()
    return readme.split("## What happens when the batch grows")[1].split("\n## ")[0]
