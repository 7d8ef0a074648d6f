"""Checks of a build: settings before the work; afterwards, dropped text and its likely cause."""

import glob
import os
import shutil
import tempfile
from collections.abc import Iterable

from official_bert.data import corpus, fit, manifest, tokenization
from official_bert.data.build_worker import BuildPlan
from official_bert.system import local_paths, memory
from official_bert.system.places import as_path, is_remote

WORTH_A_WARNING, TOO_MUCH = 0.05, 0.5
PARAGRAPHS = (
    "if lines are paragraphs or documents, give --input_format=paragraphs, which splits them into "
    "sentences by the rules of --language"
)
MOSTLY_UNKNOWN = 0.3
# Shares at which text is warned of, or refused; and documents (or lines) that a share needs.
NEARLY_ALL, ALL = 0.9, 0.99  # documents of one sentence
MANY_DUPLICATES, ALL_DUPLICATES = 0.2, 0.9
BOILERPLATE = 0.02
NO_CAPITALS = 0.02  # of lines in cased text
FEW, ENOUGH = 10, 100
TO_NFC = 'write the text in NFC, in Python by `unicodedata.normalize("NFC", text)`'
DROP = "give --drop_duplicate_documents, or check whether the text was joined several times"
# Bytes of memory per byte of English text if one random stream holds all of it: once, and for each
# pass over it. For Chinese it is twice as much.
MEMORY_OF_TEXT, MEMORY_OF_RECORDS = 8.0, 1.4
SAMPLE_BYTES = 200_000
MAX_SHARDS = 99_999  # their names have five digits


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
        raise ValueError(f"num_shards must be at most {MAX_SHARDS:,}; got {num_shards:,}.")
    if num_shards < 0:
        raise ValueError(f"num_shards must be at least 0; got {num_shards}.")
    if len(names) > 1 and num_shards not in (0, len(names)):
        raise ValueError(
            f"num_shards must be 0 or {len(names)}, the number of names in output_file; got "
            f"{num_shards}. Give a single name to have the shards numbered."
        )
    for name in names:
        local_paths.require_paths(output_file=name)
        local_paths.require_file_name(output_file=name)
    names = [str(as_path(name)) if is_remote(name) else name for name in names]
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


def make_folder(flag: str, path: str) -> None:
    """Makes the folder of an output, and checks that it is writable."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(folder, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"{flag} must be in a folder that can be written to; got {folder} ({error}). "
            "Check its permissions, or write elsewhere."
        ) from None


def check_sample(source: corpus.Corpus, plan: BuildPlan, num_shards: int) -> None:
    """Refuses a vocabulary that does not fit the first documents, and far too many shards."""
    sample, size = [], 0
    # Without its choice among duplicates, which would read on until there are enough others.
    first = corpus.Corpus(
        source.paths, source.form, source.text_field, skip_bad_lines=source.skip_bad_lines
    )
    for document in first.documents():
        sample += corpus.sentences(document, plan.language)
        size += sum(map(len, document.lines))
        if size > SAMPLE_BYTES:
            break
    if not sample:
        names = f"{', '.join(source.paths[:3])}{' …' * (len(source.paths) > 3)}"
        left_out = "".join(f" {w[0].upper()}{w[1:]}" for w in first.warnings())
        raise ValueError(
            f"input_file must contain text; got none in {names}.{left_out} Check the paths."
        )
    tokenizer = tokenization.load(plan.vocab_file, plan.do_lower_case)
    vocabulary = tokenizer.get_vocab()
    tokenization.check_case(vocabulary, plan.vocab_file, plan.do_lower_case)
    ids = [i for found in tokenization.SentenceEncoder(tokenizer)(sample) for i in found]
    share = ids.count(vocabulary[tokenization.UNK]) / max(len(ids), 1)
    if share > MOSTLY_UNKNOWN:
        lines = fit.sampled_lines(sample, tokenizer, plan.do_lower_case)
        is_nfd = lines["decomposed_lines"] > WORTH_A_WARNING * lines["sampled_lines"]
        raise ValueError(
            f"vocab_file must fit the text; got {plan.vocab_file}, with which {share:.0%} of the "
            f"first {len(ids):,} tokens are {tokenization.UNK}. Check its language, and whether "
            f"its casing is that of {tokenization.as_flags(plan.do_lower_case)}."
            f"{f' Letters and accents are apart (NFD): {TO_NFC}.' * is_nfd}"
        )
    # A record holds at least one sentence, or is full of tokens. The limit is doubled, because the
    # rest of the text may be of another kind.
    passes = 1 if plan.dynamic else plan.settings.dupe_factor
    times = passes * max(1.0, source.estimated_bytes / sum(len(s.encode()) for s in sample))
    most = 2 * times * (len(sample) + len(ids) / (plan.settings.max_seq_length - 3))
    if num_shards > most:
        raise ValueError(
            f"num_shards must be at most the number of records, which is below {most:,.0f}; got "
            f"{num_shards}. Make fewer shards."
        )


def check_disk(source: corpus.Corpus, shards: list[str], plan: BuildPlan) -> None:
    """Refuses a disk that has no room for even a low estimate of the records."""
    text = source.estimated_bytes
    # Measured bytes of records per byte of English text: 1.2 to 1.9 (length 512, 128), with GZIP a
    # third; 0.6 stored once.
    each = 0.4 if plan.dynamic else plan.settings.dupe_factor * (0.3 if plan.gzip else 1.0)
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(shards[0]))).free
    # An interrupted run's files are used again, another run's files are replaced.
    there = {*shards, *manifest.of_last_build(shards)}
    building = f"{glob.escape(manifest.building_folder(shards))}/**"
    there.update(glob.glob(building, recursive=True))
    free += sum(filter(None, map(manifest.size_of, there)))
    if free < text * each:
        raise ValueError(
            f"output_file must be on a disk with room for about {text * each / 1e9:,.1f} GB of "
            f"records; got {shards[0]}, with {free / 1e9:,.1f} GB free. Free some space, or write "
            "to another disk."
        )


def check_memory(source: corpus.Corpus, plan: BuildPlan) -> None:
    """Refuses a corpus of one random stream that does not fit in memory, as blocks always do."""
    if not plan.one_stream:
        return
    text, free = source.estimated_bytes, memory.available()
    passes = 1 if plan.dynamic else plan.settings.dupe_factor
    needed = text * (MEMORY_OF_TEXT + passes * MEMORY_OF_RECORDS)
    if free is not None and needed > free:
        raise ValueError(
            f"one_random_stream must be off where memory is short: {text / 1e9:,.1f} GB of text, "
            f"with {passes} times its records, takes about {needed / 1e9:,.1f} GB; got "
            f"{free / 1e9:,.1f} GB. Without it, the text is processed in blocks of 2 MB."
        )


def describe(summary: dict, max_seq_length: int) -> str:
    """The closing summary in words."""
    sequences, tokens = summary["sequences"], summary["tokens"]
    read, dropped = summary["text_tokens"], summary["dropped_tokens"]
    seconds, megabytes = summary["seconds"] or float("nan"), summary["text_bytes"] / 1e6
    reasons = []
    if dropped:
        reasons.append(f"{dropped:,} cut off so that pairs fit")
    if summary["dropped_bytes"]:
        reasons.append(f"{summary['dropped_bytes'] / 1e6:,.1f} MB of duplicates skipped")
    long = f"; sentences longer than a sequence: {summary['long_sentences']:,}"
    return (
        f"{summary['documents']:,} documents ({summary['duplicate_documents']:,} duplicates), "
        f"{summary['sentences']:,} sentences, {megabytes:,.1f} MB of text\n"
        f"{sequences:,} sequences of {max_seq_length}, {tokens:,} tokens, "
        f"{1 - tokens / (sequences * max_seq_length):.1%} padding, "
        f"{_share(summary, 'unknown_tokens'):.2%} of the text's tokens unknown\n"
        f"{read:,} tokens read, {read - dropped:,} written, {dropped:,} dropped "
        f"({_share(summary):.1%}){': ' * bool(reasons)}{', '.join(reasons)}"
        f"{long * bool(summary['long_sentences'])}\n"
        f"{seconds:,.1f} s, {megabytes / seconds:.2f} MB/s, {sequences / seconds:,.0f} sequences/s"
    )


def dropped(summary: dict, plan: BuildPlan) -> list[str]:
    """A warning about the share of the text that is in no record, with the likely cause."""
    if _share(summary) <= WORTH_A_WARNING:
        return []
    return [
        f"{_share(summary):.1%} of the text's {summary['text_tokens']:,} tokens are in no record: "
        f"{_likely_cause(summary, plan)}."
    ]


def warnings(summary: dict, plan: BuildPlan) -> list[str]:
    """Warnings about text that harms a training, with the cause; repeated where it trains."""
    found = []
    unknown, in_paragraphs = _share(summary, "unknown_tokens"), _share(summary, "paragraph_tokens")
    if unknown > WORTH_A_WARNING:
        found.append(
            f"{unknown:.1%} of the text's tokens are {tokenization.UNK}: the vocabulary lacks some "
            "of its characters. Learn one from this text with `lamb-bert learn-vocabulary`, or "
            "check --do_lower_case."
        )
    if in_paragraphs > TOO_MUCH and not dropped(summary, plan):
        found.append(
            f"{in_paragraphs:.0%} of the text is in lines that look like three sentences or more, "
            f"but each line was read as one sentence; {PARAGRAPHS}."
        )
    found += _unfit(summary, plan)
    same = _share(summary, "single_document_tokens")
    if plan.settings.row_filling != "documents":
        return found  # without random second segments
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


def _unfit(summary: dict, plan: BuildPlan) -> list[str]:
    """Warnings about text that would ruin a training, or that the vocabulary does not fit."""
    found = []
    if summary["token_documents"] >= FEW and _single(summary, plan) > NEARLY_ALL:
        found.append(f"{_single_words(summary, plan)}.")
    duplicates = _duplicates(summary)
    if duplicates > MANY_DUPLICATES and not summary["dropped_bytes"]:
        found.append(f"{duplicates:.0%} of the text is in documents that occurred before; {DROP}.")
    boilerplate = summary["repeated_line_bytes"] / max(summary["text_bytes"], 1)
    if boilerplate > BOILERPLATE:
        found.append(
            f"{boilerplate:.0%} of the text is lines that are in {fit.MANY:,} documents or more, "
            f"such as {summary['repeated_line'][:60]!r} in {summary['repeated_line_documents']:,}: "
            "a model learns them by heart. If they are notices or menus of a website, remove them."
        )
    capitals = _capitals(summary)
    if capitals is not None and not plan.do_lower_case:
        vocabulary = tokenization.read_vocabulary(plan.vocab_file)
        is_cased = tokenization.upper_case_token(vocabulary) is not None
        if is_cased and capitals < NO_CAPITALS:
            found.append(
                f"{1 - capitals:.0%} of the lines are without a capital letter, but the vocabulary "
                "is cased: its words with capitals are never learned. Use an uncased vocabulary, "
                "or text with its capitals."
            )
        elif capitals > WORTH_A_WARNING and tokenization.is_uncased(vocabulary):
            found.append(f"{_uncased_words(capitals)}; give --do_lower_case.")
    decomposed = summary["decomposed_lines"] / max(summary["sampled_lines"], 1)
    if decomposed > WORTH_A_WARNING:
        found.append(
            f"{decomposed:.0%} of the lines have letters and accents apart (NFD), which the "
            f"vocabulary has as one (NFC), so their words become other pieces: {TO_NFC}."
        )
    return found


def check_fit(counts: dict, plan: BuildPlan) -> None:
    """Refuses text that would ruin a training and that nobody can have meant.

    Args:
        counts: Of the parts and of the `corpus.Corpus`.
    """
    insist = "Give --allow_unfit_text to continue anyway."
    if counts["token_documents"] >= ENOUGH and not plan.dynamic and _single(counts, plan) > ALL:
        raise ValueError(
            "input_file must have documents of several sentences for next-sentence labels; "
            f"got others: {_single_words(counts, plan)}. {insist}"
        )
    duplicates = 0.0 if counts["dropped_bytes"] else _duplicates(counts)
    if counts["documents"] >= ENOUGH and duplicates > ALL_DUPLICATES:
        raise ValueError(
            f"input_file must have different documents; got {duplicates:.0%} of the text in "
            f"documents that occurred before; {DROP}. {insist}"
        )
    capitals = 0.0 if plan.do_lower_case else _capitals(counts) or 0.0
    if capitals > TOO_MUCH and tokenization.is_uncased(
        tokenization.read_vocabulary(plan.vocab_file)
    ):
        raise ValueError(
            f"do_lower_case must be on for {plan.vocab_file}; got off: {_uncased_words(capitals)}. "
            f"Give --do_lower_case. {insist}"
        )


def _single(counts: dict, plan: BuildPlan) -> float:
    """The share of documents of one sentence, unless rows are filled across documents."""
    if plan.settings.row_filling != "documents":
        return 0.0
    return counts["single_sentence_documents"] / max(counts["token_documents"], 1)


def _single_words(counts: dict, plan: BuildPlan) -> str:
    each = plan.settings.max_seq_length * max(counts["sequences"], 1)
    padding = f"{1 - counts['tokens'] / each:.0%} of a row is padding"
    labels = "" if plan.dynamic else "every next-sentence label is 1, and "
    if _single(counts, plan) < 1:
        labels = labels.replace("every", "nearly every")
    return (
        f"{_single(counts, plan):.0%} of the {counts['token_documents']:,} documents are a single "
        f"sentence, so {labels}{padding}. If a blank line follows every sentence, remove these "
        "lines; if each line is a document, give --row_filling=packed, which trains without the "
        "next sentence"
    )


def _duplicates(counts: dict) -> float:
    """The share of the text in duplicates."""
    return counts["duplicate_bytes"] / max(counts["text_bytes"] + counts["dropped_bytes"], 1)


def _capitals(counts: dict) -> float | None:
    """The share of lines with a capital letter; None for text mostly without a case."""
    if counts["cased_lines"] < max(FEW, counts["sampled_lines"] / 5):
        return None
    return counts["capital_lines"] / counts["cased_lines"]


def _uncased_words(capitals: float) -> str:
    return (
        f"{capitals:.0%} of the lines have a capital letter, and the vocabulary none, so each such "
        f"word becomes {tokenization.UNK}"
    )


def check(counts: dict, plan: BuildPlan, allowed: bool) -> None:
    """Refuses records with less than half of the text, naming the likely cause."""
    if not counts["text_tokens"]:
        raise ValueError(
            f"input_file must contain text; got {counts['sampled_lines']:,} lines or more of "
            "characters that the tokenizer drops, such as control characters. Check the encoding."
        )
    if not counts["sequences"]:
        raise ValueError(
            f"input_file must contain text for at least one record; got {counts['text_tokens']:,} "
            "tokens. Give more text."
        )
    if _share(counts) > TOO_MUCH and not allowed:
        raise ValueError(
            f"input_file must lose at most {TOO_MUCH:.0%} of its tokens; got {_share(counts):.1%} "
            f"of {counts['text_tokens']:,} tokens in no record: {_likely_cause(counts, plan)}. "
            "Give --allow_dropped_text to continue anyway."
        )


def _share(counts: dict, name: str = "dropped_tokens") -> float:
    """The fraction that some tokens are of all the text's tokens."""
    return counts[name] / max(counts["text_tokens"], 1)


def _likely_cause(counts: dict, plan: BuildPlan) -> str:
    in_long_sentences = _share(counts, "long_sentence_tokens")
    # In blocks, long sentences are cut into pieces.
    if plan.one_stream and in_long_sentences > WORTH_A_WARNING:
        likely = _share(counts, "paragraph_tokens") > in_long_sentences / 2
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
