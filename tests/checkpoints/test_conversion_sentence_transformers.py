"""Folders for sentence-transformers: its vectors are those of `embed`."""

import json
from pathlib import Path

import numpy as np
import peers
import pytest
from bert_checkpoints import CONFIG, make_source, random_tensors

import official_bert
from official_bert import convert_checkpoint
from official_bert.training import checkpoints

TEXTS = ["The cat sat on a mat!", "", "Unaffable, naïve É 中é", "a cat's " * 20]
STAGE = {"steps": 1, "warmup_steps": 0, "max_seq_length": 8}


def convert(folder):
    lines = convert_checkpoint.convert(folder, f"{folder}_st", "sentence_transformers")
    return f"{folder}_st", "\n".join(lines)


def encoder_tensors():
    return {n: a for n, a in random_tensors(CONFIG).items() if not n.startswith("cls/")}


def pretrained(folder):
    make_source(folder)
    return "left out  cls/predictions/", CONFIG.max_position_embeddings


def bare(folder):
    make_source(folder)
    checkpoints.write_bundle(folder / "bert_model.ckpt", encoder_tensors())
    return "written", CONFIG.max_position_embeddings


def classifier(folder):
    make_source(folder)
    head = {"output_weights": np.ones((2, CONFIG.hidden_size), "f4"), "output_bias": np.ones(2)}
    tensors = encoder_tensors() | {name: array.astype("f4") for name, array in head.items()}
    checkpoints.write_bundle(folder / "bert_model.ckpt", tensors)
    return "left out  output_bias, output_weights", CONFIG.max_position_embeddings


def of_a_run(folder):
    """Which trained on shorter texts than it has positions."""
    make_source(folder)
    (folder / "run.json").write_text(json.dumps({"stages": [STAGE]}))
    return "left out  cls/predictions/", STAGE["max_seq_length"]


@pytest.mark.parametrize("make", [pretrained, bare, classifier, of_a_run])
def test_sentence_transformers_computes_the_vectors_of_embed(tmp_path, capfd, make):
    library = peers.load("sentence_transformers")
    said, length = make(tmp_path / "in")
    out, lines = convert(tmp_path / "in")
    assert said in lines
    theirs = library.SentenceTransformer(out, device="cpu")
    assert theirs.max_seq_length == length
    assert [type(module).__name__ for module in theirs] == ["Transformer", "Pooling", "Normalize"]
    capfd.readouterr()
    model = official_bert.load(tmp_path / "in")
    ours = model.embed(TEXTS)
    assert f"of 4 texts have more than {length} word pieces" in capfd.readouterr().err
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, atol=1e-5)
    again = official_bert.load(out)
    assert type(again).__name__ == "TextEncoder"
    np.testing.assert_allclose(again.embed(TEXTS), ours, atol=1e-6)


def test_texts_are_cut_where_a_folder_of_sentence_transformers_says(tmp_path):
    library = peers.load("sentence_transformers")
    pretrained(tmp_path / "in")
    out, _ = convert(tmp_path / "in")
    settings = Path(out, "sentence_bert_config.json")
    settings.write_text('{"max_seq_length": 6, "do_lower_case": false}')
    theirs = library.SentenceTransformer(out, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(official_bert.load(out).embed(TEXTS), theirs, atol=1e-5)
    again, _ = convert(out)
    assert json.loads(Path(again, settings.name).read_text())["max_seq_length"] == 6


def test_the_card_is_of_vectors_and_not_of_the_head(tmp_path):
    classifier(tmp_path / "in")
    (tmp_path / "in/README.md").write_text("---\npipeline_tag: text-classification\n---\n")
    out, _ = convert(tmp_path / "in")
    card = peers.load("huggingface_hub").ModelCard.load(f"{out}/README.md")
    assert card.data.library_name == "sentence-transformers"
    assert card.data.pipeline_tag == "sentence-similarity"
    assert 'SentenceTransformer("NAME").encode' in card.text
    assert "## Scores" not in card.text


def test_an_export_holds_the_encoder_only_and_opens_in_transformers_without_a_note(tmp_path):
    transformers = peers.load("transformers")
    pretrained(tmp_path / "in")
    out, _ = convert(tmp_path / "in")
    model, notes = transformers.AutoModel.from_pretrained(out, output_loading_info=True)
    assert type(model).__name__ == "BertModel"
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]


def test_a_checkpoint_without_an_encoder_is_refused(tmp_path):
    make_source(tmp_path / "in")
    heads = {n: a for n, a in random_tensors(CONFIG).items() if n.startswith("cls/")}
    checkpoints.write_bundle(tmp_path / "in/bert_model.ckpt", heads)
    with pytest.raises(ValueError, match="must contain the variables of a BERT encoder"):
        convert(tmp_path / "in")
