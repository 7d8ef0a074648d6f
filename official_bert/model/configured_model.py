"""Base class of all models: saving, loading and export of a Keras model with a `BertConfig`."""

import dataclasses
import os
from collections.abc import Collection
from typing import Self

import keras

from official_bert.model import Tensor, Tensors, fused
from official_bert.model.config import BertConfig


class ConfiguredModel(keras.Model):
    """A Keras model made from a `BertConfig`: the encoder, or a model with a head on it.

    Args:
        config, seed, dtype: As of `BertEncoder`.
        name: Of the model.
    """

    input_names: tuple[str, ...] = ("input_ids", "input_mask", "segment_ids")  # each (B, S), int32

    def __init__(
        self, config: BertConfig, seed: int | None, dtype: str | keras.DTypePolicy | None, name: str
    ):
        super().__init__(name=name, dtype=dtype)
        self.config, self.seed = config, seed

    def get_config(self) -> dict[str, object]:
        """The arguments, from which Keras makes the model again when it loads a file."""
        return {
            "config": dataclasses.asdict(self.config),
            "seed": self.seed,
            "dtype": self.dtype_policy.name,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict) -> Self:
        """The model that `get_config` described."""
        return cls(**{**config, "config": BertConfig.from_values(config["config"])})

    def export(
        self,
        filepath: str | os.PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: list | None = None,
        **options: object,
    ) -> None:
        """Keras' `export` of the forward pass; the model need not have been called.

        Args:
            filepath, format, verbose: As of `keras.Model.export`.
            input_signature: As there; default: any number of rows, of any length or, on JAX, of
                length `max_position_embeddings`.
            options: As there.
        """
        with fused.as_plain_operations():
            super().export(
                str(filepath), format, verbose, input_signature or self._signature(), **options
            )

    def named_outputs(self, outputs: Tensor | Tensors) -> Tensors:
        """The outputs of a call by name, as they are served."""
        return outputs if isinstance(outputs, dict) else {"logits": outputs}

    def _signature(self):
        any_length = keras.backend.backend() == "tensorflow"
        length = None if any_length else self.config.max_position_embeddings
        lengths = dict.fromkeys(ConfiguredModel.input_names, length)
        return [
            {
                name: keras.InputSpec("int32", (None, lengths.get(name)), name=name)
                for name in self.input_names
            }
        ]


class ServedModel(ConfiguredModel):
    """A model whose outputs have names, for export.

    Args:
        model: The model.
        without: Names of `model.named_outputs` to leave out.
    """

    def __init__(self, model: ConfiguredModel, without: Collection[str] = ()):
        super().__init__(model.config, model.seed, model.dtype_policy, "served")
        self.input_names = model.input_names
        self.model, self._without = model, frozenset(without)
        self.built = True

    def call(self, inputs: Tensors) -> Tensors:
        named = self.model.named_outputs(self.model(inputs))
        return {name: one for name, one in named.items() if name not in self._without}
