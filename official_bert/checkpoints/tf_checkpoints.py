"""Reads TensorFlow checkpoints: TensorFlow 1's and ours by name, tf-models' by object.

An object checkpoint's keys follow the attributes of the saved objects, and differ between classes.
But the object graph also holds each variable's own name, whose end is the same in all of tf-models'
encoders and pretrainers. So variables are found by the ends of their names.
"""

import os
import re

from official_bert.checkpoints import names, tensor_bundles
from official_bert.checkpoints.source import Tensor
from official_bert.model.config import BertConfig
from official_bert.system import quiet_tensorflow

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SLOT = re.compile(r"(.+)/(?:(?:adam|lamb)_([mv])|Adam(_1)?|momentum)")
_OBJECT_SLOTS = {  # by a part of the key, the form of the full name
    "/_variables/": re.compile(r"[^/]+/(?P<slot>[mv])/(?P<name>.+)"),
    "/.OPTIMIZER_SLOT/": re.compile(r"[^/]+/(?P<name>.+)/(?P<slot>[mv])"),
}
_COUNTERS = re.compile(  # variables of the training alone
    r"(global_step|save_counter|beta[12]_power|.*/(beta[12]_power|_?iterations?|iter|skipped_updates)"
    r"|(optimizer|loss_scale|model/optimizer)/.+|(.+_)?loss_scale.*|(.+/)?good_steps)"
)
_OTHER_ENDS = {  # names of the same variables in older classes of tf-models
    "next_sentence/pooler_dense/kernel": "pooler_transform/kernel",
    "next_sentence/pooler_dense/bias": "pooler_transform/bias",
    "sentence_prediction/pooler_dense/kernel": "pooler_transform/kernel",
    "sentence_prediction/pooler_dense/bias": "pooler_transform/bias",
}
_OURS = {"kernel": "weights", "bias": "bias"}  # what a head's variables are called in TensorFlow 1
_LOGITS = re.compile(r"(?:.+/)?(predictions/transform|sentence_prediction)/logits/(kernel|bias)")


def read(
    prefix: str | os.PathLike, config: BertConfig
) -> tuple[str, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """(format, tensors and slots by official name, counters, leftovers by their own name).

    Slots are called `<name>/adam_m` and `<name>/adam_v` for every optimizer.

    Raises:
        ValueError: the checkpoint cannot be read.
    """
    try:
        tensors = tensor_bundles.read(prefix)
        read = _read_objects if OBJECT_GRAPH in tensors else _read_names
        return read(tensors, config)
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
            elif name in logits and len(tensor.shape) == 2:
                others[f"{ours}{suffix}"] = tensor.transposed()
            else:
                others[f"{ours}{suffix}"] = tensor
        elif end in _OTHER_ENDS:
            of_heads[official] = _official_layout(tensor, row, config)
        elif official in found:
            others[key] = tensor
        else:
            found[official] = _official_layout(tensor, row, config)
    # A head with a dense layer of its own uses that layer, not the encoder's pooler.
    unread = {
        re.sub("(/adam_[mv])?$", r" of the encoder, which no head reads\1", name, count=1): found[
            name
        ]
        for name in of_heads
        if name in found
    }
    return "tf-models", found | of_heads, counters | unread, others


def _logits(graph, full_names):
    """{full name of a variable of a head's last layer: its name here, or the end of its row's}.

    Several heads of tf-models call that layer alike. Which head it is follows from the attribute
    that holds it; one for each token, which is not known here, is held without a network between.
    """
    parents = {}
    for number, node in enumerate(graph.nodes):
        for child in node.children:
            parents.setdefault(child.node_id, []).append((number, child.local_name))
    has_masked_lm = any("cls/predictions/" in name for name in full_names.values())
    found = {}
    for number, node in enumerate(graph.nodes):
        for attribute in node.attributes:
            match = _LOGITS.fullmatch(attribute.full_name)
            networks = {
                above
                for layer, _ in (parents.get(number, ()) if match else ())
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
    """The official name of a variable in a layer that the configuration does not have, or None."""
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
