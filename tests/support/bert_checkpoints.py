"""Small random BERT checkpoints of several formats, and their logits; for tests."""

import contextlib
import json
import zipfile

import h5py
import numpy as np
import peers
import tensorflow as tf
from bert_shapes import TINY, tiny

from official_bert.checkpoints import names, safetensors_files, sources
from official_bert.checkpoints.source import Tensor
from official_bert.data import tokenization
from official_bert.model.pretrainer import BertPretrainer
from official_bert.training import checkpoints

WORDS = "the cat sat on a mat un ##aff ##able , . ! ' s ##s 中 é e ##x 1 ##2 naive"
SHAPES = {
    "small": TINY,
    "one layer, many segments": tiny(
        vocab_size=33,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=50,
        max_position_embeddings=8,
        type_vocab_size=5,
    ),
    "eleven layers": tiny(
        vocab_size=35,
        hidden_size=8,
        num_hidden_layers=11,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
        hidden_act="gelu_erf",
    ),
}
CONFIG = SHAPES["small"]


def write_vocabulary(folder, cased=False):
    words = [*tokenization.SPECIAL_TOKENS, *WORDS.split(), *(["The", "Cat", "T"] if cased else [])]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")


def random_tensors(config, seed=0, dtype="<f4"):
    """Random weights by official name."""
    rng = np.random.default_rng(seed)
    return {
        row.official: rng.normal(0, 0.4, names.shape(row, config)).astype(dtype)
        for row in names.rows(config)
    }


def as_tensors(arrays):
    return {n: Tensor(a.shape, a.dtype, lambda a=a: a) for n, a in arrays.items()}


def make_source(folder, config=CONFIG, seed=0, cased=False, slots=False):
    """A TensorFlow 1 checkpoint with a configuration and a vocabulary; its arrays."""
    folder.mkdir(parents=True)
    arrays = random_tensors(config, seed)
    extra = {}
    if slots:
        for number, (name, array) in enumerate(arrays.items()):
            extra[f"{name}/adam_m"] = array * 0.1 + number
            extra[f"{name}/adam_v"] = array**2
        extra["global_step"] = np.int64(7)
    checkpoints.write_bundle(folder / "bert_model.ckpt", {**arrays, **extra})
    (folder / "bert_config.json").write_text(config.to_json())
    write_vocabulary(folder, cased)
    return {**arrays, **extra}


def make_hugging_face(folder, config=CONFIG, seed=0):
    """A folder in Hugging Face's form, with an official configuration; its arrays."""
    folder.mkdir(parents=True)
    arrays = random_tensors(config, seed)
    write_hugging_face(folder, arrays, config)
    (folder / "bert_config.json").write_text(config.to_json())
    write_vocabulary(folder)
    return arrays


def write_hugging_face(folder, arrays, config, rename=lambda name: name, extra=()):
    tensors = as_tensors(arrays)
    safetensors_files.write(
        folder / "model.safetensors",
        [
            (
                rename(row.hugging_face),
                tensors[row.official].transposed()
                if "hugging_face" in row.transposed
                else tensors[row.official],
            )
            for row in names.rows(config)
            if row.official in tensors
        ]
        + list(extra),
    )


def write_shards(folder, count):
    """Puts the weights of a folder of Hugging Face in several files; its index."""
    whole = safetensors_files.read(folder / "model.safetensors")
    places = {name: f"part-{number % count}.safetensors" for number, name in enumerate(whole)}
    for shard in {*places.values()}:
        part = [(name, whole[name]) for name in whole if places[name] == shard]
        safetensors_files.write(folder / shard, part)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    return index


def write_objects(prefix, arrays, config=CONFIG):
    """An object checkpoint whose variables are called and laid out as tf-models has them.

    What is no variable of a BERT goes under its own name.
    """
    rows = {row.official: row for row in names.rows(config)}
    variables = {}
    for number, (name, array) in enumerate(arrays.items()):
        row = rows.get(name)
        if row and "tf_models" in row.transposed and np.ndim(array) == 2:
            array = array.T
        variables[f"v{number}"] = tf.Variable(array, name=row.tf_models if row else name)
    tf.train.Checkpoint(**variables).write(str(prefix))


@contextlib.contextmanager
def keras_weights(file):
    """The HDF5 file inside a `.keras` file, to be changed."""
    parts = read_archive(file)
    weights = file.with_suffix(".h5")
    weights.write_bytes(parts["model.weights.h5"])
    with h5py.File(weights, "a") as hdf5:
        yield hdf5
    write_archive(file, parts | {"model.weights.h5": weights.read_bytes()})
    weights.unlink()


def read_archive(file):
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_archive(file, parts, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def weights_of(path, **options):
    source = sources.open_checkpoint(path, **options)
    return {name: tensor.read() for name, tensor in source.weights.items()}


def assert_same_bytes(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def random_batch(config, seed=1):
    rng = np.random.default_rng(seed)
    length = config.max_position_embeddings
    return {
        "input_ids": rng.integers(0, config.vocab_size, (3, length)).astype(np.int32),
        "input_mask": (np.arange(length) < [[length], [6], [4]]).astype(np.int32),
        "segment_ids": rng.integers(0, config.type_vocab_size, (3, length)).astype(np.int32),
        "masked_lm_positions": rng.integers(0, 4, (3, 2)).astype(np.int32),
    }


def logits_of_transformers(folder, batch):
    """What `transformers.BertForPreTraining` computes from a folder, at the masked positions."""
    torch, transformers = peers.load("torch"), peers.load("transformers")
    model, notes = transformers.BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    with torch.no_grad():
        outputs = model.eval()(
            input_ids=torch.tensor(batch["input_ids"]).long(),
            attention_mask=torch.tensor(batch["input_mask"]).long(),
            token_type_ids=torch.tensor(batch["segment_ids"]).long(),
        )
    rows = np.arange(3)[:, None]
    return {
        "masked_lm_logits": outputs.prediction_logits.numpy()[rows, batch["masked_lm_positions"]],
        "next_sentence_logits": outputs.seq_relationship_logits.numpy(),
    }


def our_logits(folder, batch):
    source = sources.open_checkpoint(folder)
    model = BertPretrainer(source.config, seed=None, dtype="float32")
    for variable in model.weights:
        variable.assign(source.weights[variable.path].read())
    outputs = model(batch)
    return {name: np.asarray(value) for name, value in outputs.items()}
