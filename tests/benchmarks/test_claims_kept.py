"""The studies' kept records: complete; the pages say what they give, the README what pages say."""

import re

import pytest
from claim_studies import ROOT, script

STUDIES = ("batch_scaling", "legw", "mixed_batch", "variants")


@pytest.mark.parametrize("name", STUDIES)
def test_a_kept_study_is_complete_and_its_page_is_what_its_records_give(name, tmp_path):
    study, claim = script("claim"), script(name).CLAIM
    flags = ["--page_only", f"--page={tmp_path / name}.md"]
    assert study.main(claim, study.parser(claim, "").parse_args(flags)) == 0
    page = (tmp_path / f"{name}.md").read_text()
    assert page == (ROOT / f"docs/evidence/{name}.md").read_text()
    trials = len(claim.trials(claim.settings))
    assert f"**{trials} of {trials} trials are done**" in " ".join(page.split())


def losses(page, title):
    """{optimizer: [mean loss at each batch, None where it diverged]} of a section's first table."""
    table = page.split(f"\n## {title}\n\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([A-Z].*?) \| (.*) \|$", table, re.MULTILINE)
    number = re.compile(r"(\d\.\d{3}) ±")
    cells = {name: [number.match(cell) for cell in row.split(" | ")] for name, row in rows}
    return {name: [m and float(m[1]) for m in row] for name, row in cells.items()}


def test_the_losses_of_the_readme_are_those_of_the_page():
    page = (ROOT / "docs/evidence/batch_scaling.md").read_text()
    tuned, untuned = losses(page, "Tuned at every batch"), losses(page, "Untuned")
    rows = dict(re.findall(r"^\| ([A-Z][^|]*?) \| ((?:\d|–).*) \|$", section(), re.MULTILINE))
    assert set(rows) == set(script("batch_scaling").page.LABELS.values())
    for name, row in rows.items():
        of_page = [tuned[name][0], tuned[name][2], tuned[name][3], untuned[name][3]]
        for cell, loss in zip(row.split(" | "), of_page, strict=True):
            assert (cell == "diverges") if loss is None else abs(float(cell) - loss) < 0.0051


def test_the_figures_of_the_readmes_advice_are_those_of_the_pages():
    pages = {name: (ROOT / f"docs/evidence/{name}.md").read_text() for name in STUDIES}
    advice = re.findall(r"^- (.*(?:\n  .*)*)", section(), re.MULTILINE)
    assert len(advice) == 5
    for words in advice:
        linked = re.search(r"docs/evidence/(\w+)\.md", words)
        page = pages[linked[1] if linked else "batch_scaling"]
        differences = {f"{abs(float(d)):.1f}" for d in re.findall(r"([-+]\d+\.\d+) ±", page)}
        assert set(re.findall(r"\b\d\.\d\b", words)) <= differences, words


def section():
    readme = (ROOT / "README.md").read_text()
    return readme.split("## What happens when the batch grows")[1].split("\n## ")[0]
