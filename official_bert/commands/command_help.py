"""The text of `--help` and `--helpshort`: flags by topic, required ones first, rare ones last."""

import shutil
import textwrap
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field
from typing import Any

# The topics in their order; each with its flags, the most used first, and a star at those that
# `--helpshort` shows, besides those that are required. A command shows those it has.
TOPICS = {
    "What to do": "do_train* do_eval* do_predict* evaluate",
    "Data": (
        "input_files* eval_files* input_file* corpus* task_name* data_dir* train_file* dev_file "
        "predict_file* predictions_file null_odds_file sentence1_column* sentence2_column "
        "label_column* label_type input_format corpus_format json_field language log_file* input*"
    ),
    "Model": "init_checkpoint* bert_config_file* vocab_file* do_lower_case",
    "Output": "model_dir* output_dir* output_file* output* output_format* report_file",
    "Device to compile for": "topology* price_per_chip_hour host_network_gbits",
    "Records": (
        "max_seq_length* max_predictions_per_seq masked_lm_prob dynamic_masking* dupe_factor "
        "do_whole_word_mask max_ngram_size short_seq_prob drop_duplicate_documents "
        "skip_bad_lines num_shards* gzip_compress use_next_sentence_label"
    ),
    "Vocabulary": "vocab_size* min_frequency max_text_mb",
    "Schedule": (
        "recipe* num_train_epochs* num_steps_per_epoch* train_batch_size* learning_rate* "
        "warmup_steps* warmup_proportion end_lr gradient_accumulation_steps num_seeds seed "
        "random_seed"
    ),
    "Questions and answers": (
        "version_2_with_negative* null_score_diff_threshold doc_stride max_query_length "
        "max_answer_length n_best_size"
    ),
    "Optimizer": (
        "optimizer_type* weight_decay global_clipnorm beta_1 beta_2 epsilon layer_decay freeze "
        "init_moments"
    ),
    "Checkpoints, evaluation and log": (
        "save_checkpoints_steps keep_checkpoint_max resume_from eval_steps eval_batch_size "
        "predict_batch_size log_steps"
    ),
    "Machine": (
        "engine distribution_strategy num_gpus dtype num_workers local_workers worker_hosts "
        "task_index tpu shard_optimizer steps_per_loop"
    ),
}
_RARE = "Rarely needed"  # what no topic has
_ESSENTIAL = {name[:-1] for names in TOPICS.values() for name in names.split() if name[-1] == "*"}
_REQUIRED = "Required."
_INDENT = 28


def text(manual: str, flags: Mapping[str, Field[Any]], short: bool = False) -> str:
    """The help of a command.

    Args:
        manual: What comes before the flags: the module's docstring.
        flags: {name: field} of the command's settings.
        short: Whether only flags that are required or have a star are shown.

    Returns:
        Lines as wide as the terminal, 100 columns at most.
    """
    required = [name for name, field in flags.items() if _is_required(field)]
    shown = [n for n in flags if not short or n in required or n in _ESSENTIAL]
    topics = {"Required": required}
    for topic, listed in TOPICS.items():
        ordered = listed.replace("*", "").split()
        topics[topic] = [name for name in ordered if name in shown and name not in required]
    topics[_RARE] = sorted(set(shown).difference(*topics.values()))
    parts = [manual.rstrip()]
    for topic, names in topics.items():
        if names:
            parts.append("\n".join([topic, *(_entry(name, flags[name]) for name in names)]))
    more = "--help shows every flag." if short else "--helpshort shows the most used flags."
    return "\n\n".join([*parts, more])


def words(field: Field[Any]) -> str:
    """The description of a flag, with its choices."""
    choices = ", ".join(field.metadata["choices"])
    return field.metadata["words"] + (f" One of: {choices}." if choices else "")


def _is_required(field):
    return field.default is MISSING or _REQUIRED in field.metadata["words"]


def _entry(name, field):
    """The lines of a flag: its name, what it is, its default."""
    is_switch = bool in (field.type, *typing.get_args(field.type))
    head = f"  --{'[no]' if is_switch else ''}{name}"
    described = words(field).replace(_REQUIRED, "").strip()
    if field.default not in (None, "", (), MISSING) and "efault" not in described:
        described += f" Default: {_shown(field.default)}."
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    lines = textwrap.wrap(described, max(30, width - _INDENT), break_on_hyphens=False)
    if len(head) > _INDENT - 2:
        lines = ["", *lines]
    first, *others = lines
    return "\n".join(
        [f"{head:<{_INDENT}}{first}".rstrip(), *(" " * _INDENT + line for line in others)]
    )


def _shown(default):
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ", ".join(default)
    return f"{default:g}" if isinstance(default, float) else default
