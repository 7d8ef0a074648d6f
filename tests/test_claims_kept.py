"""The studies' kept records: complete; the pages say what they give, the README what pages say."""

import re

import pytest
from claim_studies import ROOT, script

STUDIES = ("batch_scaling", "legw", "mixed_batch", "variants")


@pytest.mark.parametrize("name", STUDIES)
def test_a_kept_study_is_complete_and_its_page_is_what_its_records_give(name, tmp_path):
    study, claim = script("study"), script(name).CLAIM
    flags = ["--page_only", f"--page={tmp_path / name}.md"]
    assert study.main(claim, study.parser(claim, "").parse_args(flags)) == 0
    page = (tmp_path / f"{name}.md").read_text()
    assert page == (ROOT / f"docs/evidence/{name}.md").read_text()
    trials = len(claim.trials(claim.settings))
    assert f"**{trials} of {trials} trials are done**" in " ".join(page.split())


def test_the_readme_says_what_the_pages_say():
    readme = (ROOT / "README.md").read_text()
    section = readme.split("## What a large batch does, measured")[1].split("\n## ")[0]
    pages = {name: (ROOT / f"docs/evidence/{name}.md").read_text() for name in STUDIES}
    rows = re.findall(r"^\| [A-Z].*\|$", section, re.MULTILINE)
    assert len(rows) == len(script("batch_scaling").page.LABELS)
    prose = re.findall(r"[-+]\d\S* ± \S+\d", re.sub(r"^\|.*", "", section, flags=re.MULTILINE))
    assert prose
    for words in (*rows, *prose):
        assert words in pages["batch_scaling"]
    answers = re.findall(r"^\| \[.*\]\(docs/evidence/(\w+)\.md\) \|(.*)\|$", section, re.MULTILINE)
    assert [name for name, _ in answers] == [name for name in STUDIES if name != "batch_scaling"]
    for name, words in answers:
        figures = re.findall(r"[-+]?\d[\d.,]*\d(?: ± \d+\.\d+)?", words)
        assert figures
        for figure in figures:
            assert figure in pages[name], (name, figure)
