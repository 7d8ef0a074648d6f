"""How much of the text is in no record and why; when to warn of it and when to refuse.

Also warns of records that teach little.
"""

from official_bert.data import tokenization
from official_bert.data.build_worker import BuildPlan

WORTH_A_WARNING, TOO_MUCH = 0.05, 0.5
PARAGRAPHS = (
    "if lines are paragraphs or documents, give --input_format=paragraphs, which splits them into "
    "sentences by the rules of --language"
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
