"""The studies of claims on BERT: what they compute, and tiny ones as a whole."""

import json

import batch_scaling_tables as results
import claim
import claim_studies
import numpy as np
import pytest
import stats
import trials
from claim_studies import command, record, records_of, script

from lamb_tf import schedules

TINY_BERT = claim_studies.TINY | {"documents": 24, "num_hidden_layers": 1}
TINY_BERT |= {"seeds": 1, "evaluations": 2}
TINY = {
    "variants": {"updates": 4, "rates": [1e-3], "variants": ["paper", "n"], "batch_size": 8},
    "mixed_batch": {
        "first": {"updates": 4, "batch_size": 8, "max_seq_length": 16, "predictions": 4},
        "second": {"updates": 2, "batch_size": 4, "max_seq_length": 32, "predictions": 8},
        "first_warmup": 2,
        "second_warmup": 1,
        "higher_rates": [],
    },
    "batch_scaling": {
        "sequences": 64,
        "base_batch": 8,
        "multiples": [1, 2],
        "long_warmup_multiples": [2],
        "groups": [["nesterov"]],
        "trials": {"nesterov": [1, 1]},
    },
}


# Of the mixed batch, both first phases, and what a second one keeps of them, or not.
SOME_TRIALS = {"mixed_batch": (0, 1, 2, -1)}


@pytest.fixture(scope="module")
def bert_data(tmp_path_factory):
    """One folder for all: what has the same lengths is not made again."""
    return tmp_path_factory.mktemp("bert")


# What they compute


def test_the_second_phase_begins_as_its_schedule_says():
    mixed = script("mixed_batch")
    settings = mixed.SETTINGS

    def rates(phase, schedule, rate=None):
        stage = mixed.stage_of(settings, mixed.new_trial(phase, schedule, "kept", 1, rate))
        assert stage.steps == settings[phase]["updates"]
        return np.asarray(stage.schedule()(np.arange(stage.steps)))

    second = {name: rates("second", name) for name in mixed.LABELS}
    assert second["warm-up"][0] == 0
    assert second["warm-up"].max() == pytest.approx(settings["rate"])
    assert second["restart"].argmax() == 0
    assert second["restart"][0] == pytest.approx(settings["rate"])
    assert rates("second", "restart", 0.02)[0] == pytest.approx(0.02)
    first = rates("first", "one schedule")
    joined = schedules.WarmupPolynomialDecay(
        settings["rate"], len(first) + len(second["continued"]), settings["first_warmup"]
    )
    whole = np.asarray(joined(np.arange(joined.total_steps)))
    np.testing.assert_allclose([*first, *second["continued"]], whole, rtol=1e-5, atol=1e-9)
    assert rates("first", "falls to 0")[-1] < 1e-3 * settings["rate"]


def test_trials_are_spread_over_the_ranges_by_haltons_sequence():
    for number, first, second in [(1, 1 / 2, 1 / 3), (3, 3 / 4, 1 / 9), (6, 3 / 8, 2 / 9)]:
        found = trials.halton({"a": (1, 100), "b": (1, 100)}, number)
        assert found == {"a": pytest.approx(100**first), "b": pytest.approx(100**second)}
    scaling = script("batch_scaling")
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
        others = scaling.trials(scaling.SETTINGS, [])
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


# Of a study of LAMB only, with two seeds


def settings_of_lamb(**more):
    some = {"seeds": 2, "groups": [["lamb"]], "long_warmup_multiples": []}
    return script("batch_scaling").SETTINGS | some | more


def run_of_lamb(part, multiple, number, seed, values, loss):
    trial = script("batch_scaling").trial(part, "lamb", multiple, number, seed)
    return record(trial, values=values, select=loss, report=loss)


def done(folder, settings, runs):
    """The records that count, of those in a file."""
    lines = [json.dumps(each | {"settings": settings}) for each in runs]
    (folder / "r.jsonl").write_text("\n".join(lines))
    study = claim.study(script("batch_scaling").CLAIM, settings, folder / "r.jsonl")
    return study.done().values()


def test_what_was_chosen_from_other_trials_does_not_stand(tmp_path):
    settings = settings_of_lamb(trials={"lamb": [1]}, multiples=[1])
    points = [script("batch_scaling").point(settings, "lamb", 1, number) for number in (1, 2)]
    runs = [
        run_of_lamb("search", 1, 1, 1, points[0], 4.0),
        run_of_lamb("best", 1, None, 2, points[0], 4.1),
        run_of_lamb("search", 1, 2, 1, points[1], 3.9),
    ]

    def counted(**more):
        found = (each["trial"] for each in done(tmp_path, settings | more, runs))
        return [(trial["part"], trial["number"], trial["seed"]) for trial in found]

    def losses(**more):
        return [each["report"] for each in done(tmp_path, settings | more, runs)]

    assert counted() == [("search", 1, 1), ("best", None, 2)]
    assert counted(trials={"lamb": [2]}) == [("search", 1, 1), ("search", 2, 1)]
    low, high = settings["rates"]["lamb"]
    rounded = {"lamb": [low, high * (1 + 1e-15)]}  # as another library of mathematics may
    assert len(counted(rates=settings["rates"] | rounded)) == 2
    assert not counted(rates=settings["rates"] | {"lamb": [1e-3, 1.0]})
    others = counted(rates=settings["rates"] | {"lars": [1e-3, 1.0]})
    assert others == [("search", 1, 1), ("best", None, 2)]
    runs.append(run_of_lamb("best", 1, None, 2, points[1], 3.8))  # at what is now best
    assert losses() == [4.0, 4.1]  # the older record counts
    assert losses(trials={"lamb": [2]}) == [4.0, 3.8, 3.9]


def test_one_file_holds_a_study_and_its_beginning_with_a_longer_search(tmp_path):
    scaling = script("batch_scaling")
    settings = settings_of_lamb(trials={"lamb": [1, 1]}, multiples=[1, 4])
    first, second = (scaling.point(settings, "lamb", 1, number) for number in (1, 2))
    of_four = scaling.point(settings, "lamb", 4, 1)
    by_rule = [scaling.by_rule(settings, "lamb", values, 4) for values in (first, second)]
    runs = [
        run_of_lamb("search", 1, 1, 1, first, 4.0),
        run_of_lamb("search", 4, 1, 1, of_four, 4.5),
        run_of_lamb("rule", 4, None, 1, by_rule[0], 4.7),
        run_of_lamb("best", 4, None, 2, of_four, 4.4),
        run_of_lamb("search", 1, 2, 1, second, 3.9),  # the longer search begins
        run_of_lamb("rule", 4, None, 1, by_rule[1], 3.8),
    ]

    def losses(numbers):
        of_study = settings | {"trials": {"lamb": numbers}}
        return sorted(each["report"] for each in done(tmp_path, of_study, runs))

    assert losses([1, 1]) == [4.0, 4.4, 4.5, 4.7]
    assert losses([2, 1]) == [3.8, 3.9, 4.0, 4.5]
    runs.append(run_of_lamb("best", 4, None, 2, by_rule[1], 3.7))
    assert losses([1, 1]) == [4.0, 4.4, 4.5, 4.7]
    assert losses([2, 1]) == [3.7, 3.8, 3.9, 4.0, 4.5]


def test_the_rule_keeps_the_updates_of_warmup():
    scaling = script("batch_scaling")
    chosen = {"rate": 1e-3, "one_minus_beta_1": 0.1, "warmup_share": 0.05, "weight_decay": 0.01}
    found = scaling.by_rule({}, "lamb", chosen, 16)
    assert found == chosen | {"rate": 4e-3, "warmup_share": pytest.approx(0.8)}
    assert scaling.by_rule({}, "nesterov", chosen, 4)["rate"] == 4e-3


def test_compared_methods_have_the_same_number_of_trials_and_none_comes_twice():
    scaling = script("batch_scaling")
    settings = scaling.SETTINGS
    trials = scaling.trials(settings, [])
    names = [json.dumps(trial) for trial in trials]
    assert len(set(names)) == len(names)
    searched = [(t["method"], t["multiple"]) for t in trials if t["part"] == "search"]
    for place, multiple in enumerate(settings["multiples"]):
        counts = {method: searched.count((method, multiple)) for method in settings["rates"]}
        assert counts == {m: numbers[place] for m, numbers in settings["trials"].items()}
        assert len({counts[m] for m in ("lamb", "adamw", "orscale", "muon")}) == 1
    longer = [(t["method"], t["multiple"]) for t in trials if t["part"] == "long warm-up"]
    assert sorted(longer) == sorted(each for each in searched if each[1] in (16, 64))
    methods = sum(map(len, settings["groups"]))
    assert len(set(searched)) == methods * len(settings["multiples"])


@pytest.mark.parametrize("study", ["variants", "lars"])
def test_the_forms_differ_from_each_other_in_what_a_few_steps_do(study):
    import keras

    variants = script(study)
    generator = np.random.default_rng(1)
    shapes = {"kernel": (4, 3), "bias": (4,), "LayerNorm": (3,), "word_embeddings": (5, 3)}
    first = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    gradients = [{n: generator.normal(size=s) for n, s in shapes.items()} for _ in range(3)]
    ends = {}
    for variant in variants.LABELS.keys() - {"no warm-up"}:
        weights = [keras.Variable(value * 9, name=name) for name, value in first.items()]
        settings = variants.optimizer(variant, variants.SETTINGS | {"weight_decay": 0.1})
        optimizer = settings.make(weights)
        optimizer.build(weights)
        optimizer.learning_rate = 0.01
        for step in gradients:
            grads = [keras.ops.convert_to_tensor(g, "float32") for g in step.values()]
            optimizer.apply(grads, weights)
        ends[variant] = np.concatenate([np.ravel(w.numpy()) for w in weights])
    for variant, values in ends.items():
        others = [other for name, other in ends.items() if name != variant]
        assert min(np.abs(values - other).max() for other in others) > 1e-5, variant


def runs(*losses):
    return [record({"seed": seed}, report=loss) for seed, loss in enumerate(losses, 1)]


def test_the_page_says_up_to_which_batch_a_loss_holds_and_where_seeds_do_not_decide():
    def held(*groups):
        return results.held(dict(zip((1, 4, 16, 64), groups)), {"base_batch": 16})

    assert held(runs(4.0), runs(4.05), runs(4.3), []) == "64"
    assert held(runs(4.0), runs(3.9), []) == "64, the largest done"
    assert held(runs(4.0), runs(None)) == "16"
    assert held(runs(4.0, 4.2), runs(4.15)) == "16"  # by seed 1
    assert held(runs(4.0, 4.0), runs(4.0, None)) == "16"
    assert held([], runs(4.0)) == "no batch"
    certain, undecided = runs(4.01, 4.02, 4.03), runs(4.0, 4.1, 4.2)
    base, worse = runs(4.0, 4.0, 4.0), runs(4.3, 4.31, 4.32)
    assert held(base, certain, undecided, worse) == "64 or 256"
    assert held(base, undecided, certain, worse) == "16 or 256"  # what holds again beyond a gap
    assert held(base, certain, certain, worse) == "256"
    assert held(base, worse, certain) == "16"


def test_an_interval_decides_on_a_margin_or_does_not():
    assert stats.within([0.01, 0.02, 0.03], 0.1) is True
    assert stats.within([0.3, 0.31, 0.32], 0.1) is False
    assert stats.within([0.0, 0.1, 0.2], 0.1) is None
    assert [stats.within([gap], 0.1) for gap in (0.1, 0.11)] == [True, False]
    assert stats.signed([0.1, 0.3], 1) == "+0.2 ± 1.3"  # t = 12.706 with one degree of freedom
    assert stats.signed([-0.25], 2) == "-0.25"


@pytest.mark.slow
def test_all_optimizers_decay_the_same_variables_by_the_same_rate():
    import keras

    from official_bert.model.config import BertConfig

    scaling = script("batch_scaling")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=300, intermediate_size=64, **sizes)
    task = script("bert").StudyTask(use_next_sentence_label=False)
    model, shares = task.make_model(config, 1, "float32"), {}
    variables = [v for v in model.trainable_variables if task.is_trainable(v.path)]
    for method in results.LABELS:
        values = scaling.point(scaling.SETTINGS, method, 1, 1) | {"weight_decay": 0.5}
        optimizer = scaling.optimizer(method, scaling.SETTINGS, values).make(variables)
        optimizer.build(variables)
        for variable in variables:
            variable.assign(keras.ops.ones_like(variable))
        optimizer.learning_rate = 0.1
        optimizer.apply([keras.ops.zeros_like(v) for v in variables], variables)
        shares[method] = {v.path: float(v.numpy().mean()) for v in variables}
    decayed = [path for path, share in shares["adamw"].items() if share < 1]
    assert {path.split("/")[-1] for path in decayed} == {
        *("kernel", "word_embeddings", "token_type_embeddings", "position_embeddings"),
    }
    for method, found in shares.items():
        adapted = method in ("lamb", "lars", "orscale")  # whose share is of another size
        for path, share in found.items():
            assert (share < 1) == (path in decayed), (method, path)
            if path in decayed and not adapted:
                assert share == pytest.approx(0.95, rel=1e-5), (method, path)


# As a whole


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_study_of_bert_runs_its_trials_and_writes_its_page(name, tmp_path, bert_data):
    module, settings = script(name), TINY_BERT | TINY[name]

    def some(settings, records):
        every = module.CLAIM.trials(settings, records)
        return [every[n] for n in SOME_TRIALS.get(name, range(len(every)))]

    study = module.CLAIM._replace(trials=some)
    flags = command(name, tmp_path, settings, f"--data_dir={bert_data}")[2:]
    assert claim.main(study, claim.parser(study, "").parse_args(flags)) == 0
    found = records_of(tmp_path, name)
    assert [each["trial"] for each in found] == some(module.SETTINGS | settings, found)
    assert not any(each["diverged"] for each in found)
    assert all(each["report"] == each["curve"][-1]["report"] < 7 for each in found)
    assert f"| trials | {len(found)} of {len(found)} done" in (tmp_path / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.png").stat().st_size > 1000
