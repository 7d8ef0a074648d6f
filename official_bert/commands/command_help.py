"""The text of `--help` and `--helpshort`: flags by topic, required ones first, rare ones last."""

import shutil
import textwrap
from collections.abc import Mapping

from absl import flags

# The topics in their order; each with its flags, the most used first. A command shows those it has.
TOPICS = {
    "What to do": ("do_train", "do_eval", "do_predict", "evaluate"),
    "Data": (
        "input_files",
        "eval_files",
        "input_file",
        "corpus",
        "task_name",
        "data_dir",
        "train_file",
        "dev_file",
        "predict_file",
        "predictions_file",
        "null_odds_file",
        "sentence1_column",
        "sentence2_column",
        "label_column",
        "label_type",
        "input_format",
        "corpus_format",
        "json_field",
        "language",
        "log_file",
        "input",
    ),
    "Model": ("init_checkpoint", "bert_config_file", "vocab_file", "do_lower_case"),
    "Output": ("model_dir", "output_dir", "output_file", "output", "output_format", "report_file"),
    "Device to compile for": ("topology", "price_per_chip_hour", "host_network_gbits"),
    "Records": (
        "max_seq_length",
        "max_predictions_per_seq",
        "masked_lm_prob",
        "dynamic_masking",
        "dupe_factor",
        "do_whole_word_mask",
        "max_ngram_size",
        "short_seq_prob",
        "drop_duplicate_documents",
        "skip_bad_lines",
        "num_shards",
        "gzip_compress",
        "use_next_sentence_label",
    ),
    "Vocabulary": ("vocab_size", "min_frequency", "max_text_mb"),
    "Schedule": (
        "recipe",
        "num_train_epochs",
        "num_steps_per_epoch",
        "train_batch_size",
        "learning_rate",
        "warmup_steps",
        "warmup_proportion",
        "end_lr",
        "gradient_accumulation_steps",
        "num_seeds",
        "seed",
        "random_seed",
    ),
    "Questions and answers": (
        "version_2_with_negative",
        "null_score_diff_threshold",
        "doc_stride",
        "max_query_length",
        "max_answer_length",
        "n_best_size",
    ),
    "Optimizer": (
        "optimizer_type",
        "weight_decay",
        "global_clipnorm",
        "beta_1",
        "beta_2",
        "epsilon",
        "layer_decay",
        "freeze",
        "init_moments",
    ),
    "Checkpoints, evaluation and log": (
        "save_checkpoints_steps",
        "keep_checkpoint_max",
        "resume_from",
        "eval_steps",
        "eval_batch_size",
        "predict_batch_size",
        "log_steps",
    ),
    "Machine": (
        "engine",
        "distribution_strategy",
        "num_gpus",
        "dtype",
        "num_workers",
        "local_workers",
        "worker_hosts",
        "task_index",
        "tpu",
        "shard_optimizer",
        "steps_per_loop",
    ),
}
RARE = "Rarely needed"  # what no topic has
ESSENTIAL = frozenset(
    [
        "do_train",
        "do_eval",
        "do_predict",
        "input_files",
        "eval_files",
        "input_file",
        "corpus",
        "task_name",
        "data_dir",
        "train_file",
        "predict_file",
        "init_checkpoint",
        "bert_config_file",
        "vocab_file",
        "model_dir",
        "output_dir",
        "output_file",
        "input",
        "output",
        "output_format",
        "topology",
        "max_seq_length",
        "dynamic_masking",
        "num_shards",
        "vocab_size",
        "recipe",
        "num_train_epochs",
        "num_steps_per_epoch",
        "train_batch_size",
        "learning_rate",
        "warmup_steps",
        "optimizer_type",
        "version_2_with_negative",
        "label_column",
        "sentence1_column",
        "log_file",
    ]
)
"""Flags that `--helpshort` shows; those that are required are shown in any case."""

_REQUIRED = "Required."
_INDENT = 28


def text(manual: str, defined: Mapping[str, flags.Flag], short: bool = False) -> str:
    """The help of a command.

    Args:
        manual: What comes before the flags: the module's docstring.
        defined: {name: flag} of the command.
        short: Whether only flags that are required or `ESSENTIAL` are shown.

    Returns:
        Lines as wide as the terminal, 100 columns at most.
    """
    shown = {name: f for name, f in defined.items() if not short or _is_essential(name, f)}
    parts = [manual.rstrip()]
    for topic, names in by_topic(shown).items():
        parts.append("\n".join([topic, *(_entry(name, shown[name]) for name in names)]))
    more = "--help shows every flag." if short else "--helpshort shows the most used flags."
    return "\n\n".join([*parts, more])


def by_topic(defined: Mapping[str, flags.Flag]) -> dict[str, list[str]]:
    """{topic: names of its flags}, in the order of the help; only topics that have flags."""
    required = [name for name, flag in defined.items() if _is_required(flag)]
    topics = {"Required": required}
    for topic, names in TOPICS.items():
        topics[topic] = [name for name in names if name in defined and name not in required]
    placed = {name for names in topics.values() for name in names}
    topics[RARE] = sorted(set(defined) - placed)
    return {topic: names for topic, names in topics.items() if names}


def _is_required(flag):
    return _REQUIRED in (flag.help or "")


def _is_essential(name, flag):
    return name in ESSENTIAL or _is_required(flag)


def _entry(name, flag):
    """The lines of a flag: its name, what it is, its default."""
    head = f"  --{'[no]' if flag.boolean else ''}{name}"
    words = flag.help.replace(_REQUIRED, "").strip()
    choices = getattr(flag.parser, "enum_values", None)
    if choices:
        words += f" One of: {', '.join(choices)}."
    if flag.default not in (None, "", []) and "efault" not in words:
        words += f" Default: {_default(flag)}."
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    lines = textwrap.wrap(words, max(30, width - _INDENT), break_on_hyphens=False)
    if len(head) > _INDENT - 2:
        lines = ["", *lines]
    first, *others = lines
    return "\n".join(
        [f"{head:<{_INDENT}}{first}".rstrip(), *(" " * _INDENT + line for line in others)]
    )


def _default(flag):
    if flag.boolean:
        return "on" if flag.default else "off"
    return f"{flag.default:g}" if isinstance(flag.default, float) else flag.default
