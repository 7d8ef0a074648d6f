"""The parts of a model, from its folder or named, for loading, conversion and training."""

import json
import shutil

import numpy as np
import peers
import pytest
from bert_checkpoints import CONFIG, make_hugging_face, make_source, write_vocabulary

import official_bert
from official_bert import run_pretraining
from official_bert.checkpoints import model_folder, sources
from official_bert.checkpoints.model_folder import ModelFolder
from official_bert.commands import fine_tuning, pretraining_settings
from official_bert.commands.pretraining_settings import Pretrain
from official_bert.convert_checkpoint import convert
from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data import manifest, tokenization
from official_bert.data.instances import Settings
from official_bert.model.config import BertConfig
from official_bert.run_classifier import Classify

THEIRS = json.loads(CONFIG.to_json()) | {"hidden_act": "gelu", "model_type": "bert"}


def write_tokenizer(folder, vocab_file, beside=(), **normal):
    """A `tokenizer.json` in transformers' form in place of a `vocab.txt`."""
    vocabulary = tokenization.read_vocabulary(str(vocab_file))
    normalizer = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    content = {
        "added_tokens": [{"id": n, "content": t} for t, n in list(vocabulary.items())[:5]],
        "normalizer": {"type": "BertNormalizer", **normalizer, "lowercase": True} | normal,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocabulary},
    }
    vocab_file.unlink()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    if beside:
        (folder / "tokenizer_config.json").write_text(json.dumps(beside))


def make_theirs(folder, beside=(), **normal):
    """A folder of Hugging Face as transformers 5 saves it: no `vocab.txt`."""
    arrays = make_hugging_face(folder)
    (folder / "bert_config.json").unlink()
    (folder / "config.json").write_text(json.dumps(THEIRS))
    write_tokenizer(folder, folder / "vocab.txt", beside, **normal)
    return arrays


# Origin of the parts


def test_no_part_of_a_model_comes_from_the_folder_above(tmp_path):
    make_source(tmp_path / "above")
    (tmp_path / "above" / "labels.json").write_text('{"classes": ["a", "b"]}')
    (tmp_path / "above/tokenizer_config.json").write_text("{}")
    for name in "in", "best", "pretrained":
        model = ModelFolder(tmp_path / "above" / name)
        assert (model.config_file, model.vocab_file, model.labels_file) == (None, None, None)


def test_another_models_vocabulary_above_is_not_read(tmp_path):
    make_source(tmp_path / "above")
    make_hugging_face(tmp_path / "above/hf")
    (tmp_path / "above/hf/vocab.txt").unlink()
    with pytest.raises(ValueError, match="hf must hold a tokenizer.json or vocab.txt; got neither"):
        official_bert.load(tmp_path / "above/hf")
    with pytest.raises(ValueError, match="got neither. Give --vocab_file"):
        convert(tmp_path / "above/hf", tmp_path / "out", "huggingface")
    (tmp_path / "above/hf/bert_config.json").unlink()
    with pytest.raises(ValueError, match="hf must hold a bert_config.json or config.json; got"):
        sources.open_checkpoint(tmp_path / "above/hf")


def test_a_vocabulary_above_is_named_for_whoever_knows_it(tmp_path):
    """As where a vocabulary is shared by several runs."""
    make_source(tmp_path / "run")
    (tmp_path / "run/vocab.txt").rename(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match=f"if that is {tmp_path}/vocab.txt, copy it into the"):
        official_bert.load(tmp_path / "run")
    shutil.copy(tmp_path / "vocab.txt", tmp_path / "run")
    official_bert.load(tmp_path / "run")


@pytest.mark.parametrize("below", ["checkpoint-500", "snapshots/abc"])
def test_a_folder_of_models_names_them(tmp_path, below):
    make_theirs(tmp_path / "all" / below)
    with pytest.raises(ValueError, match=f"Give one of the folders in it: {tmp_path}/all/{below}."):
        model_folder.of(tmp_path / "all")


def test_a_name_of_the_hub_says_how_to_get_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="`hf download org/a-bert --local-dir=a-bert`"):
        model_folder.of("org/a-bert")


def test_one_of_several_files_leads_to_all(tmp_path):
    shard, index = "model-00002-of-00003.safetensors", "model.safetensors.index.json"
    for name in shard, index:
        (tmp_path / name).write_text("{}")
    assert model_folder.of(tmp_path / shard)[0] == tmp_path / index


def test_words_with_capitals_are_added_to_uncased_models(tmp_path):
    make_theirs(tmp_path / "in")
    file = tmp_path / "in/tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"].popitem()  # its number is free
    number = len(content["model"]["vocab"])
    content["added_tokens"].append({"id": number, "content": "<URL>"})
    file.write_text(json.dumps(content))
    assert sources.open_checkpoint(tmp_path / "in").do_lower_case is True
    convert(tmp_path / "in", tmp_path / "tf1", "tf1")
    (tmp_path / "tf1/tokenizer_config.json").unlink()
    assert sources.open_checkpoint(tmp_path / "tf1").do_lower_case is True


@pytest.mark.parametrize("name", ["best", "pretrained"])
def test_what_a_run_exports_has_the_parts_of_the_run(tmp_path, name):
    make_source(tmp_path / "run")
    (tmp_path / "run/run.json").write_text('{"stages": [], "do_lower_case": false}')
    model = ModelFolder(tmp_path / "run" / name)
    assert model.config() == CONFIG
    assert model.vocab_file == tmp_path / "run/vocab.txt"
    assert model.casing() is False
    assert ModelFolder(tmp_path / "run/other").run_folder is None


# tokenizer.json


@pytest.mark.parametrize(
    ("normal", "beside", "casing"),
    [
        ({}, {}, True),
        ({"lowercase": False}, {"do_lower_case": False}, False),
        ({"strip_accents": False}, {"strip_accents": False}, "keep_accents"),
        ({}, {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]"}, True),
    ],
)
def test_a_folder_of_transformers_has_all_it_needs(tmp_path, normal, beside, casing):
    make_theirs(tmp_path / "hf", beside, **normal)
    source = sources.open_checkpoint(tmp_path / "hf")
    assert source.do_lower_case == casing
    convert(tmp_path / "hf", tmp_path / "out", "huggingface")
    back = sources.open_checkpoint(tmp_path / "out")
    assert (back.do_lower_case, back.config) == (casing, source.config)
    for name in "vocab.txt", "tokenizer.json":  # both are read alike
        file = str(tmp_path / "out" / name)
        assert tokenization.casing(file) == casing
        assert [*tokenization.read_vocabulary(file)] == [
            *tokenization.read_vocabulary(str(source.vocab_file))
        ]


def test_accents_kept_by_a_flag_are_written_for_transformers_and_read_back(tmp_path):
    transformers = peers.load("transformers")
    make_source(tmp_path / "in")
    pieces = (tmp_path / "in/vocab.txt").read_text().split("\n")
    pieces[-2] = "パ"
    (tmp_path / "in/vocab.txt").write_text("\n".join(pieces))
    convert(tmp_path / "in", tmp_path / "hf", "huggingface", strip_accents=False)
    back = sources.open_checkpoint(tmp_path / "hf")
    assert back.do_lower_case == "keep_accents"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.tokenize("É パ e") == ["é", "パ", "e"]
    convert(tmp_path / "hf", tmp_path / "back", "huggingface", strip_accents=True)
    assert sources.open_checkpoint(tmp_path / "back").do_lower_case is True
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert theirs.tokenize("É e") == ["e", "e"]
    loaded = official_bert.load(tmp_path / "in", strip_accents=False)
    assert loaded.tokenizer.encode("É", add_special_tokens=False).tokens == ["é"]
    args = resolved(tmp_path, init_checkpoint=tmp_path / "in", strip_accents=False)
    assert args.do_lower_case == "keep_accents"


def test_accents_are_kept_where_the_tokenizer_keeps_them(tmp_path):
    write_vocabulary(tmp_path)
    write_tokenizer(tmp_path, tmp_path / "vocab.txt", strip_accents=False)
    file = str(tmp_path / "tokenizer.json")
    found = tokenization.load(file, tokenization.casing(file)).encode(
        "É the", add_special_tokens=False
    )
    assert found.tokens == ["é", "the"]
    assert tokenization.load(file).encode("É", add_special_tokens=False).tokens == ["e"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "BPE", "vocab": {}, "merges": []}, "must contain a WordPiece model.*; got 'BPE'"),
        ({"type": "Unigram", "vocab": []}, "must contain a WordPiece model.*; got 'Unigram'"),
        ({"type": "WordPiece", "vocab": {"a": 1}}, "its ids must be 0 to"),
        ({"type": "WordPiece", "vocab": {"a": 0}}, r"without \[PAD\]"),
        ({"type": "WordPiece"}, "must contain a vocabulary"),
        ({"type": "WordPiece", "vocab": {"a": 0, " a": 1}}, "word pieces must be different"),
        (None, "with a model; got none"),
    ],
)
def test_other_tokenizers_are_refused_by_name(tmp_path, model, message):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
    with pytest.raises(ValueError, match=message):
        tokenization.read_vocabulary(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize(
    ("normal", "beside", "message"),
    [
        ({"handle_chinese_chars": False}, {}, "handle_chinese_chars=False"),
        ({"type": "NFKC"}, {}, "normalizer='NFKC'"),
        ({"type": ["NFKC"]}, {}, "normalizer="),
        ({}, {"do_lower_case": False}, r"lower_case=False \(tokenizer.json has True\)"),
        ({}, {"mask_token": "<mask>"}, "mask_token='<mask>'"),
    ],
)
def test_settings_that_differ_from_berts_or_each_other_are_refused(
    tmp_path, normal, beside, message
):
    write_vocabulary(tmp_path)
    write_tokenizer(tmp_path, tmp_path / "vocab.txt", beside, **normal)
    file = str(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=message):
        tokenization.casing(file)
    assert tokenization.casing(file, True) is True  # as the user says


def test_two_vocabularies_in_one_folder_are_refused_unless_one_is_named(tmp_path):
    make_theirs(tmp_path / "hf")
    write_vocabulary(tmp_path / "hf")
    assert model_folder.of(tmp_path / "hf")[1].vocab_file == tmp_path / "hf/tokenizer.json"
    write_vocabulary(tmp_path / "hf", cased=True)
    with pytest.raises(ValueError, match="must agree; they do not"):
        sources.open_checkpoint(tmp_path / "hf")
    named = sources.open_checkpoint(tmp_path / "hf", vocab_file=tmp_path / "hf/vocab.txt")
    assert named.do_lower_case is False


def test_records_are_made_with_a_tokenizer_json_and_tell_their_vocabulary(small_text, tmp_path):
    shutil.copy(small_text.vocab_file, tmp_path / "vocab.txt")
    pieces = [*tokenization.read_vocabulary(small_text.vocab_file)]
    write_tokenizer(tmp_path, tmp_path / "vocab.txt", strip_accents=False)
    settings, file = Settings(max_seq_length=32, dupe_factor=1), str(tmp_path / "tokenizer.json")
    create_pretraining_data(small_text.path, str(tmp_path / "a"), file, settings, num_workers=1)
    path = tmp_path / "a.manifest.json"
    made = manifest.parse(str(path), path.read_bytes())
    assert made["settings"]["do_lower_case"] == "keep_accents"
    assert manifest.tokens(made) == pieces
    named = {"vocab_file": small_text.vocab_file, "strip_accents": False, "num_workers": 1}
    create_pretraining_data(small_text.path, str(tmp_path / "b"), settings=settings, **named)
    by_flag = manifest.read(str(tmp_path / "b.manifest.json"))
    assert by_flag["settings"] == made["settings"]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# One reader of configurations


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "roberta"}, "model_type must be 'bert' in .*; got 'roberta'"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type must be 'absolute'.*; got 'rel",
        ),
        (
            {"architectures": ["RobertaModel"], "model_type": None},
            "model_type must be 'bert' .*; got None",
        ),
    ],
)
def test_every_command_that_trains_refuses_what_is_no_bert(tmp_path, changed, message):
    file = tmp_path / "config.json"
    for args in pretraining(file), fine_tuned(tmp_path, bert_config_file=file):
        file.write_text(json.dumps(THEIRS))
        assert config_of(args).hidden_act == "gelu_erf"
        file.write_text(json.dumps(THEIRS | changed))
        with pytest.raises(ValueError, match=message):
            config_of(args)


def pretraining(config_file=None, init_checkpoint=None, model_dir="nowhere"):
    named = {"bert_config_file": config_file, "init_checkpoint": init_checkpoint}
    return Pretrain(**named, model_dir=model_dir, input_files=("a",))


def fine_tuned(folder, **named):
    return Classify(**named, output_dir=f"{folder}/out", do_train=True, max_seq_length=16)


def resolved(folder, **named):
    return fine_tuning.resolve_paths(fine_tuned(folder, **named), ())


def config_of(args):
    if isinstance(args, Classify):
        return fine_tuning.read_config(args)
    return run_pretraining.run_from_flags(args).config


# --init_checkpoint=FOLDER


def test_the_folder_that_training_starts_from_implies_the_rest(tmp_path):
    make_theirs(tmp_path / "hf", strip_accents=False)
    args = resolved(tmp_path, init_checkpoint=tmp_path / "hf")
    assert args.vocab_file == str(tmp_path / "hf/tokenizer.json")
    assert args.do_lower_case == "keep_accents"
    assert config_of(args) == BertConfig.from_json_file(tmp_path / "hf/config.json")
    assert config_of(pretraining(None, tmp_path / "hf")) == config_of(args)


def test_a_run_that_has_begun_implies_the_rest_itself(tmp_path):
    make_source(tmp_path / "out")
    (tmp_path / "out/run.json").write_text('{"stages": [], "do_lower_case": false}')
    args = resolved(tmp_path, init_checkpoint=tmp_path / "gone")
    assert (args.vocab_file, args.do_lower_case) == (str(tmp_path / "out/vocab.txt"), False)
    assert config_of(args) == CONFIG
    assert config_of(pretraining(None, tmp_path / "gone", tmp_path / "out")) == CONFIG


def test_flags_override_the_folder_and_contradictions_are_refused(tmp_path):
    make_theirs(tmp_path / "hf")
    write_vocabulary(tmp_path)
    dropout = tmp_path / "dropout.json"
    dropout.write_text(json.dumps(THEIRS | {"hidden_dropout_prob": 0.3}))
    named = {"bert_config_file": dropout, "vocab_file": tmp_path / "vocab.txt"}
    named |= {"init_checkpoint": tmp_path / "hf"}
    args = resolved(tmp_path, **named)
    assert config_of(args).hidden_dropout_prob == 0.3
    assert args.vocab_file == str(tmp_path / "vocab.txt")
    pieces = (tmp_path / "vocab.txt").read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces[:-2], *pieces[:-3:-1]]) + "\n")
    with pytest.raises(ValueError, match="vocab_file must be the vocabulary of the model in .*hf"):
        resolved(tmp_path, **named)


def test_without_a_folder_the_parts_are_asked_for(tmp_path):
    with pytest.raises(ValueError, match="--bert_config_file is required"):
        resolved(tmp_path)
    with pytest.raises(ValueError, match="--bert_config_file is required"):
        pretraining_settings.check(pretraining())
    make_theirs(tmp_path / "hf")
    (tmp_path / "hf/tokenizer.json").unlink()
    with pytest.raises(ValueError, match="--vocab_file is required, because .*hf has none"):
        resolved(tmp_path, init_checkpoint=tmp_path / "hf")


def test_the_weights_come_with_the_vocabulary(tmp_path):
    arrays = make_theirs(tmp_path / "hf")
    table = official_bert.load(tmp_path / "hf").model.weights[0]
    np.testing.assert_array_equal(table.numpy(), arrays[table.path])
