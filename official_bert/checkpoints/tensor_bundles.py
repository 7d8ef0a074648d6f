"""Reads and writes TensorFlow checkpoints ("tensor bundles"), without TensorFlow.

`lamb_tf.bundle_index` reads and checks `PREFIX.index`, and describes the format. Values are read on
demand and compared with their checksums; they are written one tensor at a time.

`read_bert` finds the variables of a BERT: TensorFlow 1's and ours by name, those of tf-models by
object. The keys of an object checkpoint follow the attributes of the saved objects, and differ
between classes; but its object graph also has each variable's own name, whose end is the same in
all of tf-models' encoders and pretrainers.
"""

import functools
import math
import os
import re
import struct
from collections.abc import Mapping

import numpy as np

from lamb_tf import bundle_index
from lamb_tf.bundle_index import DTYPES
from official_bert.checkpoints import names
from official_bert.checkpoints.source import Tensor
from official_bert.model.config import BertConfig
from official_bert.system import quiet_tensorflow
from official_bert.system.places import AnyPath, RemotePath, as_path, is_remote
from official_bert.system.whole_files import start_writing_out
from official_bert.system.wire_format import delimited, masked_crc, number, varint

_NUMBERS = {dtype: number for number, dtype in reversed(DTYPES.items())}
_UNCOMPRESSED = b"\0"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SLOT = re.compile(r"(.+)/(?:(?:adam|lamb)_([mv])|Adam(_1)?|momentum)")
_OBJECT_SLOTS = {  # by a part of the key, the form of the full name
    "/_variables/": re.compile(r"[^/]+/(?P<slot>[mv])/(?P<name>.+)"),
    "/.OPTIMIZER_SLOT/": re.compile(r"[^/]+/(?P<name>.+)/(?P<slot>[mv])"),
}
_COUNTERS = re.compile(  # variables only of the training
    r"(global_step|save_counter|beta[12]_power|.*/(beta[12]_power|_?iterations?|iter|skipped_updates)"
    r"|(optimizer|loss_scale|model/optimizer)/.+|(.+_)?loss_scale.*|(.+/)?good_steps)"
)
_OTHER_ENDS = {  # names of the same variables in older classes of tf-models
    "next_sentence/pooler_dense/kernel": "pooler_transform/kernel",
    "next_sentence/pooler_dense/bias": "pooler_transform/bias",
    "sentence_prediction/pooler_dense/kernel": "pooler_transform/kernel",
    "sentence_prediction/pooler_dense/bias": "pooler_transform/bias",
}
_OURS = {"kernel": "weights", "bias": "bias"}  # a head's variables in TensorFlow 1
_LOGITS = re.compile(r"(?:.+/)?(predictions/transform|sentence_prediction)/logits/(kernel|bias)")


def read(prefix: AnyPath) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name; strings have the type `object`.

    The prefix may be a URL such as `gs://bucket/a.ckpt`.

    Raises:
        ValueError: the index is damaged, or claims more than its files hold; when a tensor is read,
            its values do not match their checksum.
        OSError: it cannot be read.
    """
    entries = bundle_index.entries(str(prefix), lambda file: as_path(file).open("rb"), masked_crc)
    return {
        name: Tensor(entry.shape, entry.dtype, functools.partial(_values, entry))
        for name, entry in entries.items()
    }


def _values(entry):
    data = _bytes(entry)
    name = os.path.basename(entry.file)
    if len(data) < entry.size:
        raise ValueError(f"{name} is too short")
    if entry.dtype == object:
        values = bundle_index.strings(data.tobytes(), math.prod(entry.shape))
        if _strings(values)[1] != entry.crc:
            raise ValueError(f"strings in {name} do not match their checksum")
        return np.array([*values, None], object)[:-1].reshape(entry.shape)
    if masked_crc(data) != entry.crc:
        raise ValueError(f"values in {name} do not match their checksum")
    return data.view(entry.dtype).reshape(entry.shape)


def _bytes(entry):
    if is_remote(entry.file):
        with as_path(entry.file).open("rb") as file:
            file.seek(entry.offset)
            return np.frombuffer(file.read(entry.size), np.uint8)
    return np.fromfile(entry.file, np.uint8, entry.size, offset=entry.offset)


def write(prefix: AnyPath, tensors: Mapping[str, np.ndarray | Tensor]) -> None:
    """Writes `PREFIX.data-00000-of-00001` and `PREFIX.index`, with one tensor at a time in memory.

    Raises:
        OSError: a file cannot be written.
        ValueError: an array has a type that such files do not hold.
    """
    header = number(1, 1) + delimited(3, number(1, 1))  # one data file; version 1; little-endian
    entries, offset = {b"": header}, 0
    path = as_path(f"{prefix}.data-00000-of-00001")
    with path.open("wb") as file:
        for name in sorted(tensors, key=str.encode):
            tensor = tensors[name]
            array = np.asarray(tensor.read() if isinstance(tensor, Tensor) else tensor)
            if array.dtype not in _NUMBERS:
                raise ValueError(
                    f"{name} must have a type that checkpoints can hold; got {array.dtype}."
                )
            if array.dtype == object:
                data, crc = _strings([*array.flat])
            else:
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                crc = masked_crc(data)
            file.write(data.tobytes() if isinstance(path, RemotePath) else data.data)
            entries[name.encode()] = _entry(array, offset, len(data), crc)
            offset += len(data)
            if not isinstance(path, RemotePath):
                start_writing_out(path)
    with as_path(f"{prefix}.index").open("wb") as file:
        file.write(_table(entries))


def _strings(values):
    """The bytes of a tensor of strings, and their checksum, which covers the unpacked lengths."""
    sizes = [struct.pack("<I", len(value)) for value in values]
    crc_of_lengths = struct.pack("<I", masked_crc(b"".join(sizes)))
    lengths = b"".join(varint(len(value)) for value in values)
    return (
        np.frombuffer(b"".join([lengths, crc_of_lengths, *values]), np.uint8),
        masked_crc(b"".join([*sizes, crc_of_lengths, *values])),
    )


def _entry(array, offset, size, crc):
    sizes = b"".join(delimited(2, number(1, size)) for size in array.shape)
    where = number(4, offset) + number(5, size)
    crc = varint(6 << 3 | 5) + struct.pack("<I", crc)
    return number(1, _NUMBERS[array.dtype]) + delimited(2, sizes) + where + crc


def _table(entries):
    data, nothing = _block(entries), _block({})
    index = _block({max(entries): _handle(0, data)})
    handles = _handle(len(data), nothing) + _handle(len(data) + len(nothing), index)
    padded = handles.ljust(bundle_index.FOOTER_BYTES - len(bundle_index.MAGIC), b"\0")
    return data + nothing + index + padded + bundle_index.MAGIC


def _handle(offset, block):
    return varint(offset) + varint(len(block) - bundle_index.TRAILER_BYTES)


def _block(entries):
    """A block and its trailer; with whole keys, so that reading may start at any entry."""
    out, restarts = bytearray(), []
    for key, value in entries.items():
        restarts.append(len(out))
        out += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    restarts = restarts or [0]
    out += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + _UNCOMPRESSED
    return bytes(out) + struct.pack("<I", masked_crc(bytes(out)))


# The variables of a BERT


def read_bert(
    prefix: str | os.PathLike, config: BertConfig
) -> tuple[str, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """(format, tensors and slots by official name, counters, leftovers by their own name).

    The slots of every optimizer are named `<name>/adam_m` and `<name>/adam_v`.

    Raises:
        ValueError: the checkpoint cannot be read.
    """
    try:
        tensors = read(prefix)
        find = _read_objects if OBJECT_GRAPH in tensors else _read_names
        return find(tensors, config)
    except (OSError, ValueError) as error:
        raise ValueError(f"{prefix} is not a readable TensorFlow checkpoint: {error}.") from None


def _read_names(tensors, config):
    official = {row.official for row in names.rows(config)}
    found, counters, others = {}, {}, {}
    for name, tensor in tensors.items():
        slot = _SLOT.fullmatch(name)
        # Some optimizers insert their own name between the variable's and the slot's.
        owners = (slot[1], slot[1].rpartition("/")[0]) if slot else ()
        owner = next((owner for owner in owners if owner in official), None)
        if name in official:
            found[name] = tensor
        elif owner:
            found[f"{owner}/adam_{slot[2] or ('v' if slot[3] else 'm')}"] = tensor
        elif _COUNTERS.fullmatch(name):
            counters[name] = tensor
        else:
            others[name] = tensor
    return "TensorFlow 1", found, counters, others


def _read_objects(tensors, config):
    quiet_tensorflow.import_tensorflow()
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    try:
        graph = TrackableObjectGraph.FromString(tensors.pop(OBJECT_GRAPH).read().item())
    except Exception as error:  # of protobuf's own kind
        raise ValueError(f"its object graph is damaged ({error})") from None
    full_names = {a.checkpoint_key: a.full_name for node in graph.nodes for a in node.attributes}
    rows = {row.tf_models: row for row in names.rows(config)}
    of_a_layer = {row.tf_models: row.official for row in names.TABLE if "{i}" in row.official}
    logits = _logits(graph, full_names)
    found, of_heads, counters, others = {}, {}, {}, {}
    for key, tensor in tensors.items():
        name, slot = _name_and_slot(full_names.get(key, key), key)
        row, end = _row(rows, logits.get(name, name))
        suffix = f"/adam_{slot}" if slot else ""
        official = row and row.official + suffix
        key = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
        if row is None:
            ours = logits.get(name) or _of_a_further_layer(of_a_layer, name) or (slot and name)
            if not ours or f"{ours}{suffix}" in others:
                (counters if _COUNTERS.fullmatch(key) else others)[key] = tensor
            else:
                is_kernel = name in logits and len(tensor.shape) == 2
                others[f"{ours}{suffix}"] = tensor.transposed() if is_kernel else tensor
        elif end in _OTHER_ENDS:
            of_heads[official] = _official_layout(tensor, row, config)
        elif official in found:
            others[key] = tensor
        else:
            found[official] = _official_layout(tensor, row, config)
    # A head with a dense layer of its own uses that layer, not the encoder's pooler.
    unread = {
        re.sub("(/adam_[mv])?$", r" of the encoder, which no head reads\1", name, count=1): tensor
        for name, tensor in found.items()
        if name in of_heads
    }
    return "tf-models", found | of_heads, counters | unread, others


def _logits(graph, full_names):
    """{full name of a variable of a head's last layer: its name here, or the end of its row's}.

    Several heads of tf-models name that layer alike; the attribute that holds the head
    distinguishes them. A head for tokens, which is unknown here, is held without a network between.
    """
    parents = {}
    for place, node in enumerate(graph.nodes):
        for child in node.children:
            parents.setdefault(child.node_id, []).append((place, child.local_name))
    has_masked_lm = any("cls/predictions/" in name for name in full_names.values())
    found = {}
    for place, node in enumerate(graph.nodes):
        for attribute in node.attributes:
            match = _LOGITS.fullmatch(attribute.full_name)
            networks = {
                above
                for layer, _ in (parents.get(place, ()) if match else ())
                for above, _ in parents.get(layer, ())
            }
            attributes = {name for above in networks for _, name in parents.get(above, ())}
            if match and match[1] == "sentence_prediction":
                found[attribute.full_name] = f"output_{_OURS[match[2]]}"
            elif match and (has_masked_lm or "classification" in attributes):
                found[attribute.full_name] = f"next_sentence/logits/{match[2]}"
            elif match and "classifier" in attributes:
                found[attribute.full_name] = f"output_{_OURS[match[2]]}"
            elif match and "span_labeling" in attributes:
                found[attribute.full_name] = f"cls/squad/output_{_OURS[match[2]]}"
    return found


def _of_a_further_layer(of_a_layer, name):
    """The official name of a variable in a layer beyond the configuration, or None."""
    layer = re.search(r"(?<=layer_)\d+(?=/)", name)
    if not layer:
        return None
    official, _ = _row(of_a_layer, name[: layer.start()] + "{i}" + name[layer.end() :])
    return official and official.format(i=layer[0])


def _name_and_slot(full_name, key):
    for part, form in _OBJECT_SLOTS.items():
        match = form.fullmatch(full_name) if part in key else None
        if match:
            return match["name"], match["slot"]
    return full_name, None


def _row(rows, name):
    """The row whose name is the end of a full name, and that end."""
    parts = name.split("/")
    for first in range(len(parts)):
        end = "/".join(parts[first:])
        if _OTHER_ENDS.get(end, end) in rows:
            return rows[_OTHER_ENDS.get(end, end)], end
    return None, None


def _official_layout(tensor, row, config):
    if "tf_models" in row.transposed and len(tensor.shape) == 2:
        return tensor.transposed()
    if tensor.shape == _with_heads(row, config):
        return tensor.reshaped(names.shape(row, config))
    return tensor


def _with_heads(row, config):
    """The shape in tf-models' encoders, where the attention heads are an axis."""
    shape, heads = names.shape(row, config), (config.num_attention_heads, config.head_size)
    if "/attention/self/" in row.official:
        return (*shape[:-1], *heads)
    if row.official.endswith("/attention/output/dense/kernel"):
        return (*heads, *shape[1:])
    return shape
