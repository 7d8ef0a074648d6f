"""Hugging Face's formats, in and out, compared with transformers and KerasHub."""

import dataclasses
import json
import shutil
import subprocess
import sys

import numpy as np
import peers
import pytest
from bert_checkpoints import (
    CONFIG,
    SHAPES,
    as_tensors,
    assert_same_bytes,
    logits_of_transformers,
    make_hugging_face,
    make_source,
    our_logits,
    random_batch,
    weights_of,
    write_hugging_face,
    write_shards,
)
from small_text import SHARED, needs_shared

from official_bert.checkpoints import safetensors_files, sources
from official_bert.convert_checkpoint import convert
from official_bert.data import tokenization


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("act", ["gelu", "gelu_erf"])
def test_logits_equal_those_of_transformers(tmp_path, shape, act):
    config = dataclasses.replace(SHAPES[shape], hidden_act=act)
    make_source(tmp_path / "ours", config)
    convert(tmp_path / "ours", tmp_path / "hf", "huggingface")
    batch = random_batch(config)
    theirs, ours = (
        logits_of_transformers(tmp_path / "hf", batch),
        our_logits(tmp_path / "ours", batch),
    )
    for name, logits in theirs.items():
        np.testing.assert_allclose(ours[name], logits, atol=1e-5)


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
def test_a_folder_written_by_transformers_computes_the_same_here(tmp_path, act):
    torch, transformers = peers.load("torch"), peers.load("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(**dataclasses.asdict(CONFIG) | {"hidden_act": act})
    model = transformers.BertForPreTraining(config)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    model.save_pretrained(tmp_path / "hf")
    batch = random_batch(CONFIG)
    theirs, ours = (
        logits_of_transformers(tmp_path / "hf", batch),
        our_logits(tmp_path / "hf", batch),
    )
    for name, logits in theirs.items():
        np.testing.assert_allclose(ours[name], logits, atol=1e-5)


def test_keras_hub_computes_the_same_from_an_export(tmp_path):
    keras_hub = peers.load("keras_hub")
    make_source(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "hf", "huggingface")
    backbone = keras_hub.models.BertBackbone.from_preset(str(tmp_path / "hf"))
    batch = random_batch(CONFIG)
    theirs = backbone(
        {
            "token_ids": batch["input_ids"],
            "segment_ids": batch["segment_ids"],
            "padding_mask": batch["input_mask"],
        }
    )["pooled_output"]
    arrays = weights_of(tmp_path / "ours")
    scores = np.asarray(theirs) @ arrays["cls/seq_relationship/output_weights"].T
    scores += arrays["cls/seq_relationship/output_bias"]
    ours = our_logits(tmp_path / "ours", batch)["next_sentence_logits"]
    np.testing.assert_allclose(scores, ours, atol=1e-5)


def test_old_names_and_copies_of_hugging_face_are_understood(tmp_path):
    arrays = make_hugging_face(tmp_path / "old")
    words = as_tensors(arrays)["bert/embeddings/word_embeddings"]
    positions = np.arange(20)[None]
    extra = [
        ("cls.predictions.decoder.weight", words),
        ("bert.embeddings.position_ids", as_tensors({"": positions})[""]),
    ]

    def old(name):
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        return name.replace("LayerNorm.bias", "LayerNorm.beta")

    write_hugging_face(tmp_path / "old", arrays, CONFIG, old, extra)
    assert_same_bytes(weights_of(tmp_path / "old"), arrays)
    other = arrays["bert/embeddings/word_embeddings"] + 1
    extra[0] = ("cls.predictions.decoder.weight", as_tensors({"": other})[""])
    write_hugging_face(tmp_path / "old", arrays, CONFIG, old, extra)
    with pytest.raises(ValueError, match="decoder.weight must equal"):
        sources.open_checkpoint(tmp_path / "old")


def test_an_encoder_alone_is_converted_on_request_only(tmp_path):
    transformers = peers.load("transformers")
    arrays = make_hugging_face(tmp_path / "bare")
    arrays = {n: a for n, a in arrays.items() if not n.startswith("cls")}
    write_hugging_face(tmp_path / "bare", arrays, CONFIG, lambda name: name.removeprefix("bert."))
    with pytest.raises(ValueError, match="must have masked_lm and next_sentence; got .* with enc"):
        convert(tmp_path / "bare", tmp_path / "out", "huggingface")
    assert not (tmp_path / "out").exists()
    convert(tmp_path / "bare", tmp_path / "out", "huggingface", allow_missing_heads=True)
    _, notes = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    assert_same_bytes(weights_of(tmp_path / "out"), arrays)


def test_weights_in_several_files_are_read_and_no_file_elsewhere(tmp_path):
    arrays = make_hugging_face(tmp_path / "hf")
    index = write_shards(tmp_path / "hf", 3)
    assert_same_bytes(weights_of(tmp_path / "hf"), arrays)
    shutil.copy(tmp_path / "hf/part-0.safetensors", tmp_path / "part-0.safetensors")
    index.write_text(index.read_text().replace("part-0", "../part-0"))
    with pytest.raises(ValueError, match="must name files in its own folder"):
        sources.open_checkpoint(tmp_path / "hf")


def test_the_command_that_an_error_gives_for_a_pickle_makes_it_readable(tmp_path):
    torch = peers.load("torch")
    arrays = make_hugging_face(tmp_path / "hf")
    file = tmp_path / "hf/model.safetensors"
    weights = {n: torch.tensor(t.read()) for n, t in safetensors_files.read(file).items()}
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
    file.unlink()
    torch.save(weights, tmp_path / "hf/pytorch_model.bin")
    with pytest.raises(ValueError, match="must be safetensors; got a pickle") as error:
        sources.open_checkpoint(tmp_path / "hf")
    command = str(error.value).partition("run: ")[2]
    subprocess.run(command.replace("python ", f"{sys.executable} ", 1), shell=True, check=True)
    assert_same_bytes(weights_of(tmp_path / "hf"), arrays)


def test_safetensors_files_are_those_of_the_library(tmp_path):
    library = peers.load("safetensors.numpy")
    arrays = {"a": np.arange(6, dtype="<f4").reshape(2, 3), "b": np.int64(3), "": np.zeros((0, 2))}
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    safetensors_files.write(tmp_path / "ours", as_tensors(arrays).items())
    assert_same_bytes(library.load_file(tmp_path / "ours"), arrays)
    library.save_file(arrays, tmp_path / "theirs")
    read = {n: t.read() for n, t in safetensors_files.read(tmp_path / "theirs").items()}
    assert_same_bytes(read, arrays)


TEXTS = ["The cat's unaffable, naïve É 中é12!", "ÀÉÎ THE Cat", "", "x" * 150, "a [MASK] sat."]


@pytest.mark.parametrize(
    "through", ["tf1", "keras", pytest.param("savedmodel", marks=pytest.mark.slow), "huggingface"]
)
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_lower_casing_goes_with_every_form_and_is_that_of_transformers(
    tmp_path, through, do_lower_case
):
    """From a vocabulary without upper-case letters, which may be cased or not."""
    transformers = peers.load("transformers")
    make_source(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "there", through, do_lower_case=do_lower_case)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path / "there")
    if through in ("tf1", "keras"):  # the others are ends
        convert(tmp_path / "there", tmp_path / "hf", "huggingface")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ours = tokenization.load(str(tmp_path / "in/vocab.txt"), do_lower_case)
    for text in TEXTS:
        parts = [ours.encode(p, add_special_tokens=False).ids for p in text.split("[MASK]")]
        mask = ours.token_to_id("[MASK]")
        ids = [2, *parts[0], *(i for part in parts[1:] for i in (mask, *part)), 3]
        assert theirs(text)["input_ids"] == ids
    assert theirs("the", "cat")["token_type_ids"] == [0, 0, 0, 1, 1]


@needs_shared
@pytest.mark.parametrize("kind", ["uncased", "cased"])
def test_google_s_vocabularies_split_real_text_as_transformers_does(tmp_path, kind):
    transformers = peers.load("transformers")
    vocab_file = SHARED / f"vocab/bert-base-{kind}-vocab.txt"
    size = len(tokenization.read_vocabulary(str(vocab_file)))
    make_source(tmp_path / "in", dataclasses.replace(CONFIG, vocab_size=size))
    convert(tmp_path / "in", tmp_path / "hf", "huggingface", vocab_file=vocab_file)
    ours = tokenization.load(str(vocab_file), do_lower_case=kind == "uncased")
    lines = (SHARED / "bert_sample/sample_text.txt").read_text().splitlines()
    for loader in transformers.AutoTokenizer, transformers.BertTokenizer:
        theirs = loader.from_pretrained(tmp_path / "hf")
        assert len(theirs) == size
        for line in lines:
            assert (
                theirs(line)["input_ids"][1:-1] == ours.encode(line, add_special_tokens=False).ids
            )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents=True without"),
        ({"cls_token": {"content": "<s>"}}, "cls_token='<s>'"),
        ({"do_lower_case": False, "tokenize_chinese_chars": False}, "tokenize_chinese_chars=False"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer"),
        ({"do_lower_case": "yes"}, "do_lower_case='yes'"),
        (["do_lower_case"], "must be a JSON object"),
    ],
)
def test_settings_that_no_tokenizer_here_obeys_are_refused(tmp_path, settings, message):
    make_hugging_face(tmp_path / "hf")
    (tmp_path / "hf/tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        sources.open_checkpoint(tmp_path / "hf")
    assert sources.open_checkpoint(tmp_path / "hf", do_lower_case=True).do_lower_case
