"""The command that tags words: its flags, what it leaves, seeds, odd input, a kill."""

import json
import re
from pathlib import Path

import in_process
import peers
import pytest
from command_processes import (
    OF_TRAINING,
    as_flags,
    assert_the_same_after_a_kill,
    eval_results,
    in_a_copy,
    small_training,
    without,
)
from model_kinds import HEADS, make_kind
from small_tags import write_conll, write_json

import official_bert
from official_bert import convert_checkpoint, run_classifier, run_squad, run_tagger
from official_bert.run_tagger import Tag
from official_bert.tasks import tag_files, tag_schemes, tagging


def call(settings):
    return in_process.call(run_tagger, Tag, as_flags(settings))


def flags_of(small_tags, folder):
    return small_training(
        small_tags,
        folder,
        dev_file=small_tags.dev,
        predict_file=small_tags.unlabelled,
        do_predict=True,
        max_seq_length=24,
        train_batch_size=8,
        num_train_epochs=10,
        log_steps=10,
    )


@pytest.fixture
def files(small_tags, tmp_path):
    return flags_of(small_tags, tmp_path)


@pytest.fixture(scope="module")
def whole(small_tags, tmp_path_factory):
    """The flags of a training that is done."""
    settings = flags_of(small_tags, tmp_path_factory.mktemp("whole"))
    assert call(settings) == 0
    return settings


@pytest.fixture
def trained(whole, tmp_path):
    return in_a_copy(whole, tmp_path / "trained")


def predicted(settings, name="predictions.txt"):
    return tag_files.read(f"{settings['output_dir']}/{name}").tags


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"do_train": False, "do_predict": False, "do_eval": False}, "nothing to do: give --do_tr"),
        ({"train_file": None}, "--train_file is required with --do_train. Give CoNLL"),
        ({"dev_file": None}, "--dev_file is required with --do_eval"),
        ({"predict_file": None}, "--predict_file is required with --do_predict"),
        ({"train_file": "/nowhere/a.conll"}, "/nowhere/a.conll"),
        ({"max_seq_length": 65}, "--max_seq_length must be at most 64"),
        ({"do_train": False, "train_file": None}, "must contain a fine-tuned model; got none"),
    ],
)
def test_what_cannot_work_ends_with_one_line_before_any_work(files, capsys, changed, message):
    assert call(files | changed) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("run_tagger: error: ")
    assert message in last
    assert not list(Path(files["output_dir"]).glob("ctl_step*"))


def test_a_model_of_numbers_is_no_tagger(trained, capsys):
    Path(trained["output_dir"], "labels.json").write_text('{"number": [0, 5]}')
    assert call(trained | {"do_train": False, "train_file": None}) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert "--output_dir must be a model of tags; got" in last


COMMANDS = {
    "tags": (run_tagger, Tag, "token-classification"),
    "answers": (run_squad, run_squad.Squad, "question-answering"),
    "classes": (run_classifier, run_classifier.Classify, "text-classification"),
}


@pytest.mark.parametrize("kind", HEADS)
def test_each_command_refuses_the_models_of_the_others_with_what_to_do(kind, tmp_path, capsys):
    make_kind(kind, tmp_path / "model")
    asked = {"predict_file": str(tmp_path / "asked.jsonl"), "do_predict": True}
    start = {"init_checkpoint": str(tmp_path / "model"), "output_dir": str(tmp_path / "output")}
    start |= {"max_seq_length": 20}
    own = "classes" if kind in ("labels", "number") else kind
    why = "has no head of a task" if kind in ("blanks", "vectors") else "is for "
    for name, (module, settings, task) in COMMANDS.items():
        if name != own:
            assert in_process.call(module, settings, as_flags(asked | start)) == 2
            *_, last = capsys.readouterr().err.splitlines()
            assert f"error: --init_checkpoint must be a model for {task}; got" in last
            assert f", which {why}" in last
            assert re.search(r"ine-tune it .*first \(--do_train\)\.$", last)
            assert not Path(start["output_dir"]).exists()


def test_sentences_without_words_are_refused_as_training_set(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": [], "tags": []}\n')
    with pytest.raises(ValueError, match="must have at least two different tags; got none"):
        tagging.find_classes(tag_files.read(str(path)))


def test_predictions_cover_every_word_and_scores_are_those_of_seqeval(whole, small_tags):
    metrics = peers.load("seqeval.metrics")
    asked = tag_files.read(small_tags.unlabelled, labelled=False)
    truth = tag_files.read(small_tags.dev)
    tags = predicted(whole)
    assert [*map(len, tags)] == [*map(len, asked.words)]
    assert max(map(len, asked.words)) > 22  # in several windows
    scores = eval_results(whole["output_dir"])
    assert scores["f1"] == pytest.approx(metrics.f1_score(truth.tags, tags))
    assert scores["f1"] > 0.7
    theirs = metrics.classification_report(truth.tags, tags, output_dict=True)
    assert scores["f1/LOC"] == pytest.approx(theirs["LOC"]["f1-score"])
    assert json.loads(Path(whole["output_dir"], "labels.json").read_text()) == {
        "classes": ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    }


def test_the_model_of_the_folder_and_of_its_export_tag_alike(trained, tmp_path, capsys):
    before = predicted(trained), without(eval_results(trained["output_dir"]), "global_step")
    convert_checkpoint.convert(trained["output_dir"], tmp_path / "hf", "huggingface")
    alone = without(trained, *OF_TRAINING, "bert_config_file", "vocab_file")
    for more in {}, {"init_checkpoint": str(tmp_path / "hf"), "output_dir": str(tmp_path / "b")}:
        assert call(alone | more) == 0
        scores = without(eval_results((alone | more)["output_dir"]), "global_step")
        assert (predicted(alone | more), scores) == before
    assert "tagged 26 sentences: " in capsys.readouterr().out


def test_a_loaded_model_finds_the_entities_of_the_command(whole, small_tags):
    words = tag_files.read(small_tags.unlabelled, labelled=False).words
    found = official_bert.load(whole["output_dir"]).predict(words)
    for spans, tags in zip(found, predicted(whole), strict=True):
        places = [(span.label, span.start, span.stop) for span in spans]
        assert places == [(*entity,) for entity in tag_schemes.entities(tags)]


def test_several_seeds_name_the_best(files, capsys):
    settings = without(files, "do_predict", "predict_file") | {"num_seeds": 2, "seed": 3}
    assert call(settings | {"num_train_epochs": 2}) == 0
    said = capsys.readouterr().out
    results = json.loads(Path(files["output_dir"], "results.json").read_text())
    scores = {run["seed"]: run["metrics"]["f1"] for run in results["runs"]}
    assert results["best"]["seed"] == max(scores, key=scores.get)
    best = results["best"]["seed"]
    assert f"best f1: {scores[best]:.4f} of seed {best}" in said


def test_every_scheme_and_format_is_trained_on_and_told(files, tmp_path, capsys):
    """The entities of IOB1 are the same as in IOB2, so all that follows is the same, too."""
    sentences = tag_files.read(files["train_file"])
    iob1 = [[re.sub("^B", "I", tag) for tag in tags] for tags in sentences.tags]
    path = write_json(tmp_path / "a.jsonl", zip(sentences.words, iob1, strict=True))
    dev = write_conll(tmp_path / "dev.conll", [(["Anna", "\u200b"], ["S-PER", "S-NEW"])])
    settings = files | {"train_file": path, "dev_file": dev, "num_train_epochs": 1}
    assert call(settings | {"predict_file": path}) == 0
    said, warned = capsys.readouterr()
    assert f"{path}: 60 sentences of " in said
    assert "tags in IOB1, read as IOB2" in said
    assert f"{dev}: 1 sentences of 2 words, tags in BIOES, read as IOB2" in said
    assert f"{dev}: 1 words give no word piece and are read as [UNK]" in said
    assert "1 words have tags that the model does not know (B-NEW); they count as missed" in warned
    assert "sentences are longer than --max_seq_length=24 and are read in overlapping" in said
    rows = Path(files["output_dir"], "predictions.jsonl").read_text().splitlines()
    assert all(len(row["predicted_tags"]) == len(row["tokens"]) for row in map(json.loads, rows))
    assert eval_results(files["output_dir"])["recall/NEW"] == 0


def test_parts_of_speech_are_plain_tags(files, tmp_path, capsys):
    train = write_conll(tmp_path / "a.conll", [(["Anna", "lives", "."], ["NNP", "VBZ", "."])] * 9)
    settings = files | {"train_file": train, "dev_file": train, "num_train_epochs": 20}
    assert call(settings) == 0
    scores = eval_results(files["output_dir"])
    assert scores["f1"] == scores["accuracy"] == scores["f1/NNP"] == 1
    (spans,) = official_bert.load(files["output_dir"]).predict(["Anna lives."])
    assert [span[:2] for span in spans] == [("NNP", "Anna"), ("VBZ", "lives"), (".", ".")]


def test_predictions_do_not_overwrite_what_is_tagged(trained, capsys):
    again = f"{trained['output_dir']}/predictions.txt"
    before = Path(again).read_bytes()
    assert call(without(trained, *OF_TRAINING) | {"predict_file": again}) == 2
    assert "output_dir must not overwrite an input" in capsys.readouterr().err
    assert Path(again).read_bytes() == before


@pytest.mark.slow
def test_killed_with_sigkill_and_given_again_it_ends_with_the_same_files(files, tmp_path):
    settings = files | {"num_train_epochs": 30, "save_checkpoints_steps": 40, "eval_steps": 50}
    same = ["eval_results.txt", "predictions.txt"]
    assert_the_same_after_a_kill("run_tagger", call, settings, tmp_path, same, before=300)
