"""Studies: their flags, their trials that are killed and resumed, LEGW as a whole."""

import argparse
import functools
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
    import mnist

    for split, count in (("train", 800), ("test", 200)):
        labels = generator.integers(0, 10, count)
        images = generator.integers(0, 64, (count, 28, 28))
        patterns = np.random.default_rng(1).integers(0, 2, (10, 4, 4)).repeat(7, 1).repeat(7, 2)
        images[patterns[labels] > 0] = 255
        for name, array in zip(mnist.FILES[split], (images, labels), strict=True):
            write_idx(folder / name, array)
    return folder


# What they compute


def test_images_become_rows_of_means_and_the_three_sets_do_not_overlap(digits):
    import mnist

    images = mnist.load(str(digits))["train"][0]
    rows = mnist.rows_of(images, 14)
    assert rows.shape == (800, 14, 14)
    assert rows[5, 3, 4] == pytest.approx(images[5, 6:8, 8:10].mean() / 255)
    sets = mnist.splits(str(digits), 28, 600, 200, 150)
    assert [len(labels) for _, labels in sets.values()] == [600, 200, 150]
    np.testing.assert_array_equal(sets["select"][0][0], mnist.rows_of(images, 28)[600])
    with pytest.raises(ValueError, match="=601 and select_examples=200 overlap: there are 800"):
        mnist.splits(str(digits), 28, 601, 200, 150)


def test_a_folder_without_mnist_is_refused_with_the_way_out(tmp_path):
    import mnist

    with pytest.raises(ValueError, match=r"has no train-images-idx3-ubyte.* leave it out"):
        mnist.load(str(tmp_path))


def test_rules_scale_rate_and_warmup_as_they_say():
    legw = script("legw")
    base = {"base": 128, "base_rate": 0.1, "base_warmup": 0.5, "linear_warmup": 5}

    def peak_and_warmup(rule, batch):
        rates = legw.schedule(rule, batch, examples=12_800, updates=80, **base)
        return pytest.approx(rates.max()), int(np.argmax(rates >= rates.max() * (1 - 1e-6)))

    assert peak_and_warmup("base", 128) == (0.1, 50)
    assert peak_and_warmup("legw", 2048) == (0.4, 50)  # as many updates
    assert peak_and_warmup("sqrt", 2048) == (0.4, 3)  # as many epochs: 3.125 updates
    assert peak_and_warmup("linear", 2048) == (1.6, 31)
    assert peak_and_warmup("constant", 2048) == (0.1, 3)


def test_legw_marks_a_best_rate_at_an_edge():
    legw = script("legw")

    def tuned(method, rate, accuracy):
        trial = {"part": "tuning", "method": method, "rule": "base", "rate": rate}
        return record(trial, base_rate=rate, select=accuracy, report=accuracy)

    settings = {"rates": {"momentum": [0.1, 0.3, 1.0], "lamb": [0.01, 0.02], "adam": [0.1, 0.2]}}
    runs = [tuned("momentum", r, a) for r, a in ((0.1, 97.0), (0.3, 98.0), (1.0, 96.0))]
    runs += [tuned("lamb", 0.01, 98.0), tuned("lamb", 0.02, 97.0), tuned("adam", 0.1, 98.0)]
    found = {method: legw._rates(runs, settings, method) for method in settings["rates"]}
    assert found["momentum"] == ["0.1: 97.00 %", "0.3: 98.00 %", "1: 96.00 %"]
    assert found["lamb"] == ["0.01: 98.00 % ↓", "0.02: 97.00 %"]
    assert found["adam"] == ["0.1: 98.00 %", "–"]  # of a search that has not ended
    assert legw._rates([*runs, tuned("adam", 0.2, 99.0)], settings, "adam")[1] == "0.2: 99.00 % ↑"


def test_legw_says_whether_three_seeds_decide():
    legw = script("legw")

    def runs(*accuracies, diverged=()):
        return [
            record({"seed": seed}, report=accuracy) | {"diverged": seed in diverged}
            for seed, accuracy in enumerate(accuracies, 1)
        ]

    base = runs(98.9, 98.8, 99.0)
    assert legw.lost(base, runs(98.8, 98.7, 98.9)) == "0.10 ± 0.00, **held**"
    assert legw.lost(base, runs(97.8, 97.7, 97.9)) == "1.10 ± 0.00"
    assert legw.lost(base, runs(98.8, 98.0, 98.6)) == "0.43 ± 0.87, *undecided*"
    lost = runs(9.8, 98.8, 98.9, diverged=(1,))
    assert legw.lost(base, lost) == "1 of 3 diverge"
    assert legw.accuracy(lost) == "9.8, 98.8, 98.9 %"
    assert legw.accuracy(base) == "98.90 ± 0.10 %"


# Trials and their records


def study(results, listed, settings=None, extent=()):
    lists = functools.partial(always, listed)
    return trials.Study(results, settings or {}, lists, ((),), extent)


def always(value, records):
    return value


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


def test_a_page_that_cannot_be_written_does_not_end_the_trials(capsys, monkeypatch):
    monkeypatch.setattr(claim, "PAGE_EVERY", -1)
    pace = claim._Pace(lambda: Path("/dev/null/page.md").write_text("a page"))
    pace.maybe()
    told = capsys.readouterr()
    assert "NotADirectoryError" in told.err
    assert "the trials go on" in told.out
    with pytest.raises(NotADirectoryError):
        pace.now()


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


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_study_that_is_killed_goes_on_with_the_next_trial_and_writes_its_page(jobs, tmp_path):
    if jobs > (os.cpu_count() or 1):
        pytest.skip("needs two cores")
    (tmp_path / "slow.py").write_text(SLOW_STUDY)
    arguments = [sys.executable, tmp_path / "slow.py", f"--jobs={jobs}"]
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
    second = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert second.stderr == "failed: fails 1; the same command tries it again\n"
    assert results.read_text().startswith(before)
    found = records_of(tmp_path, "slow")
    names = [json.dumps(each["trial"]) for each in found]
    assert len(names) == len(set(names)) == 7
    assert found[-1]["trial"] == {"last": 1}  # which waits for all of the others
    assert found[-1]["seen"] == 6
    assert {each["jobs"] for each in found} == {jobs}
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
    assert said.startswith("--settings: there is no seed; there are ")
    assert "hidden_size" in said
    assert refused([1]) == "--settings: give a JSON object, not [1].\n"
    assert "variants has x, y; there are paper, " in refused({"variants": ["x", "paper", "y"]})
    assert refused({"rates": []}) == "--settings: rates is empty; give one at least.\n"
    odd = ({"seeds": "3"}, {"seeds": 0}, {"seeds": 1e3}, {"rates": 0.1}, {"variants": 5})
    for settings in (*odd, {"updates": -1}, {"hidden_size": None}, {"rates": ["x"]}):
        (name,) = settings
        assert refused(settings).startswith(f"--settings: {name} is {json.dumps(settings[name])}; ")
    scaling = script("batch_scaling")
    assert "groups has sgd; there are lamb, " in scaling.problem(
        scaling.SETTINGS | {"groups": [["sgd"]]}
    )
    for multiples in ([4, 1], [2, 4], [1, 4, 4]):
        assert "in order" in scaling.problem(scaling.SETTINGS | {"multiples": multiples})
    assert scaling.problem(scaling.SETTINGS) is None
    assert scaling.problem(scaling.SETTINGS | scaling.QUICK) is None
    assert "--jobs=0: give 1 to " in refused({}, "--jobs=0")
    assert "--jobs=9999: give 1 to " in refused({}, "--jobs=9999")
    missing = variants.CLAIM._replace(packages=("matplotlib", "no_such_package"))
    monkeypatch.setattr(variants, "CLAIM", missing)
    assert refused({}).startswith("This needs no_such_package, which this Python has not. In a")


def test_settings_that_are_dictionaries_have_the_names_of_the_defaults():

    def misfit(name, changed):
        return claim.misfit(script(name).CLAIM, changed)

    assert misfit("legw", TINY_LEGW) is None
    assert misfit("legw", {"failure": {"base_batch": 64}}).startswith("failure is {")
    assert misfit("legw", {"rates": {"sgd": [1.0]}}).startswith("rates is {")
    assert misfit("legw", {"rates": [1]}).startswith("rates is [1]; give one like {")
    assert misfit("legw", {"rates": {"adam": [1]}}) is None
    assert misfit("mixed_batch", {"first": {"updates": 5}}).startswith("first is {")
    assert misfit("batch_scaling", {"multiples": 4})
    assert misfit("batch_scaling", {"trials": 0})
    assert misfit("batch_scaling", {"groups": [["lamb"], ["lars"]], "documents": 3}) is None
    assert "multiples is empty" in script("legw").problem({"multiples": [], "rates": {}})
    for name in ("legw", "mixed_batch", "variants", "batch_scaling"):
        study = script(name).CLAIM
        assert claim.misfit(study, study.settings) is None
        assert claim.misfit(study, study.quick) is None


def test_a_line_that_is_no_record_is_named_and_one_without_its_end_counts(tmp_path, capsys):
    variants = script("variants")
    flags = command("variants", tmp_path, {}, "--page_only")[2:]
    options = claim.parser(variants.CLAIM, "").parse_args(flags)
    results = tmp_path / "variants.jsonl"
    for content, reason in ((b"\nx\n", "line 2: no JSON"), (b'{"a": 1}\n', "line 1: no record")):
        results.write_bytes(content)
        assert claim.main(variants.CLAIM, options) == 2
        assert f"{results}, {reason}" in capsys.readouterr().err
    results.write_bytes(b'{"a": "\xff"}\n')
    assert claim.main(variants.CLAIM, options) == 2
    assert f"{results} is no text" in capsys.readouterr().err
    first, second = ({"trial": {"number": n}, "settings": {}} for n in (1, 2))
    work = study(results, [first["trial"], second["trial"]])
    results.write_text(json.dumps(first))
    work.add(second)
    assert list(work.done().values()) == [first, second]


def test_mnist_that_is_not_there_is_said_before_any_trial(tmp_path):
    flags = command("legw", tmp_path, TINY_LEGW, f"--mnist_dir={tmp_path}")
    run = subprocess.run(flags, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 2
    assert f"--mnist_dir={tmp_path} has no train-images-idx3-ubyte(.gz); " in run.stderr
    assert "Traceback" not in run.stderr
    assert not run.stdout


def test_a_download_of_mnist_leaves_the_choice_of_keras_backend_to_the_study(tmp_path):
    code = (
        "import argparse, contextlib, legw\n"
        "with contextlib.suppress(ValueError):\n"  # of no network: the proxy refuses
        "    legw.ready(argparse.Namespace(mnist_dir=None))\n"
        "import keras\n"
        "print(keras.config.backend())\n"
    )
    unset = ("KERAS_BACKEND", "no_proxy", "NO_PROXY")
    environment = {name: v for name, v in os.environ.items() if name not in unset}
    environment |= {"https_proxy": "http://127.0.0.1:9", "KERAS_HOME": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks/claims")])
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.stdout.split()[-1] == "jax", run.stderr


def test_ctrl_c_says_how_many_trials_are_kept(tmp_path, capsys):
    variants = script("variants")
    options = claim.parser(variants.CLAIM, "").parse_args(command("variants", tmp_path, {})[2:])
    assert claim.main(variants.CLAIM._replace(run=interrupt), options) == 130
    said = capsys.readouterr().out
    assert "Stopped. 0 of " in said
    assert said.endswith("variants.jsonl; the same command goes on.\n")


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_process_of_a_trial_that_is_killed_ends_the_study_with_the_reason(tmp_path):
    options = argparse.Namespace(jobs=2, minutes=60)
    broken = script("variants").CLAIM._replace(run=end_this_process, needs=never)
    work = study(tmp_path / "r.jsonl", [{"number": 1}])
    with pytest.raises(RuntimeError, match="of the trial 'number 1' ended without a result"):
        claim._run_missing(broken, options, {}, work, None)


def never(*_):
    return False


def end_this_process(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
