r"""Predicts the words at [MASK] with a pre-trained model: a quick check of what it has learned.

    python -m official_bert.fill_blanks --model_dir=demo_output/model \
        --vocab_file=demo_output/vocab.txt "Return the [MASK] of the list."
"""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

from official_bert.system import commands, local_paths, quiet_tensorflow

FLAGS = flags.FLAGS


class Guess(NamedTuple):
    """A word piece and the probability that the model gives it."""

    token: str
    probability: float


class BlankFiller:
    """A pre-trained model together with its vocabulary.

    Args:
        model_dir: Folder with `bert_config.json` and the checkpoints of a run; the newest whole one
            is used.
        vocab_file: The vocabulary that the model was trained with.
        do_lower_case: Whether that vocabulary is an uncased one.
        trained: `False` takes the model as it was before the first update of its run.

    Raises:
        ValueError: if there is no checkpoint, or the vocabulary is not the model's.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike,
        vocab_file: str | os.PathLike,
        do_lower_case: bool = True,
        trained: bool = True,
    ):
        local_paths.require_local(model_dir=model_dir, vocab_file=vocab_file)
        quiet_tensorflow.import_tensorflow()  # takes seconds, so not before it is needed
        from official_bert.data import tokenization
        from official_bert.model.config import BertConfig
        from official_bert.model.pretrainer import BertPretrainer
        from official_bert.training import model_state
        from official_bert.training.checkpoints import CheckpointStore

        model_dir = pathlib.Path(model_dir)
        self._tokenizer = tokenization.load(str(vocab_file), do_lower_case)
        tokenization.check_case(self._tokenizer.get_vocab(), str(vocab_file), do_lower_case)
        config = BertConfig.from_json_file(model_dir / "bert_config.json")
        if self._tokenizer.get_vocab_size() != config.vocab_size:
            raise ValueError(
                f"{vocab_file} holds {self._tokenizer.get_vocab_size()} word pieces, but the model "
                f"in {model_dir} was made for {config.vocab_size}; give the model's own vocabulary."
            )
        checkpoint = CheckpointStore(model_dir).latest()
        if checkpoint is None:
            raise ValueError(f"{model_dir} holds no checkpoint; has its run written one yet?")
        seed, weights = (0, checkpoint.prefix) if trained else _beginning(model_dir)
        self._model = BertPretrainer(config, seed=seed)
        self._longest = config.max_position_embeddings
        tokens = map(self._tokenizer.id_to_token, range(config.vocab_size))
        self._are_words = [token.isalpha() for token in tokens]
        if weights:
            model_state.load_weights(self._model, weights)

    def guesses(self, sentence: str, count: int = 3, words_only: bool = False) -> list[list[Guess]]:
        """The `count` likeliest word pieces for each `[MASK]` of `sentence`, likeliest first.

        Args:
            sentence: Text with at least one `[MASK]`.
            count: How many guesses for each.
            words_only: Leaves out what is no whole word: punctuation, numbers, `##` pieces. The
                probabilities stay those among all word pieces.

        Raises:
            ValueError: if the sentence has no `[MASK]` or is too long for the model.

        Example:

        >>> filler.guesses("Return the [MASK] of the list.")     # doctest: +SKIP
        [[Guess(token='length', probability=0.21), Guess(token='value', probability=0.09), …]]
        """
        import numpy as np

        ids = self._ids(sentence)
        mask_id = self._tokenizer.token_to_id("[MASK]")
        blanks = [place for place, token in enumerate(ids) if token == mask_id]
        # Padded, and asked for every position: kernels are compiled anew for each new shape.
        batch = {
            name: np.zeros((1, self._longest), np.int32)
            for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
        }
        batch["input_ids"][0, : len(ids)] = ids
        batch["input_mask"][0, : len(ids)] = 1
        batch["masked_lm_positions"][0] = range(self._longest)
        logits = np.asarray(self._model(batch)["masked_lm_logits"])[0, blanks]  # (blanks, V)
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = odds / odds.sum(axis=-1, keepdims=True)
        asked = np.flatnonzero(self._are_words) if words_only else np.arange(logits.shape[-1])
        ranked = asked[np.argsort(-probabilities[:, asked])[:, :count]]
        return [
            [Guess(self._tokenizer.id_to_token(int(i)), float(row[i])) for i in best]
            for row, best in zip(probabilities, ranked)
        ]

    def _ids(self, sentence):
        """[CLS] sentence [SEP] as ids; the parts between the blanks are tokenised by themselves."""
        special = self._tokenizer.token_to_id
        parts = sentence.split("[MASK]")
        if len(parts) == 1:
            raise ValueError(f"{sentence!r} has no [MASK]; put one where the model should guess.")
        ids = [special("[CLS]")]
        for index, part in enumerate(parts):
            ids += [special("[MASK]")] if index else []
            ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        ids.append(special("[SEP]"))
        if len(ids) > self._longest:
            raise ValueError(
                f"{sentence[:40]!r}… has {len(ids)} word pieces; the model takes at most "
                f"{self._longest}."
            )
        return ids


def _beginning(model_dir):
    """The seed of a run and the checkpoint that it started from, if any."""
    run = json.loads((model_dir / "run.json").read_text())
    return run["seed"], run["init_checkpoint"]


def describe(sentence: str, guesses: Sequence[Sequence[Guess]]) -> str:
    """A sentence with the guesses for its blanks below it, as text for the screen."""
    lines = [f"  {sentence}"]
    for blank in guesses:
        lines.append("      " + "   ".join(f"{g.token} {g.probability:.0%}" for g in blank))
    return "\n".join(lines)


def main(sentences: list[str]) -> None:
    if not sentences:
        raise ValueError(
            'give at least one sentence with a blank: "Return the [MASK] of the list."'
        )
    filler = BlankFiller(FLAGS.model_dir, FLAGS.vocab_file, FLAGS.do_lower_case)
    for sentence in sentences:
        print(describe(sentence, filler.guesses(sentence)))


def _define_flags():
    flags.DEFINE_string(
        "model_dir",
        None,
        "Folder of a run: --model_dir of run_pretraining. Required.",
        required=True,
    )
    flags.DEFINE_string(
        "vocab_file", None, "Vocabulary: the vocab.txt of the model. Required.", required=True
    )
    flags.DEFINE_bool("do_lower_case", True, "Whether the vocabulary is uncased.")


if __name__ == "__main__":
    _define_flags()
    commands.run(main, arguments=True)
