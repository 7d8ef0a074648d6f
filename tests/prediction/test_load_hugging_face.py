"""Folders that transformers saved, loaded for use: the same probabilities, named alike."""

import json

import numpy as np
import peers
import pytest
from bert_checkpoints import CONFIG, write_vocabulary

import official_bert
from official_bert import convert_checkpoint


def save(folder, name, *, add_pooling_layer=None, **settings):
    """A random model of transformers with a vocabulary, saved; the model and its tokenizer."""
    torch, transformers = peers.load("torch"), peers.load("transformers")
    torch.manual_seed(0)
    shape = json.loads(CONFIG.to_json()) | {"hidden_act": "gelu"} | settings
    options = {} if add_pooling_layer is None else {"add_pooling_layer": add_pooling_layer}
    model = getattr(transformers, name)(transformers.BertConfig(**shape), **options)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    model.save_pretrained(folder)
    write_vocabulary(folder)
    return model.eval(), transformers.BertTokenizer.from_pretrained(folder)


def logits_of(model, tokenizer, *text):
    torch = peers.load("torch")
    with torch.no_grad():
        return model(**tokenizer(*text, return_tensors="pt")).logits[0].numpy()


def softmax(logits):
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def test_a_masked_lm_without_a_pooler_gives_the_same_probabilities(tmp_path):
    model, tokenizer = save(tmp_path, "BertForMaskedLM")
    loaded = official_bert.load(tmp_path)
    texts = ["The cat [MASK] on a mat!", "[MASK] 中 é [MASK]"]
    for text, blanks in zip(texts, loaded.predict(texts, top=5)):
        places = np.flatnonzero(np.array(tokenizer(text)["input_ids"]) == tokenizer.mask_token_id)
        theirs = softmax(logits_of(model, tokenizer, text)[places])[:, : len(tokenizer)]
        for guesses, row in zip(blanks, theirs, strict=True):
            best = np.argsort(-row)[:5]
            assert [g.token for g in guesses] == tokenizer.convert_ids_to_tokens(best)
            assert [g.probability for g in guesses] == pytest.approx(row[best], rel=1e-3)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    names = {0: "entails", 1: "contradicts", 2: "neither"}
    return folder, *save(folder, "BertForSequenceClassification", id2label=names)


def test_a_classifier_gives_the_same_probabilities_by_name(classifier):
    folder, model, tokenizer = classifier
    texts = ["The cat sat.", ("un able", "a mat!"), "中 é"]
    for text, found in zip(texts, official_bert.load(folder).predict(texts), strict=True):
        theirs = softmax(logits_of(model, tokenizer, *([text] if type(text) is str else text)))
        assert list(found.probabilities) == ["entails", "contradicts", "neither"]
        np.testing.assert_allclose(list(found.probabilities.values()), theirs, atol=1e-4)


@pytest.mark.parametrize("pools", [True, False])
def test_a_bare_encoder_gives_the_same_vectors_and_says_what_it_has_no_head_for(tmp_path, pools):
    torch = peers.load("torch")
    model, tokenizer = save(tmp_path, "BertModel", add_pooling_layer=pools)
    loaded = official_bert.load(tmp_path)
    texts = ["The cat sat on a mat!", ("un able", "a mat"), "中"]
    for text, found in zip(texts, loaded.predict(texts, batch_size=2), strict=True):
        ids = tokenizer(*([text] if type(text) is str else text), return_tensors="pt")
        with torch.no_grad():
            theirs = model(**ids)
        assert found.tokens == tokenizer.convert_ids_to_tokens(ids["input_ids"][0])
        np.testing.assert_allclose(found.vectors, theirs.last_hidden_state[0].numpy(), atol=1e-4)
        assert (found.pooled is not None) == pools
        if pools:
            np.testing.assert_allclose(found.pooled, theirs.pooler_output[0].numpy(), atol=1e-4)
    assert loaded.predict([]) == []
    with pytest.raises(ValueError, match=r"text 1 must have no \[MASK\]; .* no masked-LM head"):
        loaded.predict(["a cat", "the [MASK]"])
    assert "without a head" in repr(loaded)


def test_a_number_is_the_one_that_transformers_says(tmp_path):
    model, tokenizer = save(tmp_path, "BertForSequenceClassification", num_labels=1)
    (found,) = official_bert.load(tmp_path).predict(["the cat"])
    assert found.number == pytest.approx(logits_of(model, tokenizer, "the cat")[0], abs=1e-4)


def test_a_classifier_there_and_back_has_its_bytes(classifier, tmp_path):
    transformers, torch = peers.load("transformers"), peers.load("torch")
    folder, model, _ = classifier
    convert_checkpoint.convert(folder, tmp_path / "tf1", "tf1")
    convert_checkpoint.convert(tmp_path / "tf1", tmp_path / "back", "huggingface")
    back, notes = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    assert back.config.id2label == model.config.id2label
    for name, values in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], values), name
