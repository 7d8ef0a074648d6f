"""Choice of the tokens to predict, and their replacement by [MASK] or a random word.

Number to predict = min(P, max(1, round(p · length))), the length counting [CLS] and [SEP], which
are never masked. They are single pieces, whole words, or n-grams of words. Of the chosen ones 80 %
become [MASK], 10 % stay unchanged, and 10 % become a random word.

`corrupt` and `choose` are for one sequence with a `random.Random`, with draws in the order of the
original TF1 script; `corrupted` is for arrays and tensors (`dynamic_masking.py` chooses itself).
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

MASK_SHARE, KEPT_SHARE, RANDOM_SHARE = 0.8, 0.1, 0.1


def number_to_predict(length: int, masked_lm_prob: float, max_predictions: int) -> int:
    """Number of tokens to predict in a sequence of `length` (with [CLS] and [SEP])."""
    return min(max(round(length * masked_lm_prob), 1), max_predictions)


def corrupt(
    ids: list[int], positions: Iterable[int], mask: int, words: list[int], rng: Random
) -> dict[int, int]:
    """Puts [MASK], the same or a random word at some positions of a sequence.

    Args:
        ids: The sequence; changed in place.
        positions: Where, in the order of drawing.
        mask: The id of [MASK].
        words: The ids that a random word is drawn from.

    Returns:
        {position: the id that stood there}.
    """
    replaced, last = {}, len(words) - 1
    for position in positions:
        replaced[position] = ids[position]
        if rng.random() < MASK_SHARE:
            ids[position] = mask
        elif rng.random() >= KEPT_SHARE / (KEPT_SHARE + RANDOM_SHARE):
            ids[position] = words[rng.randint(0, last)]
    return replaced


def corrupted(ids: Any, mask: int, random_word: Any, fate: Any, where: Callable) -> Any:
    """The replacements of chosen tokens.

    Args:
        ids: The tokens.
        mask: The id of [MASK].
        random_word: For each of them the id of a random word.
        fate: For each of them a number drawn from [0, 1).
        where: `np.where` or `tf.where`.
    """
    kept = where(fate < MASK_SHARE + KEPT_SHARE, ids, random_word)
    return where(fate < MASK_SHARE, mask, kept)


def choose(
    candidates: list[list[int]], number: int, rng: Random, max_ngram_size: int = 1
) -> list[list[int]]:
    """Chooses groups of positions to mask, together at most `number`, in the order of drawing.

    Args:
        candidates: The words of the sequence in order; each is the list of its pieces' positions
            (one position each if whole words are not masked together).
        max_ngram_size: n; with n > 1, runs of 1 … n words are drawn, a run of k words with weight
            1/k.
    """
    if max_ngram_size > 1:
        return _choose_ngrams(candidates, number, rng, max_ngram_size)
    candidates = list(candidates)
    rng.shuffle(candidates)
    chosen, count = [], 0
    for positions in candidates:
        if count >= number:
            break
        if count + len(positions) <= number:
            chosen.append(positions)
            count += len(positions)
    return chosen


def _choose_ngrams(
    words: list[list[int]], number: int, rng: Random, max_size: int
) -> list[list[int]]:
    sizes = range(1, min(max_size, len(words)) + 1)
    starts = {}
    for size in sizes:
        starts[size] = list(range(len(words) - size + 1))
        rng.shuffle(starts[size])
    taken, chosen, count = set(), [], 0
    while count < number and starts:
        size = rng.choices(list(starts), weights=[1 / size for size in starts])[0]
        start = starts[size].pop()
        if not starts[size]:
            del starts[size]
        run = range(start, start + size)
        positions = [position for word in run for position in words[word]]
        if count + len(positions) <= number and taken.isdisjoint(run):
            taken.update(run)
            chosen.append(positions)
            count += len(positions)
    return chosen
