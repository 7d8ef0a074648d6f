r"""Makes pre-training records from text.

    lamb-bert create-data --input_file='wiki/*.txt.gz' \
        --output_file=records/wiki.tfrecord --vocab_file=vocab.txt --num_shards=16

Flags of the original script keep their meaning. A build that was interrupted resumes: the same
command makes only what is missing.
"""

import dataclasses
import errno
import functools
import inspect
import os
import sys
import time
from collections.abc import Callable

import numpy as np
from absl import flags

from official_bert.commands import commands
from official_bert.commands.flag_definitions import FlagDefinitions, apply, idle
from official_bert.data import (
    corpus,
    coverage,
    format_detection,
    manifest,
    record_builder,
    tokenization,
)
from official_bert.data.build_worker import BuildPlan
from official_bert.data.instances import Settings
from official_bert.data.records import RECORDS_PER_BLOCK
from official_bert.system import local_paths, messages
from official_bert.system.places import is_remote

_SETTINGS = [f.name for f in dataclasses.fields(Settings) if f.name != "max_ngram_size"]
WORKERS_PER_CORE = 4  # more would only take memory
RULES = (
    idle(
        ["dupe_factor"],
        lambda v: v.dynamic_masking,
        "with --dynamic_masking: each sequence is stored once, and masked again in every epoch.",
    ),
    idle(
        ["use_v2_feature_names"],
        lambda v: v.dynamic_masking,
        "with --dynamic_masking, whose records have other features.",
    ),
    idle(
        ["num_workers"],
        lambda v: v.one_random_stream,
        "with --one_random_stream, which uses one process.",
    ),
)


def create_pretraining_data(
    input_file: str | list[str],
    output_file: str | list[str],
    vocab_file: str,
    settings: Settings | None = None,
    *,
    do_lower_case: bool | None = None,
    random_seed: int = 12345,
    dynamic_masking: bool = False,
    num_shards: int = 0,
    num_workers: int = 0,
    input_format: str = "auto",
    json_field: str | None = None,
    language: str | None = None,
    drop_duplicate_documents: bool = False,
    gzip_compress: bool = False,
    use_v2_feature_names: bool = False,
    one_random_stream: bool = False,
    allow_dropped_text: bool = False,
    skip_bad_lines: bool = False,
    report: Callable[[str], object] | None = None,
) -> dict:
    """Turns text into shards of records and a manifest; returns the summary, a dict of counts.

    Args:
        input_file: Files, globs or folders; a list, or one string with commas. See
            `corpus.documents` for the forms.
        output_file: One path (with `num_shards` above 1 it gets `-00000-of-00010`), or the paths of
            all shards.
        vocab_file: The WordPiece vocabulary: a `vocab.txt` or `tokenizer.json`.
        do_lower_case: Whether it is uncased; default: as its `tokenizer.json` or
            `tokenizer_config.json` says, or else whether it has no upper-case letter.
        settings: Lengths, masking, duplication; `instances.Settings()` holds the official defaults.
        dynamic_masking: Store every sequence once, unmasked; `input_pipeline.Batches` masks it
            afresh at every epoch.
        num_shards: At most 99,999; 0 means as many as `output_file` names.
        num_workers: Number of processes, at most four per core and no more than there are blocks of
            text; 0 means one per core. The records do not depend on it.
        json_field: Of the text in JSON lines; None means `text`.
        language: Of paragraphs, for splitting them into sentences (ISO 639-1); None means `en`.
        drop_duplicate_documents: Leave out a document whose text came before.
        one_random_stream: Draw from one stream of random numbers over the whole corpus, as the
            original does, instead of one per block of 2 MB: exactly the records of the original, on
            one core and with the corpus in memory. Sentences longer than a sequence are then not
            cut.
        allow_dropped_text: Continue even if more than half of the text would be in no record.
        skip_bad_lines: Leave out lines that are not UTF-8 or not JSON objects with text.
        report: A function that takes lines of progress; None for silence.

    Raises:
        ValueError: for any input that cannot be used; the message says which and how to mend it.
        OSError: the disk is full or not writable. What is finished stays and is used by the next
            run.

    Examples:
        >>> settings = Settings(dupe_factor=1)
        >>> create_pretraining_data("a.txt", "records/a.tfrecord", "vocab.txt", settings)
    """
    started = time.monotonic()
    settings = settings or Settings()
    local_paths.require_local(output_file=output_file)
    local_paths.require_paths(vocab_file=vocab_file)
    paths = corpus.find_files(input_file)
    vocabulary = tokenization.read_vocabulary(vocab_file)
    shards = coverage.shard_paths(output_file, num_shards)
    coverage.check_apart(shards, input_file, paths, vocab_file)
    manifest.require_free(shards)
    unread = format_detection.check(paths, input_format, json_field, language)
    if report:
        for reason in unread.values():
            report(f"warning: {reason}")
    json_field = "text" if json_field is None or "json_field" in unread else json_field
    language = "en" if language is None or "language" in unread else language
    workers = _workers(num_workers, one_random_stream)
    plan = BuildPlan(
        settings=settings,
        vocab_file=vocab_file if is_remote(vocab_file) else os.path.abspath(vocab_file),
        do_lower_case=tokenization.casing(vocab_file, do_lower_case),
        language=language,
        random_seed=random_seed,
        dynamic=dynamic_masking,
        use_v2_feature_names=use_v2_feature_names,
        gzip=gzip_compress,
        one_stream=one_random_stream,
    )
    described = _describe(
        plan, vocabulary, paths, input_format, json_field, drop_duplicate_documents
    )
    finished = _finished(shards, described)
    if finished and (skip_bad_lines or not finished["counts"].get("bad_lines")):
        record_builder.remove_parts(shards)
        if report:
            report(f"{manifest.path_for(shards)} is up to date: nothing to do.")
        return finished["counts"] | {"seconds": 0.0}
    source = corpus.Corpus(
        paths,
        input_format,
        json_field,
        drop_duplicate_documents,
        whole=one_random_stream,
        skip_bad_lines=skip_bad_lines,
    )
    coverage.check_memory(paths, plan)
    coverage.check_sample(source, plan, len(shards))
    coverage.make_folder(os.path.dirname(os.path.abspath(shards[0])))
    coverage.check_disk(paths, shards, plan)
    progress = record_builder.Progress(source, report)
    check = functools.partial(coverage.check, plan=plan, allowed=allow_dropped_text)
    builder = record_builder.Builder(plan, source.documents, shards, workers, progress, check)
    made, counts = builder.run()
    counts |= {
        "documents": source.count,
        "duplicate_documents": source.duplicates,
        "text_bytes": source.text_bytes,
        "dropped_bytes": source.dropped_bytes,
        "bad_lines": source.bad_lines.count,
    }
    tokens = "\n".join(vocabulary)  # a run takes them to its model
    manifest.write(shards, described | {"counts": counts, "shards": made, "tokens": tokens})
    record_builder.remove_parts(shards)
    summary = counts | {"seconds": time.monotonic() - started}
    if report:
        said = record_builder.describe(summary, settings.max_seq_length)
        warned = source.bad_lines.warnings() + coverage.warnings(summary, plan)
        report("\nwarning: ".join([said, *warned]))
    return summary


def _describe(plan: BuildPlan, vocabulary: dict[str, int], paths: list[str], *reading) -> dict:
    """What the manifest says before anything is made; equal descriptions give equal records."""
    continues = np.array([token.startswith("##") for token in vocabulary])
    special = {token: vocabulary[token] for token in tokenization.SPECIAL_TOKENS}
    return {
        "format": manifest.FORMAT,
        "masking": "dynamic" if plan.dynamic else "static",
        "settings": dataclasses.asdict(plan.settings)
        | {
            "do_lower_case": plan.do_lower_case,
            "language": plan.language,
            "random_seed": plan.random_seed,
            "use_v2_feature_names": plan.use_v2_feature_names,
            "gzip_compress": plan.gzip,
            "one_random_stream": plan.one_stream,
        }
        | dict(
            zip(("input_format", "json_field", "drop_duplicate_documents"), reading, strict=True)
        ),
        "vocabulary": {
            "size": len(vocabulary),
            "sha256": tokenization.digest(vocabulary),
            "special_tokens": special,
            "continues_a_word": manifest.pack_flags(continues),
        },
        "inputs": [
            {"file": path, "bytes": os.path.getsize(path), "modified_ns": os.stat(path).st_mtime_ns}
            for path in paths
        ],
        "records_per_block": RECORDS_PER_BLOCK,
    }


def _finished(shards: list[str], described: dict) -> dict | None:
    """The manifest of an earlier run, if it made just this and its shards are still there."""
    path = manifest.path_for(shards)
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        try:
            made = manifest.parse(path, file.read())
        except ValueError:
            return None
    whole = [os.path.basename(s) for s in shards] == [
        entry["file"] for entry in made["shards"]
    ] and all(
        os.path.exists(shard)
        and os.path.getsize(shard) == entry["bytes"]
        and entry["crc32"] == manifest.checksum(shard)
        for shard, entry in zip(shards, made["shards"], strict=True)
    )
    return (
        made if whole and all(made.get(key) == value for key, value in described.items()) else None
    )


def _workers(requested: int, one_stream: bool) -> int:
    if requested < 0:
        raise ValueError(f"num_workers must be at least 0 (0: one per core); got {requested}.")
    cores = len(os.sched_getaffinity(0))
    return 1 if one_stream else min(requested or cores, WORKERS_PER_CORE * cores)


def _define_flags() -> None:
    define = FlagDefinitions(flags.FLAGS)
    for name in _SETTINGS:
        define.field(Settings, name)
    define.field(Settings, "max_ngram_size", default=None, more="Default: 1.")
    integer = define.integer
    flags.DEFINE_string(
        "input_file",
        None,
        "Input text: comma-separated files, globs or folders. Files may be compressed. Required.",
    )
    flags.DEFINE_string(
        "output_file",
        None,
        "Output TFRecord file; with --num_shards, the name that the shards share, or their "
        "comma-separated names. Required.",
    )
    flags.DEFINE_string(
        "vocab_file", None, "Vocabulary: the vocab.txt or tokenizer.json of the model. Required."
    )
    flags.DEFINE_bool(
        "do_lower_case",
        None,
        "Whether the vocabulary is uncased. Default: as in tokenizer.json or "
        "tokenizer_config.json; else whether it has no upper-case letter.",
    )
    flags.DEFINE_bool("gzip_compress", False, "Compress the records with GZIP.")
    flags.DEFINE_bool(
        "use_v2_feature_names",
        False,
        "Name the features input_word_ids and input_type_ids, as tf-models does, instead of "
        "input_ids and segment_ids.",
    )
    integer("random_seed", 12345, "Random seed of masks and sentence pairs.")
    # Beyond the original's.
    flags.DEFINE_bool(
        "dynamic_masking",
        False,
        "Store each sequence once, without masks; training draws new masks in every epoch.",
    )
    integer("num_shards", 0, "Number of output files; 0: one per name in --output_file.")
    integer(
        "num_workers",
        0,
        "Number of processes, at most 4 per core; 0: one per core. The records are the same for "
        "any number.",
    )
    flags.DEFINE_enum("input_format", "auto", corpus.FORMS, "Format of the text.")
    flags.DEFINE_string("json_field", None, "Text field of JSON lines. Default: text.")
    flags.DEFINE_string(
        "language",
        None,
        "Language of the text (ISO 639-1 code), for splitting paragraphs into sentences. Default: "
        "en.",
    )
    flags.DEFINE_bool("drop_duplicate_documents", False, "Leave out repeated documents.")
    flags.DEFINE_bool(
        "one_random_stream",
        False,
        "Reproduce the records of the original script exactly: one process, with the whole corpus "
        "in memory.",
    )
    flags.DEFINE_bool(
        "allow_dropped_text",
        False,
        "Continue even if more than half of the text is dropped.",
    )
    flags.DEFINE_bool("skip_bad_lines", False, "Leave out unreadable lines, and count them.")
    flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"])


def main() -> None:
    apply(flags.FLAGS, RULES)
    values = {name: flags.FLAGS[name].value for name in _SETTINGS}
    others = inspect.signature(create_pretraining_data).parameters.keys() - {"settings", "report"}
    try:
        longest = flags.FLAGS.max_ngram_size
        settings = Settings(**values, max_ngram_size=1 if longest is None else longest)
        create_pretraining_data(
            **{name: flags.FLAGS[name].value for name in others},
            settings=settings,
            report=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise messages.Failed(
            f"{error}. The finished part is kept: free some space, then run the same command again."
        ) from error
    except KeyboardInterrupt:
        raise messages.Failed("interrupted; run the same command again to resume.", 130) from None


if __name__ == "__main__":
    _define_flags()
    commands.run(main)
