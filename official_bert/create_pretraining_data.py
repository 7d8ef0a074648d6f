r"""Makes pre-training records from text.

    lamb-bert create-data --input_file='wiki/*.txt.gz' \
        --output_file=records/wiki.tfrecord --vocab_file=vocab.txt --num_shards=16

Flags of the original script keep their meaning. To resume an interrupted build, run the same
command again.
"""

import dataclasses
import errno
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from official_bert.commands import commands
from official_bert.commands.arguments import apply, idle
from official_bert.commands.training_settings import Casing, Text
from official_bert.data import (
    build_shares,
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
from official_bert.system.places import as_path, is_remote
from official_bert.system.settings import documented, like, setting, values_of

WORKERS_PER_CORE = 4  # more would only take memory
OTHER_TIMES = (
    "the files of the text were changed or copied after the records were made. If their content "
    "changed, make the parts again, then finish."
)


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
    row_filling: str = like(Settings, "row_filling")
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
    build_part: str = setting(
        "Build on several machines that share the folder of --output_file: i/n makes the part i of "
        "n, from 0/n; finish makes the shards of all parts.",
        "",
    )
    one_random_stream: bool = setting(
        "Reproduce the records of the original script exactly: one process, with the whole corpus "
        "in memory.",
        False,
    )
    allow_dropped_text: bool = setting(
        "Continue even if more than half of the text is dropped.", False
    )
    allow_unfit_text: bool = setting(
        "Continue even if the text would ruin the training: nearly all documents are duplicates or "
        "single sentences, or the casing is not the vocabulary's.",
        False,
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
        ["short_seq_prob"],
        lambda args: args.row_filling == "full",
        "with --row_filling=full, whose rows are all filled.",
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
            `corpus.Corpus` for the formats.
        output_file: One path (with `num_shards` above 1 it gets `-00000-of-00010`), or the paths of
            all shards.
        vocab_file: The WordPiece vocabulary: a `vocab.txt` or `tokenizer.json`.
        settings: Lengths, masking, duplication. Default: the official ones. Its fields can be given
            as arguments of their own, too, which come before those in `settings`.
        report: A function that takes lines of progress; None for silence.
        others: Further settings of `CreateData`. With `one_random_stream`, one stream of random
            numbers serves the whole corpus, as in the original, instead of one per block of 2 MB;
            sentences longer than a sequence are then not cut.

    Raises:
        ValueError: an input cannot be used; the message names it and the remedy.
        OSError: the disk is full or not writable. The finished part is used by the next run.

    Examples:
        >>> settings = Settings(dupe_factor=1)
        >>> create_pretraining_data("a.txt", "records/a.tfrecord", "vocab.txt", settings)
    """
    names = {field.name for field in dataclasses.fields(Settings)}
    form = {name: others.pop(name) for name in names & others.keys()}
    others |= {"input_file": input_file, "output_file": output_file, "vocab_file": vocab_file}
    settings = dataclasses.replace(settings or Settings(), **form)
    return _create(CreateData(**others), settings, report)


def _create(args, settings, report):
    started, say = time.monotonic(), report or (lambda text: None)
    local_paths.require_paths(vocab_file=args.vocab_file)
    share = build_shares.parse(args.build_part)
    if args.build_part and args.one_random_stream:
        raise ValueError(
            "build_part must be left out with one_random_stream, which one process makes; got "
            f"{args.build_part!r}. Leave one of the two out."
        )
    plan, source, shards, vocabulary = _checked(args, settings, say)
    described = _describe(args, plan, source, vocabulary)
    finishes = args.build_part == build_shares.FINISH
    finished = _finished(shards, described, args.build_part)
    if finished and (finishes or args.skip_bad_lines or not finished["counts"].get("bad_lines")):
        record_builder.remove_parts(shards, finishes)
        said = [f"{manifest.path_for(shards)} is up to date: nothing to do."]
        if finished["inputs"] != described["inputs"]:
            said.append(OTHER_TIMES)
        say("\nwarning: ".join([*said, *manifest.warnings(finished)]))
        return finished["counts"] | {"seconds": 0.0}
    tokens = "\n".join(vocabulary)  # written into the folder of a run
    counts, warned = _build(args, plan, source, shards, share, described, tokens, report)
    summary = counts | {"seconds": time.monotonic() - started}
    if share:
        done = (
            f"part {share} is complete: {counts.get('sequences', 0):,} sequences. When all "
            f"{share.count} are, run this command with --build_part=finish."
        )
    else:
        done = coverage.describe(summary, settings.max_seq_length)
    say("\nwarning: ".join([done, *warned]))
    return summary


def _checked(args, settings, say):
    """The plan of a build, its text, the paths of its shards, and its vocabulary."""
    paths = corpus.find_files(args.input_file)
    vocabulary = tokenization.read_vocabulary(args.vocab_file)
    shards = coverage.shard_paths(args.output_file, args.num_shards)
    coverage.check_apart(shards, args.input_file, paths, args.vocab_file)
    manifest.require_free(shards)
    build_shares.require_folders(shards)
    unread = format_detection.check(
        paths, args.input_format, args.field(), args.language, args.skip_bad_lines
    )
    for reason in unread.values():
        say(f"warning: {reason}")
    plan = BuildPlan(
        settings=settings,
        vocab_file=(
            args.vocab_file if is_remote(args.vocab_file) else os.path.abspath(args.vocab_file)
        ),
        do_lower_case=tokenization.casing(args.vocab_file, args.do_lower_case, args.strip_accents),
        language=(args.language if "language" not in unread else None) or "en",
        random_seed=args.random_seed,
        dynamic=args.dynamic_masking,
        use_v2_feature_names=args.use_v2_feature_names,
        gzip=args.gzip_compress,
        one_stream=args.one_random_stream,
    )
    source = corpus.Corpus(
        paths,
        args.input_format,
        (args.field() if "text_field" not in unread else None) or "text",
        args.drop_duplicate_documents,
        whole=args.one_random_stream,
        skip_bad_lines=args.skip_bad_lines,
    )
    return plan, source, shards, vocabulary


def _build(args, plan, source, shards, share, described, tokens, report):
    """Builds the records, or a share; returns the counts, and warnings about the text."""
    finishes = args.build_part == build_shares.FINISH
    shares = share.count if share else 1
    cores = len(os.sched_getaffinity(0))
    count = 1 if plan.one_stream else min(args.num_workers or cores, WORKERS_PER_CORE * cores)
    blocks = sum(entry["bytes"] for entry in described["inputs"]) // corpus.BLOCK_BYTES
    with record_builder.Workers(plan, count, 0 if finishes else blocks // shares) as workers:
        if finishes:
            parts, text = build_shares.collect(shards, described)
            described["inputs"] = text["described"]["inputs"]
        else:
            text = {}
            coverage.check_memory(source, plan)
            coverage.check_sample(source, plan, len(shards))
        if not is_remote(shards[0]):
            coverage.make_folder("output_file", shards[0])
            coverage.check_disk(source, shards, plan)
        progress = record_builder.Progress(source, report, shares)

        def read() -> dict:
            return text or {"counts": source.counts(), "warnings": source.warnings()}

        def check(counts: dict) -> None:
            if not args.allow_unfit_text:
                coverage.check_fit(counts | read()["counts"], plan)
            coverage.check(counts, plan, args.allow_dropped_text)

        builder = record_builder.Builder(
            plan, source.documents, shards, workers, progress, check, share
        )
        if share:
            return builder.run_share(described, read), source.warnings()
        made, counts = builder.finish(parts) if finishes else builder.run()
    counts |= read()["counts"]
    warned = coverage.warnings(counts, plan)
    manifest.write(
        shards,
        described
        | {"counts": counts, "warnings": warned, "shards": made, "tokens": tokens}
        | {"text_digest": text["text"] if finishes else builder.text_digest},
    )
    record_builder.remove_parts(shards, finishes)
    return counts, read()["warnings"] + coverage.dropped(counts, plan) + warned


def _describe(args, plan: BuildPlan, source: corpus.Corpus, vocabulary: dict[str, int]) -> dict:
    """The manifest's entries that decide the records."""
    continues = np.array([token.startswith("##") for token in vocabulary])
    special = {token: vocabulary[token] for token in tokenization.SPECIAL_TOKENS}
    settings = dataclasses.asdict(plan.settings)
    if settings["row_filling"] == "documents":
        del settings["row_filling"]  # as before there was another: such records are up to date
    return {
        "format": manifest.FORMAT,
        "masking": "dynamic" if plan.dynamic else "static",
        "settings": settings
        | {
            "do_lower_case": plan.do_lower_case,
            "language": plan.language,
            "random_seed": plan.random_seed,
            "use_v2_feature_names": plan.use_v2_feature_names,
            "gzip_compress": plan.gzip,
            "one_random_stream": plan.one_stream,
            "input_format": args.input_format,
            "json_field": source.text_field,
            "drop_duplicate_documents": args.drop_duplicate_documents,
        },
        "vocabulary": {
            "size": len(vocabulary),
            "sha256": tokenization.digest(vocabulary),
            "special_tokens": special,
            "continues_a_word": manifest.pack_flags(continues),
        },
        "inputs": [
            {"file": path, "bytes": status.st_size, "modified_ns": status.st_mtime_ns}
            for path, status in ((path, as_path(path).stat()) for path in source.paths)
        ],
        "records_per_block": RECORDS_PER_BLOCK,
    }


def _finished(shards: list[str], described: dict, build_part: str) -> dict | None:
    """The manifest of an earlier run with the same result, if its shards are intact.

    Where parts of several machines are put together, their copies of the text may have other times.
    """
    made = manifest.read(manifest.path_for(shards))
    if not made or (build_part and build_shares.are_begun_anew(shards, made)):
        return None
    theirs = {key: made.get(key) for key in described}
    if build_part == build_shares.FINISH:
        is_same = build_shares.comparable(theirs) == build_shares.comparable(described)
    else:
        is_same = theirs == described
    names = [entry["file"] for entry in made["shards"]]
    if not is_same or names != list(map(os.path.basename, shards)):
        return None
    return made if all(map(manifest.is_intact, shards, made["shards"])) else None


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
