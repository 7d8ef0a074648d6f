"""Metrics of one run and over several seeds, as tables and files."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence

from official_bert.system.whole_files import write_text

_LOWER_IS_BETTER = ("loss", "error")


def summary(
    of_seeds: Sequence[Mapping[str, float]], left_out: tuple[str, ...] = ()
) -> dict[str, dict[str, float | None]]:
    """Mean, standard deviation (of a sample), median and best over seeds, for each metric.

    Args:
        of_seeds: The metrics of each seed. Losses and errors are best where they are lowest.
        left_out: How the names of metrics end that do not depend on the seed.

    Returns:
        {metric: {"mean", "standard_deviation", "median", "best"}}; the deviation of a single seed
        is `None`.
    """
    found = {}
    for name in of_seeds[0]:
        if name.endswith(left_out):
            continue
        values = [one[name] for one in of_seeds]
        found[name] = {
            "mean": statistics.fmean(values),
            "standard_deviation": statistics.stdev(values) if len(values) > 1 else None,
            "median": statistics.median(values),
            "best": min(values) if name.endswith(_LOWER_IS_BETTER) else max(values),
        }
    return found


def table(found: Mapping[str, Mapping[str, float | None]]) -> str:
    """A `summary` as lines of text; of a single seed, whose deviation is `None`, its values."""
    if all(values["standard_deviation"] is None for values in found.values()):
        return "\n".join(f"{metric} = {values['mean']:.4f}" for metric, values in found.items())
    names = ("mean", "standard_deviation", "median", "best")
    width = max(map(len, found))
    heads = ("mean", "deviation", "median", "best")
    lines = [" " * width + "".join(f"{head:>11}" for head in heads)]
    for metric, values in found.items():
        cells = (f"{values[name]:>11.4f}" for name in names)
        lines.append(f"{metric:<{width}}" + "".join(cells))
    return "\n".join(lines)


def write_eval_results(folder: str | os.PathLike, values: Mapping[str, float]) -> None:
    """Writes `eval_results.txt` as the official script does: a line `name = value` a metric."""
    lines = [f"{name} = {values[name]}\n" for name in sorted(values)]
    write_text(os.path.join(folder, "eval_results.txt"), "".join(lines))


def write_results(folder: str | os.PathLike, results: Mapping) -> None:
    """Writes `results.json`.

    Raises:
        ValueError: a number is not finite, which JSON has no word for.
    """
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(os.path.join(folder, "results.json"), text + "\n")
