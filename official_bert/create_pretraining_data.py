r"""Makes pre-training records from text.

    lamb-bert create-data --input_file='wiki/*.txt.gz' \
        --output_file=records/wiki.tfrecord --vocab_file=vocab.txt --num_shards=16

Flags of the original script keep their meaning. A build that was interrupted resumes: the same
command makes only what is missing.
"""

import dataclasses
import errno
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from official_bert.commands import commands
from official_bert.commands.arguments import apply, idle
from official_bert.commands.text_settings import Text
from official_bert.commands.training_settings import Casing
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
from official_bert.system.settings import documented, like, setting, values_of

WORKERS_PER_CORE = 4  # more would only take memory


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class CreateData(Text, Casing):
    """The settings of the command; the names and defaults of the first are the official ones."""

    output_file: str | list[str] = setting(
        "Output TFRecord file; with --num_shards, the name that the shards share, or their "
        "comma-separated names."
    )
    vocab_file: str = setting("Vocabulary: the vocab.txt or tokenizer.json of the model.")
    max_seq_length: int = like(Settings, "max_seq_length")
    max_predictions_per_seq: int = like(Settings, "max_predictions_per_seq")
    masked_lm_prob: float = like(Settings, "masked_lm_prob")
    short_seq_prob: float = like(Settings, "short_seq_prob")
    dupe_factor: int = like(Settings, "dupe_factor")
    do_whole_word_mask: bool = like(Settings, "do_whole_word_mask")
    max_ngram_size: int = like(Settings, "max_ngram_size")
    gzip_compress: bool = setting("Compress the records with GZIP.", False)
    use_v2_feature_names: bool = setting(
        "Name the features input_word_ids and input_type_ids, as tf-models does, instead of "
        "input_ids and segment_ids.",
        False,
    )
    random_seed: int = setting("Random seed of masks and sentence pairs.", 12345)
    # Beyond the original's.
    dynamic_masking: bool = setting(
        "Store each sequence once, without masks; training draws new masks in every epoch.", False
    )
    num_shards: int = setting("Number of output files; 0: one per name in --output_file.", 0)
    num_workers: int = setting(
        "Number of processes, at most 4 per core; 0: one per core. The records are the same for "
        "any number.",
        0,
        minimum=0,
        hint="0 is one per core.",
    )
    language: str | None = setting(
        "Language of the text (ISO 639-1 code), for splitting paragraphs into sentences. Default: "
        "en.",
        None,
    )
    drop_duplicate_documents: bool = setting("Leave out repeated documents.", False)
    one_random_stream: bool = setting(
        "Reproduce the records of the original script exactly: one process, with the whole corpus "
        "in memory.",
        False,
    )
    allow_dropped_text: bool = setting(
        "Continue even if more than half of the text is dropped.", False
    )


RULES = (
    idle(
        ["dupe_factor"],
        lambda args: args.dynamic_masking,
        "with --dynamic_masking: each sequence is stored once, and masked again in every epoch.",
    ),
    idle(
        ["use_v2_feature_names"],
        lambda args: args.dynamic_masking,
        "with --dynamic_masking, whose records have other features.",
    ),
    idle(
        ["num_workers"],
        lambda args: args.one_random_stream,
        "with --one_random_stream, which uses one process.",
    ),
)


def create_pretraining_data(
    input_file: str | list[str],
    output_file: str | list[str],
    vocab_file: str,
    settings: Settings | None = None,
    *,
    report: Callable[[str], object] | None = None,
    **others: Any,
) -> dict:
    """Turns text into shards of records and a manifest; returns the summary, a dict of counts.

    Args:
        input_file: Files, globs or folders; a list, or one string with commas. See
            `corpus.documents` for the forms.
        output_file: One path (with `num_shards` above 1 it gets `-00000-of-00010`), or the paths of
            all shards.
        vocab_file: The WordPiece vocabulary: a `vocab.txt` or `tokenizer.json`.
        settings: Lengths, masking, duplication; `instances.Settings()` holds the official defaults.
        report: A function that takes lines of progress; None for silence.
        others: Further settings of `CreateData`. With `one_random_stream`, there is one stream of
            random numbers over the whole corpus, as in the original, instead of one per block of
            2 MB; sentences longer than a sequence are then not cut.

    Raises:
        ValueError: for any input that cannot be used; the message names it and the remedy.
        OSError: the disk is full or not writable. What is finished stays and is used by the next
            run.

    Examples:
        >>> settings = Settings(dupe_factor=1)
        >>> create_pretraining_data("a.txt", "records/a.tfrecord", "vocab.txt", settings)
    """
    others |= {"input_file": input_file, "output_file": output_file, "vocab_file": vocab_file}
    return _create(CreateData(**others), settings or Settings(), report)


def _create(args, settings, report):
    started = time.monotonic()
    local_paths.require_local(output_file=args.output_file)
    local_paths.require_paths(vocab_file=args.vocab_file)
    paths = corpus.find_files(args.input_file)
    vocabulary = tokenization.read_vocabulary(args.vocab_file)
    shards = coverage.shard_paths(args.output_file, args.num_shards)
    coverage.check_apart(shards, args.input_file, paths, args.vocab_file)
    manifest.require_free(shards)
    unread = format_detection.check(paths, args.input_format, args.json_field, args.language)
    if report:
        for reason in unread.values():
            report(f"warning: {reason}")
    json_field = (args.json_field if "json_field" not in unread else None) or "text"
    language = (args.language if "language" not in unread else None) or "en"
    plan = BuildPlan(
        settings=settings,
        vocab_file=(
            args.vocab_file if is_remote(args.vocab_file) else os.path.abspath(args.vocab_file)
        ),
        do_lower_case=tokenization.casing(args.vocab_file, args.do_lower_case),
        language=language,
        random_seed=args.random_seed,
        dynamic=args.dynamic_masking,
        use_v2_feature_names=args.use_v2_feature_names,
        gzip=args.gzip_compress,
        one_stream=args.one_random_stream,
    )
    described = _describe(
        plan, vocabulary, paths, args.input_format, json_field, args.drop_duplicate_documents
    )
    finished = _finished(shards, described)
    if finished and (args.skip_bad_lines or not finished["counts"].get("bad_lines")):
        record_builder.remove_parts(shards)
        if report:
            report(f"{manifest.path_for(shards)} is up to date: nothing to do.")
        return finished["counts"] | {"seconds": 0.0}
    source = corpus.Corpus(
        paths,
        args.input_format,
        json_field,
        args.drop_duplicate_documents,
        whole=args.one_random_stream,
        skip_bad_lines=args.skip_bad_lines,
    )
    coverage.check_memory(paths, plan)
    coverage.check_sample(source, plan, len(shards))
    coverage.make_folder(os.path.dirname(os.path.abspath(shards[0])))
    coverage.check_disk(paths, shards, plan)
    progress = record_builder.Progress(source, report)
    check = functools.partial(coverage.check, plan=plan, allowed=args.allow_dropped_text)
    workers = _workers(args.num_workers, args.one_random_stream)
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
    """The entries of the manifest before anything is made; equal ones give equal records."""
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
    cores = len(os.sched_getaffinity(0))
    return 1 if one_stream else min(requested or cores, WORKERS_PER_CORE * cores)


def main(args: CreateData) -> None:
    args = apply(args, RULES)
    try:
        settings = Settings(**values_of(Settings, args))
        _create(args, settings, lambda text: print(text, file=sys.stderr, flush=True))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise messages.Failed(
            f"{error}. The finished part is kept: free some space, then run the same command again."
        ) from error
    except KeyboardInterrupt:
        raise messages.Failed("interrupted; run the same command again to resume.", 130) from None


if __name__ == "__main__":
    commands.run(main, CreateData)
