"""Makes pre-training records from text: the command, and the function behind it.

    python -m official_bert.create_pretraining_data --input_file='wiki/*.txt.gz'
        --output_file=records/wiki.tfrecord \\ --vocab_file=vocab.txt --num_shards=16

The flags of the original script mean what they mean there. Killed and started again it makes only
what is missing.
"""

import contextlib
import dataclasses
import errno
import glob
import inspect
import os
import shutil
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

from official_bert import build_progress, corpus, manifest, tokenization
from official_bert.build_worker import Recipe
from official_bert.instances import Settings
from official_bert.record_builder import Builder
from official_bert.records import RECORDS_PER_BLOCK

MOSTLY_UNKNOWN = 0.3


def create_pretraining_data(
    input_file: str | list[str],
    output_file: str | list[str],
    vocab_file: str,
    settings: Settings | None = None,
    *,
    do_lower_case: bool = True,
    random_seed: int = 12345,
    dynamic_masking: bool = False,
    num_shards: int = 0,
    num_workers: int = 0,
    input_format: str = "auto",
    json_field: str = "text",
    language: str = "en",
    drop_duplicate_documents: bool = False,
    gzip_compress: bool = False,
    use_v2_feature_names: bool = False,
    one_random_stream: bool = False,
    report=None,
) -> dict:
    """Turns text into shards of records and a manifest; returns the summary, a dict of counts.

    Args:
        input_file: files, globs or folders; a list, or one string with commas. See
            `corpus.documents` for the forms.
        output_file: one path (with `num_shards` above 1 it gets `-00000-of-00010`), or the paths of
            all shards.
        vocab_file: the WordPiece vocabulary.
        settings: lengths, masking, duplication; `instances.Settings()` holds the official defaults.
        dynamic_masking: store every sequence once, unmasked; `input_pipeline.Batches` masks it
            afresh at every epoch.
        num_shards: 0 means as many as `output_file` names.
        num_workers: 0 means one a core. The records do not depend on it.
        language: of the sentences, where paragraphs have to be split (ISO 639-1).
        drop_duplicate_documents: leave out a document whose text came before.
        one_random_stream: draw from one stream of random numbers over the whole corpus, as the
            original does, instead of one a block of 2 MB: the very records of the original, on one
            core and with the corpus in memory.
        report: a function that takes lines of progress; None for silence.

    Raises:
        ValueError: for any input that cannot be used; the message says which and how to mend it.
        OSError: the disk is full or not writable. What is finished stays and is used by the next
            run.

    Example:
        >>> settings = Settings(dupe_factor=1)
        >>> create_pretraining_data("a.txt", "records/a.tfrecord", "vocab.txt", settings)
    """
    started = time.monotonic()
    settings = settings or Settings()
    vocabulary = tokenization.read_vocabulary(vocab_file)
    paths = corpus.find_files(input_file)
    shards = _shard_paths(output_file, num_shards)
    recipe = Recipe(
        settings=settings,
        vocab_file=os.path.abspath(vocab_file),
        do_lower_case=do_lower_case,
        language=language,
        random_seed=random_seed,
        dynamic=dynamic_masking,
        use_v2_feature_names=use_v2_feature_names,
        gzip=gzip_compress,
        one_stream=one_random_stream,
    )
    described = _describe(
        recipe, vocabulary, paths, input_format, json_field, drop_duplicate_documents
    )
    finished = _finished(shards, described)
    if finished:
        if report:
            report(f"{manifest.path_for(shards)} is up to date: nothing to do.")
        return finished["counts"] | {"seconds": 0.0}
    source = corpus.Corpus(paths, input_format, json_field, drop_duplicate_documents)
    _check_vocabulary_fits(source, recipe)
    _make_folder(os.path.dirname(os.path.abspath(shards[0])))
    _check_disk(paths, shards, recipe)
    _remove(manifest.path_for(shards))  # it must not vouch for shards of another make
    progress = build_progress.Progress(source, report)
    builder = Builder(
        recipe, source.documents, shards, _workers(num_workers, one_random_stream), progress
    )
    made, counts = builder.run()
    counts |= {
        "documents": source.count,
        "duplicate_documents": source.duplicates,
        "text_bytes": source.text_bytes,
    }
    manifest.write(shards, described | {"counts": counts, "shards": made})
    builder.finish()
    summary = counts | {"seconds": time.monotonic() - started}
    if report:
        report(build_progress.describe(summary, settings.max_seq_length))
    return summary


def _shard_paths(output_file: str | list[str], num_shards: int) -> list[str]:
    names = output_file.split(",") if isinstance(output_file, str) else list(map(str, output_file))
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise ValueError("output_file: names no file.")
    if num_shards < 0 or (len(names) > 1 and num_shards not in (0, len(names))):
        raise ValueError(f"num_shards: got {num_shards}, but output_file names {len(names)} files.")
    if len(names) == 1 and num_shards > 1:
        names = [f"{names[0]}-{n:05d}-of-{num_shards:05d}" for n in range(num_shards)]
    if len(set(map(os.path.dirname, names))) > 1 or len(set(names)) < len(names):
        raise ValueError(
            f"output_file: expected different files in one folder, got {', '.join(names)}."
        )
    return names


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"output_file: cannot write into {folder} ({error}).") from None


def _describe(recipe: Recipe, vocabulary: dict[str, int], paths: list[str], *reading) -> dict:
    """What the manifest says before anything is made; equal descriptions give equal records."""
    continues = np.array([token.startswith("##") for token in vocabulary])
    special = {token: vocabulary[token] for token in tokenization.SPECIAL_TOKENS}
    return {
        "format": manifest.FORMAT,
        "masking": "dynamic" if recipe.dynamic else "static",
        "settings": dataclasses.asdict(recipe.settings)
        | {
            "do_lower_case": recipe.do_lower_case,
            "language": recipe.language,
            "random_seed": recipe.random_seed,
            "use_v2_feature_names": recipe.use_v2_feature_names,
            "gzip_compress": recipe.gzip,
            "one_random_stream": recipe.one_stream,
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
        os.path.exists(shard) and os.path.getsize(shard) == entry["bytes"]
        for shard, entry in zip(shards, made["shards"], strict=True)
    )
    return (
        made if whole and all(made.get(key) == value for key, value in described.items()) else None
    )


def _check_vocabulary_fits(
    source: corpus.Corpus, recipe: Recipe, sample_bytes: int = 200_000
) -> None:
    """Looks at the first documents: an hour of work on the wrong vocabulary is worse than none."""
    sample, size = [], 0
    for document in corpus.documents(source.paths, source.form, source.json_field):
        sample += corpus.sentences(document, recipe.language)
        size += sum(map(len, document.lines))
        if size > sample_bytes:
            break
    if not sample:
        raise ValueError(
            f"input_file: no text in {', '.join(source.paths[:3])}{' …' * (len(source.paths) > 3)}."
        )
    tokenizer = tokenization.load(recipe.vocab_file, recipe.do_lower_case)
    unknown = tokenizer.token_to_id(tokenization.UNK)
    ids = [
        i
        for encoding in tokenizer.encode_batch_fast(sample, add_special_tokens=False)
        for i in encoding.ids
    ]
    share = ids.count(unknown) / max(len(ids), 1)
    if share > MOSTLY_UNKNOWN:
        raise ValueError(
            f"vocab_file: {share:.0%} of the first {len(ids):,} tokens are {tokenization.UNK}; "
            f"{recipe.vocab_file} does not fit this text (another language, or another casing than "
            f"--do_lower_case={recipe.do_lower_case}?)."
        )


def _check_disk(paths: list[str], shards: list[str], recipe: Recipe) -> None:
    """Refuses a disk that has no room for even a low estimate of the records."""
    unpacked = {".gz": 2.5, ".bz2": 3.0, ".xz": 3.5, ".zst": 2.5}
    text = sum(
        os.path.getsize(path) * unpacked.get(os.path.splitext(path)[1], 1.0) for path in paths
    )
    # Bytes of records a byte of English text: 1.2 to 1.9 (length 512, 128), with GZIP a third;
    # 0.6 stored once. Less is assumed here.
    each = 0.4 if recipe.dynamic else recipe.settings.dupe_factor * (0.3 if recipe.gzip else 1.0)
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(shards[0]))).free
    # What an interrupted run left is used again, what another run made is replaced.
    there = [*shards, *glob.glob(f"{glob.escape(manifest.stem(shards[0]))}.building/*")]
    free += sum(os.path.getsize(path) for path in there if os.path.exists(path))
    if free < text * each:
        raise ValueError(
            f"output_file: about {text * each / 1e9:,.1f} GB of records will not fit on the disk "
            f"of {shards[0]}, which has room for {free / 1e9:,.1f} GB."
        )


def _workers(asked: int, one_stream: bool) -> int:
    if asked < 0:
        raise ValueError(f"num_workers: got {asked}, expected 0 (one a core) or more.")
    return 1 if one_stream else asked or len(os.sched_getaffinity(0))


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def _define_flags() -> None:
    flags.DEFINE_string(
        "input_file", None, "Input text: files, globs or folders, separated by commas."
    )
    flags.DEFINE_string(
        "output_file", None, "Output TFRecord file, or several separated by commas."
    )
    flags.DEFINE_string("vocab_file", None, "The vocabulary that the model will be trained on.")
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text: True for uncased vocabularies.")
    flags.DEFINE_bool("do_whole_word_mask", False, "Mask whole words, all their pieces together.")
    flags.DEFINE_integer(
        "max_ngram_size", None, "Mask runs of up to so many whole words (needs do_whole_word_mask)."
    )
    flags.DEFINE_bool("gzip_compress", False, "Compress the records with GZIP.")
    flags.DEFINE_bool(
        "use_v2_feature_names", False, "Name the features input_word_ids and input_type_ids."
    )
    flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences.")
    flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked tokens a sequence, at most.")
    flags.DEFINE_integer("random_seed", 12345, "Seed of every random draw.")
    flags.DEFINE_integer("dupe_factor", 10, "How often to go over the text, with other masks.")
    flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens that is masked.")
    flags.DEFINE_float(
        "short_seq_prob", 0.1, "Share of the sequences made shorter than the length."
    )
    # Beyond the original's.
    flags.DEFINE_bool(
        "dynamic_masking", False, "Store sequences once and mask them while training."
    )
    flags.DEFINE_integer(
        "num_shards", 0, "Number of output files; 0: as many as output_file names."
    )
    flags.DEFINE_integer(
        "num_workers", 0, "Number of processes; 0: one a core. The output does not depend on it."
    )
    flags.DEFINE_enum("input_format", "auto", corpus.FORMS, "How the text is laid out.")
    flags.DEFINE_string("json_field", "text", "The field that holds the text, in JSON lines.")
    flags.DEFINE_string(
        "language",
        "en",
        "Language of the text (ISO 639-1), for splitting paragraphs into sentences.",
    )
    flags.DEFINE_bool(
        "drop_duplicate_documents", False, "Leave out documents whose text came before."
    )
    flags.DEFINE_bool(
        "one_random_stream", False, "Draw as the original does: one core, the corpus in memory."
    )
    flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"])


def main(_) -> int:
    names = [field.name for field in dataclasses.fields(Settings)]
    values = {name: flags.FLAGS[name].value for name in names}
    others = inspect.signature(create_pretraining_data).parameters.keys() - {"settings", "report"}
    try:
        settings = Settings(**values | {"max_ngram_size": values["max_ngram_size"] or 1})
        create_pretraining_data(
            **{name: flags.FLAGS[name].value for name in others},
            settings=settings,
            report=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except (ValueError, OSError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        mend = "; what is finished stays: free some space and start again" if full else ""
        print(f"create_pretraining_data: {error}{mend}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("create_pretraining_data: interrupted; start it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    _define_flags()
    app.run(main)
