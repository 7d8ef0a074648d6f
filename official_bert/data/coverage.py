"""Checks of a build: its settings before the work; afterwards, how much text is in no record.

Bad settings are refused at once and not after an hour of work. Dropped text and records that teach
little are warned of with their likely cause, or refused.
"""

import glob
import os
import shutil
import tempfile
from collections.abc import Iterable

from official_bert.data import corpus, manifest, tokenization
from official_bert.data.build_worker import BuildPlan
from official_bert.system import local_paths, memory

WORTH_A_WARNING, TOO_MUCH = 0.05, 0.5
PARAGRAPHS = (
    "if lines are paragraphs or documents, give --input_format=paragraphs, which splits them into "
    "sentences by the rules of --language"
)
MOSTLY_UNKNOWN = 0.3
# Bytes of memory per byte of English text if one random stream holds all of it: once, and for each
# pass over it. For Chinese it is twice as much.
MEMORY_OF_TEXT, MEMORY_OF_RECORDS = 8.0, 1.4
MAX_SHARDS = 99_999  # their names have five digits
# Size of the text divided by its compressed size.
_UNPACKED = {".gz": 2.5, ".bz2": 3.0, ".xz": 3.5, ".zst": 2.5}


def shard_paths(output_file: str | list[str], num_shards: int) -> list[str]:
    """The paths of the shards; see `create_pretraining_data`."""
    names = output_file.split(",") if isinstance(output_file, str) else list(map(str, output_file))
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise ValueError(
            f"output_file must name at least one file; got {output_file!r}. Give a path, such as "
            "records/wiki.tfrecord."
        )
    if num_shards > MAX_SHARDS:
        raise ValueError(
            f"num_shards must be at most {MAX_SHARDS:,}; got {num_shards:,}. Make fewer, larger "
            "files."
        )
    if num_shards < 0:
        raise ValueError(f"num_shards must be at least 0; got {num_shards}.")
    if len(names) > 1 and num_shards not in (0, len(names)):
        raise ValueError(
            f"num_shards must be 0 or {len(names)}, the number of names in output_file; got "
            f"{num_shards}. Give a single name to have the shards numbered."
        )
    for name in names:
        local_paths.require_file_name(output_file=name)
    if len(names) == 1 and num_shards > 1:
        names = [f"{names[0]}-{n:05d}-of-{num_shards:05d}" for n in range(num_shards)]
    if len(set(map(os.path.dirname, names))) > 1 or len(set(names)) < len(names):
        raise ValueError(
            f"output_file must name different files in one folder; got {', '.join(names)}. Give "
            "one name and --num_shards to have the shards numbered."
        )
    return names


def check_apart(
    shards: list[str], input_file: str | Iterable[str], paths: list[str], vocab_file: str
) -> None:
    """Refuses outputs that are inputs, or would be when the command resumes."""
    vocabulary = {"vocab_file": [vocab_file]}
    outputs = {
        "output_file": [*shards, manifest.path_for(shards), manifest.building_folder(shards)]
    }
    local_paths.require_apart(outputs, {"input_file": paths} | vocabulary)
    local_paths.require_apart(vocabulary, {"input_file": paths})
    corpus.require_outside(outputs, {"input_file": input_file})


def make_folder(folder: str) -> None:
    """Makes the folder of the output, and checks that it is writable."""
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"output_file must be in a folder that can be written to; got {folder} ({error}). "
            "Check its permissions, or write elsewhere."
        ) from None


def check_sample(
    source: corpus.Corpus, plan: BuildPlan, num_shards: int, sample_bytes: int = 200_000
) -> None:
    """Refuses a vocabulary that does not fit the first documents, and far too many shards.

    Args:
        source: The corpus.
        plan: What the records will look like.
        num_shards: How many files there will be.
        sample_bytes: How much text is looked at.
    """
    sample, size = [], 0
    skip = corpus.BadLines(source.skip_bad_lines)
    reading = source.paths, source.form, source.json_field
    for document in corpus.documents(*reading, bad_line=skip):
        sample += corpus.sentences(document, plan.language)
        size += sum(map(len, document.lines))
        if size > sample_bytes:
            break
    if not sample:
        raise ValueError(
            "input_file must contain text; got none in "
            f"{', '.join(source.paths[:3])}{' …' * (len(source.paths) > 3)}. Check the paths."
        )
    tokenizer = tokenization.load(plan.vocab_file, plan.do_lower_case)
    tokenization.check_case(tokenizer.get_vocab(), plan.vocab_file, plan.do_lower_case)
    unknown = tokenizer.token_to_id(tokenization.UNK)
    ids = [
        i
        for encoding in tokenizer.encode_batch_fast(sample, add_special_tokens=False)
        for i in encoding.ids
    ]
    share = sum(i == unknown for i in ids) / max(len(ids), 1)
    if share > MOSTLY_UNKNOWN:
        raise ValueError(
            f"vocab_file must fit the text; got {plan.vocab_file}, with which {share:.0%} of the "
            f"first {len(ids):,} tokens are {tokenization.UNK}. Check its language, and whether "
            f"its casing is that of --do_lower_case={plan.do_lower_case}."
        )
    # A record holds at least one sentence, or is full of tokens. The limit is doubled, because the
    # rest of the text may be of another kind.
    passes = 1 if plan.dynamic else plan.settings.dupe_factor
    times = passes * max(1.0, _text_bytes(source.paths) / sum(len(s.encode()) for s in sample))
    most = 2 * times * (len(sample) + len(ids) / (plan.settings.max_seq_length - 3))
    if num_shards > most:
        raise ValueError(
            f"num_shards must be at most the number of records, which is below {most:,.0f}; got "
            f"{num_shards}. Make fewer shards."
        )


def check_disk(paths: list[str], shards: list[str], plan: BuildPlan) -> None:
    """Refuses a disk that has no room for even a low estimate of the records."""
    text = _text_bytes(paths)
    # Bytes of records per byte of English text: 1.2 to 1.9 (length 512, 128), with GZIP a third;
    # 0.6 stored once. Less is assumed here.
    each = 0.4 if plan.dynamic else plan.settings.dupe_factor * (0.3 if plan.gzip else 1.0)
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(shards[0]))).free
    # Files of an interrupted run are used again; files of another run are replaced.
    there = {*shards, *manifest.of_last_build(shards)}
    there.update(glob.glob(f"{glob.escape(manifest.building_folder(shards))}/*"))
    free += sum(os.path.getsize(path) for path in there if os.path.exists(path))
    if free < text * each:
        raise ValueError(
            f"output_file must be on a disk with room for about {text * each / 1e9:,.1f} GB of "
            f"records; got {shards[0]}, with {free / 1e9:,.1f} GB free. Free some space, or write "
            "to another disk."
        )


def check_memory(paths: list[str], plan: BuildPlan) -> None:
    """Refuses a corpus of one random stream that will not fit into the memory.

    In blocks, the memory is bounded for any corpus.
    """
    if not plan.one_stream:
        return
    text, free = _text_bytes(paths), memory.available()
    passes = 1 if plan.dynamic else plan.settings.dupe_factor
    needed = text * (MEMORY_OF_TEXT + passes * MEMORY_OF_RECORDS)
    if free is not None and needed > free:
        raise ValueError(
            f"one_random_stream must be off where memory is short: {text / 1e9:,.1f} GB of text, "
            f"with {passes} times its records, takes about {needed / 1e9:,.1f} GB; got "
            f"{free / 1e9:,.1f} GB. Without it, the text is processed in blocks of 2 MB."
        )


def _text_bytes(paths: list[str]) -> float:
    """Bytes of text in some files, estimated if they are compressed."""
    return sum(
        os.path.getsize(path) * _UNPACKED.get(os.path.splitext(path)[1], 1.0) for path in paths
    )


def describe(summary: dict) -> str:
    """Tokens read, written and dropped, with the reasons, in a line."""
    read, dropped = summary["text_tokens"], summary["dropped_tokens"]
    reasons = []
    if dropped:
        reasons.append(f"{dropped:,} cut off so that pairs fit")
    if summary["dropped_bytes"]:
        reasons.append(f"{summary['dropped_bytes'] / 1e6:,.1f} MB of duplicates skipped")
    long = f"; sentences longer than a sequence: {summary['long_sentences']:,}"
    return (
        f"{read:,} tokens read, {read - dropped:,} written, {dropped:,} dropped "
        f"({_share(summary):.1%}){': ' * bool(reasons)}{', '.join(reasons)}"
        f"{long * bool(summary['long_sentences'])}"
    )


def warnings(summary: dict, plan: BuildPlan) -> list[str]:
    """Warnings about the text and its form, with the likely cause."""
    found = []
    unknown = _of_text(summary, "unknown_tokens")
    if unknown > WORTH_A_WARNING:
        found.append(
            f"{unknown:.1%} of the text's tokens are {tokenization.UNK}: the vocabulary lacks some "
            "of its characters. Learn one from this text with `lamb-bert learn-vocabulary`, or "
            "check --do_lower_case."
        )
    if _share(summary) > WORTH_A_WARNING:
        found.append(
            f"{_share(summary):.1%} of the text's {summary['text_tokens']:,} tokens are in no "
            f"record: {_likely_cause(summary, plan)}."
        )
    elif _in_paragraphs(summary) > TOO_MUCH:
        found.append(
            f"{_in_paragraphs(summary):.0%} of the text is in lines that look like three sentences "
            f"or more, but each line was read as one sentence; {PARAGRAPHS}."
        )
    same = _of_text(summary, "single_document_tokens")
    if summary["documents"] == 1:
        found.append(
            "the text is a single document, so random second segments come from it, too; separate "
            "documents with a blank line."
        )
    elif same > WORTH_A_WARNING:
        found.append(
            f"{same:.0%} of the text is in documents that each fill a block, so their random "
            "second segments come from the same document; give --dynamic_masking, or separate "
            "shorter documents with a blank line."
        )
    return found


def check(counts: dict, plan: BuildPlan, allowed: bool) -> None:
    """Refuses records that hold less than half of the text.

    Raises:
        ValueError: they hold less, and it is not `allowed`; the message names the likely cause.
    """
    if _share(counts) > TOO_MUCH and not allowed:
        raise ValueError(
            f"input_file must lose at most {TOO_MUCH:.0%} of its tokens; got {_share(counts):.1%} "
            f"of {counts['text_tokens']:,} tokens in no record: {_likely_cause(counts, plan)}. "
            "Give --allow_dropped_text to continue anyway."
        )


def _of_text(counts: dict, name: str) -> float:
    """The share of some of the text's tokens."""
    return counts[name] / max(counts["text_tokens"], 1)


def _share(counts: dict) -> float:
    return _of_text(counts, "dropped_tokens")


def _in_long_sentences(counts: dict) -> float:
    return _of_text(counts, "long_sentence_tokens")


def _in_paragraphs(counts: dict) -> float:
    return _of_text(counts, "paragraph_tokens")


def _likely_cause(counts: dict, plan: BuildPlan) -> str:
    # In blocks, long sentences are cut into pieces.
    if plan.one_stream and _in_long_sentences(counts) > WORTH_A_WARNING:
        likely = _in_paragraphs(counts) > _in_long_sentences(counts) / 2
        return (
            f"{counts['long_sentences']:,} of {counts['sentences']:,} sentences exceed the "
            f"sequence length of {plan.settings.max_seq_length}, and --one_random_stream cuts them "
            f"off, as the original script does{f'; {PARAGRAPHS}' * likely}"
        )
    mean = counts["text_tokens"] / max(counts["sentences"], 1)
    return (
        f"sentences have {mean:.0f} tokens on average, so pairs exceed the sequence length of "
        f"{plan.settings.max_seq_length} and are cut; a larger --dupe_factor cuts other parts in "
        "each pass, --dynamic_masking cuts nothing"
    )
