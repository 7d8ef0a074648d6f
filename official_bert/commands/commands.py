"""Runs a command: parses its settings from flags, calls `main`, ends with an exit code; --help.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Report(Arguments):
        output: str | None = setting("HTML file to write.", None)

    def main(args: Report) -> int: ...

    commands.run(main, Report)  # at the end of the module, where it is run as a program

A field without a default is a required flag. A field named `arguments` takes the arguments that are
not flags.
"""

import dataclasses
import pathlib
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import app, flags

from official_bert.commands import refused
from official_bert.commands.arguments import Args, Arguments
from official_bert.system import messages
from official_bert.system.settings import Bounds

_OUT_OF_BOUNDS = re.compile(r"flag --(\w+)=.*?: (must be .*)", re.DOTALL)
HELP = {"--help": False, "-help": False, "-h": False, "--helpshort": True, "-helpshort": True}
"""Arguments that print help; True for the short one."""


def run(main: Callable[[Any], int | None], settings: type[Arguments]) -> None:
    """Parses the flags, calls `main`, and ends this process with an exit code.

    Args:
        main: The command; takes the settings and returns an exit code, `None` for 0. Its
            ValueError, OSError or `messages.Failed` is printed.
    """
    command = _name(main)

    def parsed(argv):
        asked = [HELP[word] for word in argv[1:] if word in HELP]
        if asked:
            manual = sys.modules[main.__module__].__doc__
            print(help_text(manual, flags_of(settings), short=asked[0]))
            sys.exit(0)
        try:
            return parse(settings, argv[1:], flags.FLAGS)
        except ValueError as error:
            sys.exit(messages.report(command, error))
        except SystemExit:  # after --helpfull, where absl's exit code is 1
            sys.exit(0)

    def called(args):
        return messages.exit_code(command, lambda: main(args))

    app.run(called, flags_parser=parsed)


def _name(main):
    if messages.program:
        return messages.program
    module = main.__module__.rpartition(".")[2]
    return pathlib.Path(sys.argv[0]).stem if module == "__main__" else module


def flags_of(settings: type[Arguments]) -> dict[str, "dataclasses.Field[Any]"]:
    """{name: field} of the settings that are flags."""
    return {f.name: f for f in dataclasses.fields(settings) if "words" in f.metadata}


def parse(
    settings: type[Args], arguments: Sequence[str], values: flags.FlagValues | None = None
) -> Args:
    """Parses a command line.

    Args:
        arguments: The command line without the command.
        values: Where the flags are defined; default: nowhere else.

    Raises:
        ValueError: a flag is unknown, refused, missing, or its value is wrong.
    """
    values = flags.FlagValues() if values is None else values
    fields = flags_of(settings)
    for field in fields.values():
        _define(field, values)
    _refuse(refused.flags(settings), values)
    try:
        _, *others = values([sys.argv[0], *arguments])
    except (flags.Error, ValueError) as error:  # a ValueError for --noflag=value
        raise ValueError(_OUT_OF_BOUNDS.sub(r"--\1 \2", str(error))) from None
    given = {name: values[name].value for name in fields if values[name].present}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    missing = [name for name, f in fields.items() if _is_required(f) and name not in given]
    if missing:
        raise ValueError(" ".join(f"--{name} is required." for name in missing))
    if "arguments" in {field.name for field in dataclasses.fields(settings)}:
        given["arguments"] = tuple(others)
    elif others:
        raise ValueError(
            f"The arguments must be flags; got {others[0]!r}. Begin flags with --, and put globs "
            "in quotes."
        )
    try:
        return settings(**given)
    except ValueError as error:  # begins with the setting's name
        raise ValueError(f"--{error}") from None


def as_flags(args: Arguments) -> list[str]:
    """The command line of these settings, with absl's own flags of this process."""
    fields = flags_of(type(args))
    lists = flags.CsvListSerializer(",")
    given = {name: getattr(args, name) for name in fields if name in args.given}
    given = {n: lists.serialize([*v]) if isinstance(v, tuple) else v for n, v in given.items()}
    others = [name for name in flags.FLAGS if name not in fields and flags.FLAGS[name].present]
    return [
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
        *(flags.FLAGS[name].serialize() for name in others),
    ]


def _is_required(field):
    return field.default is dataclasses.MISSING


# Flags


def _define(field, values):
    """Defines the flag of a field: its type, words, bounds and default."""
    default = None if _is_required(field) else field.default
    default = [*default] if isinstance(default, tuple) else default
    words = _words(field) + " Required." * _is_required(field)
    flag = {"name": field.name, "default": default, "help": words}
    flag |= {"flag_values": values, "module_name": sys.argv[0]}
    types = typing.get_args(field.type) or (field.type,)
    number = next((kind for kind in (int, float) if kind in types), None)
    if typing.get_origin(field.type) is tuple:
        flags.DEFINE_list(**flag)
    elif bool in types:
        flags.DEFINE(_Boolean(), boolean=True, **flag)
    elif number:
        parser = _Number(number, field.metadata["bounds"])
        flags.DEFINE(parser, serializer=flags.ArgumentSerializer(), **flag)
    else:
        flags.DEFINE_string(**flag)


class _Boolean(flags.BooleanParser):
    """Parses a boolean; its errors complete `--name …`."""

    def parse(self, argument):
        try:
            return super().parse(argument)
        except ValueError:
            raise ValueError(f"must be true or false; got {argument!r}.") from None


class _Number(flags.ArgumentParser):
    """Parses a number; its errors complete `--name …`. The settings check the bounds."""

    def __init__(self, kind: type, bounds: Bounds):
        self._kind = kind
        self._wanted = "a whole number" if kind is int else "a number"
        self.syntactic_help = f"{self._wanted} {bounds}".rstrip()

    def parse(self, argument):
        try:
            return self._kind(argument)
        except ValueError:
            raise ValueError(f"must be {self._wanted}; got {argument!r}.") from None

    def flag_type(self):
        return self._kind.__name__


def _refuse(reasons, values):
    """Defines flags that end the command with a reason; --help omits them."""
    for name, reason in reasons.items():
        flag = _Refused(
            parser=flags.ArgumentParser(),
            serializer=flags.ArgumentSerializer(),
            name=name,
            default=None,
            help_string=f"Refused: --{name} {reason}",
            boolean=True,  # so that --name, --noname and --name=value all parse
        )
        flags.DEFINE_flag(flag, values, "flags of other scripts")


class _Refused(flags.Flag):
    """A flag of another script: an error with any value."""

    def parse(self, argument):
        raise flags.IllegalFlagValueError(self.help.removeprefix("Refused: "))


# Help

# Topics of --help in their order, each with its flags, the most used first; a star marks those that
# --helpshort shows besides the required ones.
TOPICS = {
    "What to do": "do_train* do_eval* do_predict* evaluate",
    "Data": (
        "input_files* eval_files* input_file* corpus* task_name* data_dir* train_file* dev_file "
        "predict_file* predictions_file null_odds_file sentence1_column* sentence2_column "
        "label_column* label_type input_format corpus_format text_field json_field language "
        "log_file* input*"
    ),
    "Model": "init_checkpoint* bert_config_file* vocab_file* do_lower_case strip_accents",
    "Output": "model_dir* output_dir* output_file* output* output_format* report_file plot*",
    "Device to compile for": "topology* price_per_chip_hour host_network_gbits",
    "Records": (
        "max_seq_length* max_predictions_per_seq masked_lm_prob dynamic_masking* row_filling* "
        "dupe_factor do_whole_word_mask max_ngram_size short_seq_prob drop_duplicate_documents "
        "skip_bad_lines allow_unfit_text num_shards* build_part gzip_compress "
        "use_next_sentence_label"
    ),
    "Vocabulary": "vocab_size* min_frequency max_text_mb",
    "Schedule": (
        "recipe* minutes num_train_epochs* num_steps_per_epoch* train_batch_size* learning_rate* "
        "warmup_steps* warmup_proportion end_lr gradient_accumulation_steps num_seeds seed "
        "random_seed"
    ),
    "Questions and answers": (
        "version_2_with_negative* null_score_diff_threshold doc_stride max_query_length "
        "max_answer_length n_best_size"
    ),
    "Vectors": "layers* batch_size",
    "Optimizer": (
        "optimizer_type* optimizer_settings weight_decay global_clipnorm beta_1 beta_2 epsilon "
        "layer_decay freeze init_moments"
    ),
    "Checkpoints, evaluation and log": (
        "save_checkpoints_steps keep_checkpoint_max resume_from eval_steps early_stopping "
        "eval_batch_size predict_batch_size log_steps report_to"
    ),
    "Machine": (
        "engine distribution_strategy num_gpus dtype num_workers local_workers worker_hosts "
        "task_index tpu shard_optimizer steps_per_loop"
    ),
}
_RARE = "Rarely needed"  # flags without a topic
_ESSENTIAL = {name[:-1] for names in TOPICS.values() for name in names.split() if name[-1] == "*"}
_REQUIRED = "Required."
_INDENT = 28


def help_text(manual: str, flags: Mapping[str, dataclasses.Field[Any]], short: bool = False) -> str:
    """The help of a command, in lines as wide as the terminal, at most 100 columns.

    Args:
        manual: The module's docstring, printed before the flags.
        flags: {name: field} of the command's settings.
        short: Whether to show only required flags and those with a star.
    """
    required = [n for n, f in flags.items() if _is_required(f) or _REQUIRED in _words(f)]
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


def _words(field):
    """The description of a flag, with its choices."""
    choices = ", ".join(field.metadata["choices"])
    return field.metadata["words"] + (f" One of: {choices}." if choices else "")


def _entry(name, field):
    """The lines of a flag: name, description, default."""
    is_switch = bool in (field.type, *typing.get_args(field.type))
    head = f"  --{'[no]' if is_switch else ''}{name}"
    described = _words(field).replace(_REQUIRED, "").strip()
    if field.default not in (None, "", (), dataclasses.MISSING) and "efault" not in described:
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
