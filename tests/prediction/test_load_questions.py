"""A model that answers questions, loaded for use, and its head in Hugging Face's form and TF1's."""

import dataclasses
import json
import shutil

import numpy as np
import peers
import pytest
import tensorflow as tf
from bert_checkpoints import CONFIG, assert_same_bytes, random_batch, write_vocabulary
from model_kinds import make_kind
from small_runs import STAGE, train
from small_squad import WINDOWS, make_run, make_task

import official_bert
from official_bert import convert_checkpoint
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.config import BertConfig
from official_bert.prediction.predictors import Answer, QuestionAnswerer
from official_bert.tasks import squad_data, squad_decoding
from official_bert.tasks.squad import QuestionAnswering
from official_bert.training import checkpoints, fine_tuned

POOLER = "bert/pooler/dense/bias, bert/pooler/dense/kernel"
CAT = ("the cat?", "The cat sat. Un able, a mat! 中 é naive. " * 3)


def engine():
    return TfDistribute(tf.distribute.get_strategy())


# A run


@pytest.fixture(scope="module", params=[False, True])
def run(request, small_questions, tmp_path_factory):
    """A short run of version 1.1 or 2.0: its folder and its task."""
    folder = tmp_path_factory.mktemp("run")
    task = make_task(small_questions, version_2_with_negative=request.param)
    stages = (dataclasses.replace(STAGE, steps=2, warmup_steps=1),)
    train(make_run(small_questions, task=task, stages=stages), folder)
    shutil.copy(small_questions.vocab_file, folder / "vocab.txt")
    return folder, task


def test_a_run_answers_as_its_task_does(small_questions, run):
    folder, task = run
    loaded = official_bert.load(folder)
    assert type(loaded) is QuestionAnswerer
    kind = "some have no answer" if task.version_2_with_negative else "each has an answer"
    assert repr(loaded).startswith(f"<QuestionAnswerer: of questions {kind}, f")
    assert loaded.windows == WINDOWS
    questions = squad_data.read(small_questions.dev).questions
    found = loaded.predict([(q.text, q.context) for q in questions], batch_size=5)
    features = task.features(questions, small_questions.config)
    assert len(features) > len(questions)  # some contexts are several windows
    model, _ = fine_tuned.load(task, folder, engine())
    logits = np.asarray(model(features.batch(range(len(features)))))
    settings = squad_decoding.Decoding(version_2_with_negative=task.version_2_with_negative)
    wanted = squad_decoding.decode(features, logits[..., 0], logits[..., 1], settings)
    for answer, prediction, question in zip(found, wanted, questions, strict=True):
        assert answer.text == prediction.text == question.context[answer.start : answer.stop]
        place = [candidate.text for candidate in prediction.candidates].index(answer.text)
        assert answer.probability == pytest.approx(prediction.probabilities[place], abs=1e-5)
        if task.version_2_with_negative:
            assert answer.null_odds == pytest.approx(prediction.null_odds, abs=1e-5)
        else:
            assert answer.null_odds is None


def test_the_threshold_decides_where_there_may_be_no_answer(run):
    loaded = official_bert.load(run[0])
    asked = [("Where does Anna live?", "Anna lives in Rome. Ben lives in Oslo.")]
    with_none = {"version_2_with_negative": True}
    (nothing,) = loaded.predict(asked, **with_none, null_score_diff_threshold=-1e9)
    (something,) = loaded.predict(asked, **with_none, null_score_diff_threshold=1e9)
    assert (nothing.text, nothing.start, nothing.stop) == ("", 0, 0)
    assert something.text
    assert nothing.null_odds == something.null_odds
    assert nothing.probability + something.probability <= 1
    odds = nothing.probability / something.probability
    assert np.log(odds) == pytest.approx(something.null_odds, abs=1e-4)


@pytest.mark.parametrize("output_format", ["huggingface", "tf1"])
def test_a_run_is_converted_and_answers_alike(run, tmp_path, output_format):
    said = convert_checkpoint.convert(run[0], tmp_path / "out", output_format)
    assert "(encoder, pooler, question_answering)" in said[0]
    asked = [("Where does Anna live?", "Anna lives in Rome.")]
    given = {"version_2_with_negative": True}
    wanted = official_bert.load(run[0]).predict(asked, **given)
    found = official_bert.load(tmp_path / "out").predict(asked, **given)
    assert [answer[:3] for answer in found] == [answer[:3] for answer in wanted]
    assert found[0].probability == pytest.approx(wanted[0].probability, rel=1e-4)


# Heads of other forms


@pytest.fixture
def official(tmp_path):
    """The tensors of a folder as the official script leaves it, with moments and a step."""
    make_kind("answers", tmp_path / "in", CONFIG)
    tensors = checkpoints.read_tensors(tmp_path / "in/bert_model.ckpt")
    tensors |= {f"{name}/adam_{slot}": array for name, array in tensors.items() for slot in "mv"}
    tensors["global_step"] = np.int64(9)
    checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", tensors)
    return tensors


def their_logits(model, batch):
    torch = peers.load("torch")
    with torch.no_grad():
        outputs = model.eval()(
            input_ids=torch.tensor(batch["input_ids"]).long(),
            attention_mask=torch.tensor(batch["input_mask"]).long(),
            token_type_ids=torch.tensor(batch["segment_ids"]).long(),
        )
    return np.stack([outputs.start_logits.numpy(), outputs.end_logits.numpy()], axis=-1)


def test_transformers_computes_the_same_from_an_export(official, tmp_path):
    transformers = peers.load("transformers")
    convert_checkpoint.convert(tmp_path / "in", tmp_path / "out", "huggingface")
    theirs, notes = transformers.AutoModelForQuestionAnswering.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    batch = random_batch(CONFIG)
    ours = official_bert.load(tmp_path / "in").model(batch)
    np.testing.assert_allclose(ours, their_logits(theirs, batch), atol=1e-4)


def test_what_transformers_saved_computes_the_same_here_and_goes_back(tmp_path):
    torch, transformers = peers.load("torch"), peers.load("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(**json.loads(CONFIG.to_json()) | {"hidden_act": "gelu"})
    theirs = transformers.BertForQuestionAnswering(config)
    for parameter in theirs.parameters():
        parameter.data.normal_(0, 0.4)
    theirs.save_pretrained(tmp_path / "hf")
    write_vocabulary(tmp_path / "hf")
    batch = random_batch(CONFIG)
    loaded = official_bert.load(tmp_path / "hf")
    np.testing.assert_allclose(loaded.model(batch), their_logits(theirs, batch), atol=1e-4)
    (answer,) = loaded.predict([CAT])
    assert answer.text == CAT[1][answer.start : answer.stop]
    assert 0 < answer.probability <= 1
    task = QuestionAnswering(vocab_file=str(tmp_path / "hf/vocab.txt"))
    read = BertConfig.from_json_file(tmp_path / "hf/config.json")
    model = fine_tuned.load_checkpoint(task, read, str(tmp_path / "hf"), engine())
    np.testing.assert_array_equal(model(batch), loaded.model(batch))
    convert_checkpoint.convert(tmp_path / "hf", tmp_path / "tf1", "tf1")
    convert_checkpoint.convert(tmp_path / "tf1", tmp_path / "back", "huggingface")
    back = transformers.BertForQuestionAnswering.from_pretrained(tmp_path / "back")
    for name, values in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], values), name


def test_what_an_export_cannot_hold_is_listed(official, tmp_path):
    said = convert_checkpoint.convert(
        tmp_path / "in", tmp_path / "out", "huggingface", allow_missing_vocabulary=True
    )
    assert said[-1].startswith("left out  ")
    convert_checkpoint.convert(tmp_path / "in", tmp_path / "bare", "tf1", keep_slots=False)
    said = convert_checkpoint.convert(tmp_path / "bare", tmp_path / "hf", "huggingface")
    assert said[-1] == f"left out  {POOLER}"


def test_an_export_for_tensorflow_1_has_the_same_bytes_moments_and_step(official, tmp_path):
    convert_checkpoint.convert(tmp_path / "in", tmp_path / "out", "tf1")
    assert_same_bytes(checkpoints.read_tensors(tmp_path / "out/bert_model.ckpt"), official)


# What is asked


def test_contexts_of_any_length_and_script_are_answered_from_their_own_text(official, tmp_path):
    loaded = official_bert.load(tmp_path / "in")
    asked = [CAT, ("", "中 é"), ("Ελλάδα?", ""), ("cat " * 50, "a mat " * 40)]
    found = loaded.predict(iter(asked))
    for answer, (_, context) in zip(found, asked, strict=True):
        assert answer.text == context[answer.start : answer.stop]
        assert answer.null_odds is None
    assert found[2] == Answer("", 0, 0, 1.0, None)
    assert loaded.predict([]) == []
    for one, answer in zip(asked, found, strict=True):  # each alone
        (alone,) = loaded.predict([one])
        assert alone[:3] == answer[:3]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("who?", "questions must be a list, .*; got one text, 'who.'"),
        (["who?"], "question 0 must be a pair of texts, .*; got 'who.'"),
        (("who?", "the cat"), "question 0 must be a pair of texts, .*; got 'who.'"),
        ([("who?", "the cat", "sat")], "must be a pair of texts"),
        ([("who?", None)], "the context of question 0 must be text .*; got None"),
        ([(3, "the cat")], "question 0 must be text .*; got 3"),
    ],
)
def test_what_is_no_question_with_a_context_is_refused(official, tmp_path, asked, message):
    with pytest.raises(ValueError, match=message):
        official_bert.load(tmp_path / "in").predict(asked)
