"""The studies of claims: what they compute, and tiny ones as a whole, killed and resumed."""

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import peers
import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks/claims"))  # as for a script there

TINY_LEGW = {
    "size": 4,
    "hidden": 8,
    "epochs": 2,
    "train_examples": 640,
    "select_examples": 100,
    "report_examples": 200,
    "base_batch": 16,
    "multiples": [4],
    "rates": {"adam": [1e-3, 3e-2]},
    "linear_warmup_epochs": 1,
    "seeds": 1,
    "failure": {"base_batch": 16, "multiple": 4, "rate": 1e-3, "base_warmup_epochs": 0.1},
    "micro_batch": 32,
}
TINY_BERT = {
    "vocab_size": 300,
    "documents": 24,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "seeds": 1,
    "evaluations": 2,
}
TINY = {
    "variants": {"updates": 4, "rates": [1e-3], "variants": ["paper", "n"], "batch_size": 8},
    "mixed_batch": {
        "first": {"updates": 4, "batch_size": 8, "max_seq_length": 16, "predictions": 4},
        "second": {"updates": 2, "batch_size": 4, "max_seq_length": 32, "predictions": 8},
        "first_warmup": 2,
        "second_warmup": 1,
    },
    "batch_scaling": {
        "sequences": 64,
        "base_batch": 8,
        "multiples": [1, 2],
        "long_warmup_multiples": [2],
        "groups": [["nesterov"]],
        "trials": 1,
    },
}


def script(name):
    """A study's module, which is also a script; its flags are defined once."""
    peers.load("matplotlib")
    import importlib

    return importlib.import_module(name)


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


@pytest.fixture(scope="module")
def bert_data(tmp_path_factory):
    """One folder for all: what has the same lengths is not made again."""
    return tmp_path_factory.mktemp("bert")


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


def test_the_second_phase_begins_as_its_schedule_says():
    mixed = script("mixed_batch")
    settings = mixed.SETTINGS
    first, second = settings["first"]["updates"], settings["second"]["updates"]
    rates = {name: mixed.rates(settings, "second", name) for name in mixed.page.LABELS}
    assert {len(values) for values in rates.values()} == {second}
    assert rates["warm-up"][0] == 0
    assert rates["warm-up"].max() == pytest.approx(settings["rate"])
    assert rates["restart"].argmax() == 0
    assert rates["restart"][0] == pytest.approx(settings["rate"])
    whole = mixed.rates(settings, "first", "one schedule")
    assert len(whole) == first
    step = whole[-2] - whole[-1]
    assert rates["continued"][0] == pytest.approx(whole[-1] - step, abs=1e-7)
    assert mixed.rates(settings, "first", "falls to 0")[-1] < step * 10


def test_trials_are_spread_over_the_ranges_by_haltons_sequence():
    scaling = script("batch_scaling")
    assert [Fraction(scaling.van_der_corput(n, 2)) for n in (1, 2, 3, 6)] == [
        Fraction(1, 2),
        Fraction(1, 4),
        Fraction(3, 4),
        Fraction(3, 8),
    ]
    assert scaling.van_der_corput(5, 3) == pytest.approx(2 / 3 + 1 / 9)  # 12 in base 3 → 0.21
    settings = scaling.SETTINGS
    points = [scaling.point(settings, "lamb", 1, number) for number in range(1, 9)]
    low, high = settings["rates"]["lamb"]
    assert points[0]["rate"] == pytest.approx((low * high) ** 0.5)
    assert all(low < each["rate"] < high for each in points)
    assert len({each["warmup_share"] for each in points}) == 8
    larger = scaling.point(settings, "lamb", 16, 1)
    assert larger == points[0] | {"rate": pytest.approx(4 * points[0]["rate"])}
    longer = scaling.point(settings, "lamb", 16, 1, "long_warmup_share")
    low, high = settings["long_warmup_share"]
    share = low * (high / low) ** (1 / 5)
    assert longer == larger | {"warmup_share": pytest.approx(share)}


def test_a_trial_at_chosen_settings_waits_for_those_that_they_are_chosen_from():
    scaling = script("batch_scaling")
    rule, best = (
        scaling.trial("rule", "lamb", 16, None, 1),
        scaling.trial("best", "lamb", 16, None, 2),
    )

    def needed(trial):
        names = ("part", "method", "multiple", "seed")
        others = scaling.trials(scaling.SETTINGS)
        return {tuple(t[n] for n in names) for t in others if scaling.needs(trial, t)}

    assert needed(rule) == {("search", "lamb", 1, 1)}
    parts = ("search", "long warm-up", "rule")
    assert needed(best) == {(part, "lamb", 16, 1) for part in parts}
    assert not needed(scaling.trial("long warm-up", "lamb", 16, 1, 1))
    later = needed(scaling.trial("rule", "lamb", 16, None, 2))
    assert later == {("search", "lamb", 1, 1), ("best", "lamb", 16, 2)}


def test_a_run_that_two_parts_have_in_common_is_trained_once():
    scaling = script("batch_scaling")
    values = {"rate": 1.0}
    alike = {"curve": [], "report_accuracy": 1.0, "said": "", "updates": 9, "values": values}
    run = record(scaling.trial("best", "lamb", 4, None, 2), select=4.0, report=4.1, **alike)

    def twin(*trial, **more):
        return scaling.twin_of([run], scaling.trial(*trial), values | more)

    found = twin("rule", "lamb", 4, None, 2)
    assert found["report"] == 4.1
    assert found["twin"] == "part best, method lamb, multiple 4, seed 2"
    assert not twin("rule", "lamb", 4, None, 3)
    assert not twin("rule", "lars", 4, None, 2)
    assert not twin("rule", "lamb", 4, None, 2, rate=2.0)


def test_what_was_chosen_from_other_trials_does_not_stand():
    study, scaling = script("study"), script("batch_scaling")
    settings = scaling.SETTINGS | {"trials": 1, "seeds": 2, "groups": [["lamb"]]}
    settings |= {"multiples": [1], "long_warmup_multiples": []}

    def run(part, number, seed, values, loss):
        trial = scaling.trial(part, "lamb", 1, number, seed)
        return record(trial, values=values, select=loss, report=loss)

    def counted(settings):
        names = {study.trial_name(trial) for trial in scaling.trials(settings)}
        found = study._that_count(scaling.CLAIM, settings, names, records)
        return [
            (r["trial"]["part"], r["trial"]["number"], r["trial"]["seed"]) for r in found.values()
        ]

    points = [scaling.point(settings, "lamb", 1, number) for number in (1, 2)]
    runs = [
        run("search", 1, 1, points[0], 4.0),
        run("best", None, 2, points[0], 4.1),
        run("search", 2, 1, points[1], 3.9),
    ]
    records = {study.trial_name(each["trial"]): each for each in runs}
    assert counted(settings) == [("search", 1, 1), ("best", None, 2)]
    assert counted(settings | {"trials": 2}) == [("search", 1, 1), ("search", 2, 1)]


def test_a_study_that_grows_keeps_what_is_done(tmp_path):
    study = script("study")

    def known(settings, extent):
        work = study.studies.Study(
            tmp_path / "r.jsonl", settings, study.trial_name, 2, ((),), extent
        )
        return [*work.done()]

    line = record({"number": 1}, report=4.0) | {"settings": {"rate": 1, "seeds": 1}}
    (tmp_path / "r.jsonl").write_text(json.dumps(line) + "\n")
    assert known({"rate": 1, "seeds": 3}, ("seeds",)) == ["number 1"]
    assert not known({"rate": 1, "seeds": 3}, ())
    assert not known({"rate": 2, "seeds": 1}, ("seeds",))


def test_the_rule_keeps_the_updates_of_warmup():
    scaling = script("batch_scaling")
    chosen = {"rate": 1e-3, "one_minus_beta_1": 0.1, "warmup_share": 0.05, "weight_decay": 0.01}
    found = scaling.by_rule({}, "lamb", chosen, 16)
    assert found == chosen | {"rate": 4e-3, "warmup_share": pytest.approx(0.8)}
    assert scaling.by_rule({}, "nesterov", chosen, 4)["rate"] == 4e-3


def test_every_method_has_the_same_number_of_trials_and_none_comes_twice():
    scaling = script("batch_scaling")
    settings = scaling.SETTINGS
    trials = scaling.trials(settings)
    names = [json.dumps(trial) for trial in trials]
    assert len(set(names)) == len(names)
    searched = [(t["method"], t["multiple"]) for t in trials if t["part"] == "search"]
    assert {searched.count(each) for each in searched} == {settings["trials"]}
    longer = [(t["method"], t["multiple"]) for t in trials if t["part"] == "long warm-up"]
    assert sorted(longer) == sorted(each for each in searched if each[1] in (16, 64))
    methods = sum(map(len, settings["groups"]))
    assert len(set(searched)) == methods * len(settings["multiples"])


def test_the_variants_differ_from_each_other_in_what_a_few_steps_do():
    import keras

    variants = script("variants")
    generator = np.random.default_rng(1)
    shapes = {"kernel": (4, 3), "bias": (4,), "LayerNorm": (3,)}
    first = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    gradients = [{n: generator.normal(size=s) for n, s in shapes.items()} for _ in range(3)]
    ends = {}
    for variant in variants.page.LABELS:
        weights = [keras.Variable(value * 9, name=name) for name, value in first.items()]
        optimizer = variants.optimizer(variant, variants.SETTINGS | {"weight_decay": 0.1})
        optimizer.build(weights)
        optimizer.learning_rate = 0.01
        for step in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in step.values()])
        ends[variant] = np.concatenate([np.ravel(w.numpy()) for w in weights])
    for variant, values in ends.items():
        others = [other for name, other in ends.items() if name != variant]
        assert min(np.abs(values - other).max() for other in others) > 1e-5, variant


def test_each_variant_is_compared_at_its_best_rate_seed_by_seed():
    page = script("variants").page

    def run(variant, seed, rate, loss, part="best"):
        trial = {"part": part, "variant": variant, "seed": seed}
        return record(trial, used_rate=rate, select=loss, report=loss + 0.5)

    records = [
        *(run("paper", 1, 1e-3, 4.0, "tuning"), run("paper", 1, 2e-3, 4.1, "tuning")),
        *(run("n", 1, 1e-3, 3.9, "tuning"), run("n", 1, 2e-3, 3.8, "tuning")),
        *(run("paper", 2, 1e-3, 4.2), run("n", 2, 2e-3, 3.9)),
    ]
    found = page.groups(records)
    assert {v: [r["used_rate"] for r in runs] for v, runs in found.items()} == {
        "paper": [1e-3, 1e-3],
        "n": [2e-3, 2e-3],
    }
    assert page.paired(found["n"], found) == pytest.approx([-0.2, -0.3])
    assert page.answers(found)[-1].startswith("- **Not told apart from the paper's form**")
    assert "N-LAMB (-0.250 ± 0.635)" in page.answers(found)[-1]
    assert page.at_the_edge(found, [1e-3, 2e-3]).endswith("beyond it: paper, v5, N-LAMB.")
    assert page.at_the_edge(found, [5e-4, 1e-3, 2e-3]).endswith("beyond it: N-LAMB.")
    assert page.at_the_edge(found, [1e-3]) == ""
    variants = script("variants")
    stands = [variants.stands({}, each, records) for each in records]
    assert stands == [True] * 6
    lower = run("n", 1, 4e-3, 3.7, "tuning")
    assert not variants.stands({}, records[-1], [*records, lower])


def record(trial, **values):
    about = {"cpu": "a CPU", "cores": 2, "python": "3", "load_before": 0.5}
    return {
        "trial": trial,
        "wall_seconds": 1.0,
        "cpu_seconds": 1.0,
        "machine": about,
        "date": "2026-01-01",
        "commit": "abc",
        "command": "python x",
        "diverged": values.get("report") is None,
    } | values


def test_diverged_trials_are_counted_named_and_never_chosen():
    study = script("study")
    good = record({"method": "lamb", "seed": 1}, report=4.0, select=4.0)
    lost = record({"method": "lamb", "seed": 2}, report=None, select=None)
    assert study.chosen([lost, good], "select", lowest=True) is good
    said = study.made([good, lost], 3, "results.jsonl")
    assert "**2 of 3 trials are done**" in " ".join(said.split())
    assert "1 of 2 trials diverged or learned nothing: method lamb, seed 2." in said


def test_the_page_says_up_to_which_batch_a_loss_holds():
    import batch_scaling_page as page

    def runs(*losses):
        return [record({"seed": seed}, report=loss) for seed, loss in enumerate(losses, 1)]

    settings = {"base_batch": 16}
    groups = {1: runs(4.0), 4: runs(4.05), 16: runs(4.3), 64: []}
    assert page.held(groups, settings) == "up to batch 64"
    assert page.held({1: runs(4.0), 4: runs(3.9), 16: []}, settings) == (
        "up to batch 64, the largest that is done"
    )
    assert page.held({1: runs(4.0), 4: runs(None)}, settings) == "up to batch 16"
    assert page.held({1: runs(4.0, 4.2), 4: runs(4.15)}, settings) == "up to batch 16"  # by seed 1
    assert page.held({1: runs(4.0, 4.0), 4: runs(4.0, None)}, settings) == "up to batch 16"
    groups = {1: runs(4.0, 4.2, 4.1), 4: runs(4.5, 4.9)}
    assert page.beyond(groups, settings | {"multiples": [1, 4]}) == " (+0.60 nats at 64, 2 seeds)"
    curve = [{"step": 10, "report": 6.0}, {"step": 20, "report": 5.0}]
    assert page.updates_to_target({"curve": curve}) == 15
    assert page.updates_to_target({"curve": curve[:1]}) is None


def test_the_readme_says_what_the_records_say():
    study, scaling = script("study"), script("batch_scaling")
    page, settings = scaling.page, scaling.SETTINGS
    results = ROOT / "benchmarks/results/claims_batch_scaling.jsonl"
    work = study.studies.Study(results, settings, study.trial_name, 0, ((),), scaling.CLAIM.extent)
    records, largest = list(work.done().values()), settings["multiples"][-1]
    readme = " ".join((ROOT / "README.md").read_text().split())
    words = {"lamb": "holds its loss ", "adamw": ""}
    for method in words:
        multiples = settings["multiples"]
        tuned = {k: page.complete(records, settings, method, k) for k in multiples}
        by_rule = {k: page.untuned(records, settings, method, k) for k in multiples}
        assert page.held(tuned, settings) == "up to batch 256"
        assert f"{page.LABELS[method]} {words[method]}{page.held(by_rule, settings)}" in readme
        assert page.beyond(by_rule, settings).split()[0].lstrip("(+") in readme
        assert f"{np.mean(page.losses(tuned[largest])):.2f}" in readme
    assert page.best(records, "lamb", largest)["trial"]["part"] == "rule"


def test_the_readme_says_how_the_forms_of_lamb_differ():
    study, variants = script("study"), script("variants")
    results, settings = ROOT / "benchmarks/results/claims_variants.jsonl", variants.SETTINGS
    extent = variants.CLAIM.extent
    work = study.studies.Study(results, settings, study.trial_name, 0, ((),), extent)
    found = variants.page.groups(list(work.done().values()))
    gaps = {name: variants.page.paired(runs, found) for name, runs in found.items()}
    better, worse = ("n", "nn"), ("nvlamb", "keras", "all")
    for name in (*better, *worse):
        assert min(gaps[name]) > 0 or max(gaps[name]) < 0
    for name in ("uncorrected", "lambc"):
        assert abs(np.mean(gaps[name])) < study.half_width(gaps[name]) + 1e-6
    readme = (ROOT / "README.md").read_text()
    for names, words in ((better, "nats better, at twice the rate"), (worse, "worse")):
        means = {f"{abs(np.mean(gaps[name])):.2f} {words}" for name in names}
        assert len(means) == 1
        assert means.pop() in readme
    assert {found[name][0]["used_rate"] for name in better} == {0.012}
    assert found["paper"][0]["used_rate"] == 0.006


# As a whole


def command(name, folder, settings, *more):
    return [
        *(sys.executable, f"benchmarks/claims/{name}.py", f"--settings={json.dumps(settings)}"),
        *(f"--results={folder}/{name}.jsonl", f"--page={folder}/{name}.md"),
        *(f"--data_dir={folder}/data", *more),
    ]


def records_of(folder, name):
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def run_and_kill(arguments, folder, name, trials):
    """Kills a study after so many trials; what is in its results."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    study = subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + 300
        while len(records_of(folder, name)) < trials and time.monotonic() < ends:
            assert study.poll() is None, "the study ended before it was killed"
            time.sleep(0.05)
    finally:
        study.send_signal(signal.SIGKILL)
        study.wait()
    return (folder / f"{name}.jsonl").read_text()


def test_a_study_that_is_killed_goes_on_with_the_next_trial_and_writes_its_page(digits, tmp_path):
    for peer in ("jax", "matplotlib"):
        peers.load(peer)
    arguments = command("legw", tmp_path, TINY_LEGW, f"--mnist_dir={digits}", "--jobs=2")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    before = run_and_kill(arguments, tmp_path, "legw", 2)
    assert 2 <= len(before.splitlines()) < 9
    second = subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert second.returncode == 0, second.stderr
    found = records_of(tmp_path, "legw")
    assert (tmp_path / "legw.jsonl").read_text().startswith(before)
    assert f"trial {len(before.splitlines()) + 1} of 9" in second.stdout
    assert {each["jobs"] for each in found} == {2}
    names = [json.dumps(each["trial"]) for each in found]
    assert len(names) == len(set(names)) == 9
    assert all(each["settings"] == found[0]["settings"] for each in found)
    assert all("legw.py" in each["command"] and each["commit"] for each in found)
    tuned = [r for r in found if r["trial"]["part"] == "tuning" and r["trial"]["method"] == "adam"]
    best = max(tuned, key=lambda r: r["select"])
    assert best["report"] > 20  # chance is 10 %
    assert all(
        r["base_rate"] == best["base_rate"]
        for r in found
        if r["trial"]["part"] == "scaling" and r["trial"]["method"] == "adam"
    )
    text = (tmp_path / "legw.md").read_text()
    assert "**9 of 9 trials are" in text
    assert f"{best['base_rate']:g}: {best['select']:.2f} %" in text
    assert (tmp_path / "legw.png").stat().st_size > 1000


def test_flags_that_no_study_can_follow_are_refused_before_it_begins(tmp_path, capsys):
    study, variants = script("study"), script("variants")

    def refused(settings, *flags):
        options = study.parser(variants.CLAIM, "").parse_args(
            command("variants", tmp_path, settings, *flags)[2:]
        )
        assert study.main(variants.CLAIM, options) == 2
        assert not list(tmp_path.iterdir())
        return capsys.readouterr().err

    said = refused({"seed": 2, "hidden_size": 64})
    assert said.startswith("--settings: there is no seed; there are ")
    assert "hidden_size" in said
    assert refused([1]) == "--settings: give a JSON object, not [1].\n"
    assert "variants has x, y; there are paper, " in refused({"variants": ["x", "paper", "y"]})
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


def test_a_process_of_a_trial_that_is_killed_ends_the_study_with_the_reason(tmp_path):
    study, variants = script("study"), script("variants")
    options = argparse.Namespace(jobs=1, minutes=60)
    work = study.studies.Study(tmp_path / "r.jsonl", {}, study.trial_name, 1, ((),))
    claim = variants.CLAIM._replace(run=end_this_process, needs=needs_nothing)
    with pytest.raises(RuntimeError, match="of the trial 'number 1' ended without a result"):
        study._side_by_side(claim, options, {}, work, [{"number": 1}], None)


def needs_nothing(*_):
    return False


def end_this_process(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_study_of_bert_is_killed_goes_on_and_writes_its_page(name, tmp_path, bert_data):
    study, module = script("study"), script(name)
    settings = TINY_BERT | TINY[name]
    arguments = command(name, tmp_path, settings, f"--data_dir={bert_data}")
    before = run_and_kill(arguments, tmp_path, name, 1)
    parser = study.parser(module.CLAIM, module.__doc__)
    assert study.main(module.CLAIM, parser.parse_args(arguments[2:])) == 0
    assert (tmp_path / f"{name}.jsonl").read_text().startswith(before)
    found = records_of(tmp_path, name)
    assert [each["trial"] for each in found] == module.trials(module.SETTINGS | settings)
    assert not any(each["diverged"] for each in found)
    assert all(each["report"] == each["curve"][-1]["report"] < 7 for each in found)
    assert f"**{len(found)} of {len(found)} trials" in (tmp_path / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_seed_is_evaluated_alike_whatever_a_process_trained_before(bert_data):
    variants = script("variants")
    settings = variants.SETTINGS | TINY_BERT | TINY["variants"] | {"warmup_steps": 1}

    def losses(seed):
        options, trial = argparse.Namespace(data_dir=bert_data), variants.trial("tuning", "n", seed)
        found = variants.run(options, settings, trial | {"rate": 1e-3}, [])
        return found["select"], found["report"]

    after = [losses(1), losses(2)][1]
    variants.training_of.cache_clear()
    assert losses(2) == after


@pytest.mark.slow
def test_a_second_phase_is_the_same_where_the_first_one_is_trained_once_more(bert_data):
    mixed, options = script("mixed_batch"), argparse.Namespace(data_dir=bert_data)
    settings = mixed.SETTINGS | TINY_BERT | TINY["mixed_batch"]
    forms = (settings, settings | {"rate": 1.0}, settings | mixed.QUICK)
    files = [mixed.state_file(bert_data, form, "falls to 0", 1) for form in forms]
    assert len(set(files)) == 3  # no form of the study begins with the state of another

    def curve():
        second = mixed.trial("second", "warm-up", "from 0", 1)
        return mixed.run(options, settings, second, [])["curve"]

    files[0].unlink(missing_ok=True)
    trained = curve()
    assert files[0].exists()
    assert curve() == trained


@pytest.mark.slow
def test_data_that_a_killed_study_left_half_made_are_made_again(tmp_path):
    bert = script("bert")
    settings = script("model_settings").MODEL | TINY_BERT

    def made():
        return {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.suffix != ".json"}

    bert.make_data(tmp_path, settings, {16: 4})
    whole = made()
    with pytest.raises(ValueError, match="max_seq_length"):  # ends while data are made, as a kill
        bert.make_data(tmp_path, settings | {"vocab_size": 200}, {16: 4, 1: 1})
    assert made() != whole
    bert.make_data(tmp_path, settings, {16: 4})
    assert made() == whole
