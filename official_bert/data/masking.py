"""Which tokens the model has to predict: single pieces, whole words, or n-grams of words.

Number to predict = min(P, max(1, round(p · length))), the length counting [CLS] and [SEP], which
are never masked. Of the chosen ones 80 % become [MASK], 10 % a random word, and 10 % stay
unchanged.
"""

from random import Random


def number_to_predict(length: int, masked_lm_prob: float, max_predictions: int) -> int:
    """Number of tokens to predict in a sequence of `length` (with [CLS] and [SEP])."""
    return min(max_predictions, max(1, round(length * masked_lm_prob)))


def choose(
    candidates: list[list[int]], number: int, rng: Random, max_ngram_size: int = 1
) -> list[list[int]]:
    """Chooses groups of positions to mask, together at most `number`, in the order of drawing.

    Args:
        candidates: the words of the sequence in order; each is the list of its pieces' positions
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
