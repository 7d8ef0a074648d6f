"""The shape of a BERT: reads and writes `bert_config.json`, reads Hugging Face's `config.json`."""

import dataclasses
import json
import math
from typing import Self

from official_bert.system.places import AnyPath, as_path

MAX_SIZE, MAX_LAYERS = 10**9, 10**4  # beyond: a mistake, or an attack on the memory
ACTIVATIONS = ("gelu", "gelu_new", "gelu_erf", "relu", "tanh", "linear")
_HUGGING_FACE = ("model_type", "architectures", "transformers_version")  # keys only it has
_FROM_HF = {"gelu": "gelu_erf", "gelu_python": "gelu_erf", "gelu_pytorch_tanh": "gelu_new"}
_UNLIKE_BERT = {  # Hugging Face's keys, and the only value that our model supports
    "model_type": "bert",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT encoder, with the keys of `bert_config.json` (arXiv 1810.04805).

    The defaults are BERT-Base's. Values are checked on construction.

    Args:
        vocab_size: Number of word pieces.
        hidden_size: Width H of a token's representation; a multiple of `num_attention_heads`.
        num_hidden_layers: Number of Transformer layers.
        num_attention_heads: Number of attention heads per layer.
        intermediate_size: Width of the feed-forward layer, customarily 4 H.
        hidden_act: `"gelu"`, tanh-approximated as in the official code (`"gelu_new"` is another
            name of the same); `"gelu_erf"`, the exact x Φ(x), which Hugging Face's configurations
            call `"gelu"`; `"relu"`, `"tanh"` or `"linear"`.
        hidden_dropout_prob: Dropout after the embeddings and after each sub-layer, in [0, 1).
        attention_probs_dropout_prob: Dropout on attention probabilities, in [0, 1).
        max_position_embeddings: Maximum sequence length, in tokens.
        type_vocab_size: Number of segment ids.
        initializer_range: Standard deviation of the normal that weights are drawn from, before
            truncation at two of them; the weights' own is 0.88 times as large.

    Raises:
        ValueError: if a value is out of range, or two contradict each other.

    Example:

    >>> BertConfig(vocab_size=1000, hidden_size=128, num_attention_heads=2).head_size
    64
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self._check(field)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_attention_heads; got hidden_size="
                f"{self.hidden_size} and num_attention_heads={self.num_attention_heads}."
            )

    def _check(self, field: dataclasses.Field) -> None:
        value = getattr(self, field.name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if field.type is int:
            most = MAX_LAYERS if field.name == "num_hidden_layers" else MAX_SIZE
            good = number and isinstance(value, int) and 0 < value <= most
            wanted = f"an integer from 1 to {most:,}"
        elif field.name.endswith("dropout_prob"):
            good, wanted = number and 0 <= value < 1, "in [0, 1)"
        elif field.type is float:
            good, wanted = number and 0 < value < math.inf, "a positive number"
        else:
            good = isinstance(value, str) and value in ACTIVATIONS
            wanted = f"one of {', '.join(ACTIVATIONS)}"
        if not good:
            raise ValueError(f"{field.name} must be {wanted}; got {value!r:.99}.")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_json_file(cls, path: AnyPath) -> Self:
        """Reads a `bert_config.json`, or Hugging Face's `config.json`.

        The keys tell them apart. Other keys of released models are ignored.

        Raises:
            ValueError: if the file is not such a JSON object, a value is out of range, or the model
                is not a BERT.
            OSError: if it cannot be read.
        """
        try:
            values = json.loads(as_path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} must be JSON; got invalid JSON ({error}). Give a bert_config.json."
            ) from None
        return cls.from_values(values, path)

    @classmethod
    def from_values(cls, values: object, path: object = "the configuration") -> Self:
        """The same from the parsed file; errors name `path`."""
        if not isinstance(values, dict) or "vocab_size" not in values:
            raise ValueError(
                f"{path} must be a JSON object with a vocab_size; got {values!r:.99}. Give a "
                "bert_config.json, or Hugging Face's config.json."
            )
        values = _official(values, path)
        names = {field.name for field in dataclasses.fields(cls)}
        try:
            return cls(**{name: value for name, value in values.items() if name in names})
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}: {error}") from None

    def to_json(self) -> str:
        """The text of `bert_config.json`."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def _official(values: dict, path: object) -> dict:
    """The values of a configuration under the official names; refuses a model unlike BERT."""
    for key, only in _UNLIKE_BERT.items():
        if values.get(key, only) != only:
            raise ValueError(
                f"{key} must be {only!r} in {path}; got {values[key]!r:.99}: the model is not a "
                "BERT."
            )
    if values.keys().isdisjoint(_HUGGING_FACE):
        return values
    architectures = values.get("architectures")
    if "model_type" not in values and architectures and "'Bert" not in str(architectures):
        raise ValueError(
            f"architectures must be a BERT's in {path}; got {architectures!r:.99}: the model is "
            "not a BERT."
        )
    name = values.get("hidden_act", "gelu")  # their "gelu" is exact, ours approximates
    return values | {"hidden_act": _FROM_HF.get(name, name) if isinstance(name, str) else name}
