"""The flags of `run_classifier`, and which of them, of other scripts too, are refused and why."""

from absl import flags

from official_bert.commands import fine_tuning_flags, optimizer_flags
from official_bert.commands.flag_definitions import (
    FlagDefinitions,
    apply,
    contradiction,
    idle,
)
from official_bert.system.settings import Bounds

_COLUMNS = ("sentence1_column", "sentence2_column", "label_column", "label_type")
_TABLES = {"train_file": "do_train", "dev_file": "do_eval", "predict_file": "do_predict"}
RULES = (
    contradiction(
        ("train_file", "dev_file", *_COLUMNS),
        lambda v: v.task_name,
        "--task_name={task_name} sets what these would set; leave them out.",
    ),
    idle(
        ["data_dir"],
        lambda v: not v.task_name,
        "without --task_name, whose files it contains.",
    ),
    idle(["dev_file"], lambda v: not v.do_eval, "without --do_eval."),
    idle(["predict_file"], lambda v: not v.do_predict, "without --do_predict."),
    *fine_tuning_flags.RULES,
)
# Flags of the scripts of tensorflow/models and Hugging Face not here.
REFUSED = fine_tuning_flags.REFUSED | {
    # tensorflow/models
    "train_data_path": "has no counterpart: text is read at once, from --data_dir or --train_file.",
    "eval_data_path": "has no counterpart: text is read at once, from --data_dir or --dev_file.",
    "test_data_path": "has no counterpart: text is read at once, from --data_dir or "
    "--predict_file.",
    "input_meta_data_path": "has no counterpart: the length is --max_seq_length, and the classes "
    "are those of the data.",
    # Hugging Face
    "validation_file": "is called --dev_file here.",
}


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines this command's flags; their help texts are its manual."""
    define = FlagDefinitions(values)
    fine_tuning_flags.define(define)
    _define_data(define)
    define.refused(REFUSED)


def _define_data(define):
    text = define.text
    text(
        "task_name",
        None,
        "GLUE task: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE or WNLI; case and hyphens do "
        "not matter. For your own tables, give --train_file and so on instead.",
    )
    text("data_dir", None, "Folder of the task's files, such as glue_data/MRPC.")
    text("train_file", None, "Your own training table: TSV, CSV or JSON lines with named columns.")
    text("dev_file", None, "Your own evaluation table.")
    text(
        "predict_file",
        None,
        "Your own table to predict; with --task_name, instead of its test set.",
    )
    text("sentence1_column", "sentence", "Column of the first sentence in your own tables.")
    text("sentence2_column", None, "Column of the second sentence of pairs in your own tables.")
    text("label_column", "label", "Label column of your own tables.")
    text("label_type", "class", "Kind of labels in your own tables: class or number.")
    define.integer(
        "max_seq_length",
        128,
        "Maximum sequence length in tokens; longer examples are cut.",
        Bounds(minimum=1),
    )
    define.switch("do_eval", False, "Evaluate on the dev set, with the official metrics.")
    define.switch("do_predict", False, "Predict the test set, or --predict_file.")


def check(values: flags.FlagValues) -> None:
    """Refuses what cannot be meant, and warns of flags without effect, which become defaults.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    work = "give --do_train, --do_eval or --do_predict"
    fine_tuning_flags.check_required(values, work)
    apply(values, RULES)
    optimizer_flags.optimizer(values)  # checks it
    if values.task_name:
        if not values.data_dir:
            raise ValueError(
                "--data_dir is required with --task_name. Give the folder of its files."
            )
        return
    for name, flag in _TABLES.items():
        if values[flag].value and not values[name].value:
            raise ValueError(
                f"--{name} is required with --{flag}. Give it, or --task_name and --data_dir."
            )
    if values.label_type not in ("class", "number"):
        raise ValueError(f"--label_type must be class or number; got {values.label_type!r}.")
