"""Studies: their flags, their trials that are killed and resumed, LEGW as a whole."""

import functools
import gzip
import json
import os
import signal
import subprocess
import sys
import time

import claim
import numpy as np
import peers
import pytest
import stats
import trials
from claim_studies import ROOT, command, record, records_of, script

from official_bert.system import locks

TINY_LEGW = {
    "size": 4,
    "hidden": 8,
    "epochs": 2,
    "train_examples": 640,
    "select_examples": 100,
    "report_examples": 200,
    "base_batch": 16,
    "multiples": [4],
    "rates": {"adam": [3e-2]},
    "linear_warmup_epochs": 1,
    "seeds": 1,
    "failure": {"base_batch": 16, "multiple": 4, "rate": 1e-3, "base_warmup_epochs": 0.1},
    "micro_batch": 32,
}


def write_idx(path, array):
    header = np.array([0x0800 + array.ndim, *array.shape], ">u4").tobytes()
    path.with_suffix(".gz").write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A folder with idx files: each label lights some squares of the images."""
    folder, generator = tmp_path_factory.mktemp("mnist"), np.random.default_rng(0)
    legw = script("legw")
    for split, count in (("train", 800), ("test", 200)):
        labels = generator.integers(0, 10, count)
        images = generator.integers(0, 64, (count, 28, 28))
        patterns = np.random.default_rng(1).integers(0, 2, (10, 4, 4)).repeat(7, 1).repeat(7, 2)
        images[patterns[labels] > 0] = 255
        for name, array in zip(legw.FILES[split], (images, labels), strict=True):
            write_idx(folder / name, array)
    return folder


# What they compute


def test_images_become_rows_of_means_and_the_three_sets_do_not_overlap(digits, tmp_path):
    legw = script("legw")
    with pytest.raises(ValueError, match=r"has no train-images-idx3-ubyte.* leave it out"):
        legw.load(str(tmp_path))
    images = legw.load(str(digits))["train"][0]
    rows = legw.rows_of(images, 14)
    assert rows.shape == (800, 14, 14)
    assert rows[5, 3, 4] == pytest.approx(images[5, 6:8, 8:10].mean() / 255)
    sets = legw.splits(str(digits), 28, 600, 200, 150)
    assert [len(labels) for _, labels in sets.values()] == [600, 200, 150]
    np.testing.assert_array_equal(sets["select"][0][0], legw.rows_of(images, 28)[600])
    with pytest.raises(ValueError, match="=601 and select_examples=200 overlap: there are 800"):
        legw.splits(str(digits), 28, 601, 200, 150)


@pytest.mark.parametrize(
    ("rule", "batch", "peak", "warmup"),
    [
        ("base", 128, 0.1, 50),
        ("legw", 2048, 0.4, 50),  # the same number of updates
        ("sqrt", 2048, 0.4, 3),  # the same number of epochs: 3.125 updates
        ("linear", 2048, 1.6, 31),
        ("constant", 2048, 0.1, 3),
    ],
)
def test_rules_scale_rate_and_warmup_as_they_say(rule, batch, peak, warmup):
    base = {"base": 128, "base_rate": 0.1, "base_warmup": 0.5, "linear_warmup": 5}
    rates = script("legw").schedule(rule, batch, examples=12_800, updates=80, **base)
    assert rates.max() == pytest.approx(peak)
    assert int(np.argmax(rates >= rates.max() * (1 - 1e-6))) == warmup


# Trials and their records


def study(results, listed, settings=None, extent=()):
    return trials.Study(results, settings or {}, functools.partial(listed_in, listed), extent)


def listed_in(listed, records):
    return listed


def test_a_study_that_grows_keeps_what_is_done(tmp_path):
    line = record({"number": 1}, report=4.0) | {"settings": {"rate": 1, "seeds": 1}}
    (tmp_path / "r.jsonl").write_text(json.dumps(line) + "\n")

    def known(settings, extent=("seeds",), numbers=(1, 2)):
        numbered = [{"number": number} for number in numbers]
        return [*study(tmp_path / "r.jsonl", numbered, settings, extent).done()]

    assert known({"rate": 1, "seeds": 3}) == ["number 1"]
    assert not known({"rate": 1, "seeds": 3}, ())
    assert not known({"rate": 2, "seeds": 1})
    assert not known({"rate": 1, "seeds": 3}, numbers=[2])


def test_two_studies_do_not_write_to_one_file_of_results(tmp_path):
    results = tmp_path / "r.jsonl"
    with trials.exclusive(tmp_path / "one", results):
        for folder, name in (tmp_path / "one", ".lock"), (tmp_path, ".r.jsonl.lock"):
            with pytest.raises(locks.Busy), locks.exclusive(folder, name=name):
                pytest.fail("the lock was not held")
    with trials.exclusive(tmp_path / "two", results):
        assert not results.exists()


def test_diverged_trials_are_counted_and_never_chosen(tmp_path):
    good = record({"method": "lamb", "seed": 1}, report=4.0, select=4.0)
    lost = record({"method": "lamb", "seed": 2}, report=None, select=None)
    assert stats.chosen([lost, good], "select", lowest=True) is good
    variants, every = script("variants").CLAIM, [good["trial"], lost["trial"], {}]
    made = claim.measured(variants, [good, lost], study(tmp_path / "r.jsonl", every))
    assert made[1][1].startswith("2 of 3 done; 1 diverged: the training loss was not finite or")


SLOW_STUDY = """
import sys, time
import claim

def run(options, settings, trial, records):
    if "fails" in trial:
        return None
    time.sleep(settings["seconds"])
    return {"diverged": False, "said": "done", "seen": len(records)}

def all_trials(settings, records):
    return [{"number": n} for n in range(settings["count"])] + [{"last": 1}, {"fails": 1}]

def needs(trial, other):
    return "last" in trial and "number" in other

def tables(records, settings):
    return {"seen": [("trial", "seen"), *((str(r["trial"]), r["seen"]) for r in records)]}

CLAIM = claim.Claim("slow", "slow", "A study", {"count": 6, "seconds": 0.3}, all_trials, run,
                    tables, {}, (), needs=needs)

if __name__ == "__main__":
    sys.exit(claim.main(CLAIM, claim.parser(CLAIM, "").parse_args()))
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_study_that_is_killed_goes_on_with_the_next_trial_and_writes_its_page(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW_STUDY)
    arguments = [sys.executable, tmp_path / "slow.py", "--jobs=2"]
    arguments += command("slow", tmp_path, {})[2:]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL) as first:
        while len(records_of(tmp_path, "slow")) < 2:
            assert first.poll() is None
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
    results = tmp_path / "slow.jsonl"
    before = results.read_text()
    results.write_text(before + '{"trial": {"number"')  # what a kill may leave
    second = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=600)
    assert second.returncode == 1
    assert second.stderr == "failed: fails 1; the same command tries it again\n"
    assert results.read_text().startswith(before)
    found = records_of(tmp_path, "slow")
    names = [json.dumps(each["trial"]) for each in found]
    assert len(names) == len(set(names)) == 7
    assert found[-1]["trial"] == {"last": 1}  # which waits for all of the others
    assert found[-1]["seen"] == 6
    assert {each["jobs"] for each in found} == {2}
    assert all("slow.py" in each["command"] and each["commit"] for each in found)
    assert f"trial {len(before.splitlines()) + 1} of 8: number " in second.stdout
    assert second.stdout.endswith(f"7 of 8 trials are done: {tmp_path}/slow.md\n")
    page = (tmp_path / "slow.md").read_text()
    assert page.startswith("# A study\n")
    assert "| {'last': 1} | 6 |" in page
    assert "| trials | 7 of 8 done; 0 diverged: " in page


@pytest.mark.slow
def test_legw_as_a_whole_trains_at_the_best_rate_and_writes_its_page(digits, tmp_path):
    for peer in ("jax", "matplotlib"):
        peers.load(peer)
    arguments = command("legw", tmp_path, TINY_LEGW, f"--mnist_dir={digits}")
    run = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    found = records_of(tmp_path, "legw")
    assert len(found) == 9
    assert found[0]["trial"]["part"] == "tuning"
    assert found[0]["report"] > 20  # chance is 10 %
    scaled = [r for r in found if r["trial"]["part"] == "scaling"]
    assert {r["base_rate"] for r in scaled} == {found[0]["base_rate"]}
    assert f"0.03: {found[0]['select']:.2f} %" in (tmp_path / "legw.md").read_text()
    assert (tmp_path / "legw.png").stat().st_size > 1000


def test_what_no_study_can_follow_is_refused_before_it_begins(tmp_path, capsys, monkeypatch):
    variants = script("variants")

    def refused(settings, *flags):
        options = claim.parser(variants.CLAIM, "").parse_args(
            command("variants", tmp_path, settings, *flags)[2:]
        )
        assert claim.main(variants.CLAIM, options) == 2
        assert not list(tmp_path.iterdir())
        return capsys.readouterr().err

    said = refused({"seed": 2, "hidden_size": 64})
    assert said.startswith("--settings must be among variants, ")
    assert said.endswith("; got seed. Correct the name.\n")
    assert refused([1]) == "--settings must be a JSON object; got [1].\n"
    assert "; got x, y." in refused({"variants": ["x", "paper", "y"]})
    assert refused({"rates": []}) == "--settings: rates must contain a number; got [].\n"
    odd = ({"seeds": "3"}, {"seeds": 0}, {"seeds": 1e3}, {"rates": 0.1}, {"variants": 5})
    for settings in (*odd, {"updates": -1}, {"hidden_size": None}, {"rates": ["x"]}):
        (name,) = settings
        said = refused(settings)
        assert said.startswith(f"--settings: {name} must be like ")
        assert said.endswith(f"; got {json.dumps(settings[name])}.\n")
    scaling = script("batch_scaling")
    assert "groups must be among lamb, " in scaling.problem(
        scaling.SETTINGS | {"groups": [["sgd"]]}
    )
    for multiples in ([4, 1], [2, 4], [1, 4, 4]):
        assert "in order" in scaling.problem(scaling.SETTINGS | {"multiples": multiples})
    assert scaling.problem(scaling.SETTINGS) is None
    assert scaling.problem(scaling.SETTINGS | scaling.QUICK) is None
    for jobs in (0, 9999):
        assert f"; got {jobs}." in refused({}, f"--jobs={jobs}")
    for name in ("legw", "mixed_batch", "variants", "batch_scaling"):
        study = script(name).CLAIM
        assert claim.misfit(study, study.settings) is claim.misfit(study, study.quick) is None
    missing = variants.CLAIM._replace(packages=("matplotlib", "no_such_package"))
    monkeypatch.setattr(variants, "CLAIM", missing)
    assert refused({}).startswith("This needs no_such_package, which is not installed. In a")


def test_a_line_that_is_no_record_is_named_and_one_without_its_end_counts(tmp_path, capsys):
    variants = script("variants")
    flags = command("variants", tmp_path, {}, "--page_only")[2:]
    options = claim.parser(variants.CLAIM, "").parse_args(flags)
    results = tmp_path / "variants.jsonl"
    for content, reason in (
        (b"\nx\n", ", line 2 must be JSON; got "),
        (b'{"a": 1}\n', ", line 1 must be the record of a trial"),
        (b'{"a": "\xff"}\n', " must be a text file"),
    ):
        results.write_bytes(content)
        assert claim.main(variants.CLAIM, options) == 2
        assert f"{results}{reason}" in capsys.readouterr().err
    first, second = ({"trial": {"number": n}, "settings": {}} for n in (1, 2))
    work = study(results, [first["trial"], second["trial"]])
    results.write_text(json.dumps(first))
    work.add(second)
    assert list(work.done().values()) == [first, second]
