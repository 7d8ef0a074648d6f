"""The page of a study: what the study says, and how it was made: machine, commands, settings."""

import os
import pathlib
import sys
from collections.abc import Sequence
from statistics import mean

import stats as findings

from official_bert.system.whole_files import write_text


def write(claim, options, settings, work, trials):
    """Page and picture of the records that there are; nothing where there are none.

    Args:
        claim: A `study.Claim`.
        options: Of its command.
        settings: Its settings.
        work: A `studies.Study`.
        trials: Number of all trials.
    """
    records, page = list(work.done().values()), options.page
    if not records:
        print(f"No page: {options.results} has no trial with these settings.", file=sys.stderr)
        return
    page.parent.mkdir(parents=True, exist_ok=True)
    claim.draw(records, settings, page.with_suffix(".png"))
    small = "*This is the small form, `--quick`: it shows how the study works and has no results.*"
    text = "\n\n".join(
        [
            f"# {claim.title}",
            *([small] if options.quick else []),
            claim.text(records, settings, page.stem).strip(),
            "## How it was measured",
            made(records, trials, options.results, claim.lost),
            *other_form(claim, settings),
            findings.curves.settings_table(dict(claim.model) | settings),
        ]
    )
    write_text(page, text + "\n")


def made(records: Sequence[dict], trials: int, results: os.PathLike, lost_if: str) -> str:
    """Machine, command, commits, number of trials, time, and the trials that diverged.

    Args:
        records: Of the trials that are done.
        trials: Number of all.
        results: The file of the records.
        lost_if: As `lost` of `Claim`.
    """
    spent, cpu = (sum(r[key] for r in records) / 60 for key in ("wall_seconds", "cpu_seconds"))
    lost = [record for record in records if record["diverged"]]
    commits = sorted({record["commit"] for record in records})
    of_commits = f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
    commands = " and ".join(f"`{each}`" for each in dict.fromkeys(r["command"] for r in records))
    packages = ("tensorflow", "tensorflow-cpu", "jax", "keras")
    load = max(record["machine"]["load_before"] for record in records)
    jobs = max(record.get("jobs", 1) for record in records)
    side_by_side = (
        f", up to {jobs} at a time, each on an equal share of the cores" if jobs > 1 else ""
    )
    where = findings.curves.made_on(records, packages, jobs)
    trained = [record for record in records if "twin" not in record]
    copies = len(records) - len(trained)
    same = f" ({copies} of them reuse a run of another part)" if copies else ""
    return f"""{where}. **{len(records)} of {trials} trials are done**{same}, in {spent:.0f} \
minutes of trials ({cpu:.0f} minutes of CPU time; {mean(map(_wall, trained)):.0f} s per trial on \
average{side_by_side}). The machine was shared: the load average before a trial was at most \
{load:.1f}.

Made by {commands} on {of_commits}, from `{pathlib.Path(results).name}`, which has one line \
per trial with its command, settings, seed and seconds. A killed study resumes with the next \
trial.

{len(lost)} of {len(records)} trials diverged ({lost_if})."""


def other_form(claim, settings: dict) -> list[str]:
    """Where the settings are not the script's own: what those are; else nothing."""
    changed = [name for name in claim.settings if settings[name] != claim.settings[name]]
    if not changed:
        return []
    values = ", ".join(f"`{name}` {claim.settings[name]}" for name in changed)
    return [f"The command's defaults differ: {values}; {len(claim.trials(claim.settings))} trials."]


def _wall(record):
    return record["wall_seconds"]
