"""One build on several machines: each makes a share of the parts, and one finishes.

`--build_part=3/16` makes every 16th part, in the folder `NAME.building/3-of-16`, which all machines
see. Each share reads the whole text, because the cuts between blocks, the numbers of documents and
the duplicates depend on all text before; tokens and records are made only for its own blocks.
`--build_part=finish` makes the shards of a build on one machine from all shares.
"""

import dataclasses
import json
import re
from typing import Any

from official_bert.data import manifest
from official_bert.system import locks
from official_bert.system.places import Place, RemotePath, as_path

FINISH = "finish"
_NOTE = "share.json"
# Of the entries of a manifest that are not named as the flags that decide them.
_FLAGS = {
    "do_lower_case": "do_lower_case or strip_accents",
    "json_field": "text_field",
    "masking": "dynamic_masking",
}
_FOLDER = re.compile(r"(\d+)-of-(\d+)")


@dataclasses.dataclass(frozen=True, order=True)
class Share:
    """The parts `index`, `index + count`, `index + 2 * count`, …"""

    index: int
    count: int

    def has(self, part: int) -> bool:
        """Whether it has the part of this number."""
        return part % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse(build_part: str) -> Share | None:
    """The share that the flag names; None for `finish` and without the flag.

    Raises:
        ValueError: it is neither.
    """
    if build_part in ("", FINISH):
        return None
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", build_part, re.ASCII)
    share = found and Share(int(found[1]), int(found[2]))
    if not share or share.index >= share.count:
        raise ValueError(
            "build_part must be i/n, from 0/n to n-1/n for n machines, or finish; got "
            f"{build_part!r}. For example, the first of 16 is 0/16."
        )
    return share


def folder(shards: list[str], share: Share | None) -> str:
    """The folder of the parts of a share, or of a build on one machine."""
    building = manifest.building_folder(shards)
    return f"{building}/{share.index}-of-{share.count}" if share else building


def folders(shards: list[str]) -> dict[Place, Share]:
    """The folders of shares that were begun."""
    place = as_path(manifest.building_folder(shards))
    found = place.iterdir() if place.is_dir() else ()
    named = ((path, _FOLDER.fullmatch(path.name)) for path in found)
    return {path: Share(int(match[1]), int(match[2])) for path, match in named if match}


def require_folders(shards: list[str]) -> None:
    """Refuses a file where a folder of parts belongs, or a link at their parent.

    Raises:
        ValueError: names the file or link.
    """
    whole = as_path(manifest.building_folder(shards))
    for path in (whole, *folders(shards)):
        if isinstance(path, RemotePath):
            continue
        is_link = path == whole and path.is_symlink()
        if is_link or (path.exists() and not path.is_dir()):
            raise ValueError(
                f"output_file must leave the name {path} for a folder of parts; got a "
                f"{'link' if is_link else 'file'} there. Remove it, or choose another output_file."
            )


def are_begun_anew(shards: list[str], made: dict) -> bool:
    """Whether a share was begun after the build of this manifest, of another text or settings.

    Others are left from that build, by a kill while they were removed.
    """
    for path in folders(shards):
        note = manifest.read_note(f"{path}/{_NOTE}")
        if not note:
            if (path / manifest.PLAN).exists():
                return True
            continue
        ours, theirs = {key: made.get(key) for key in note["described"]}, note["described"]
        if note["text"] != made.get("text_digest") or comparable(ours) != comparable(theirs):
            return True
    return False


def require_none(shards: list[str]) -> None:
    """Refuses a build on one machine where shares of one were begun.

    Raises:
        ValueError: names their folder.
    """
    if found := folders(shards):
        raise ValueError(
            f"build_part must be given where parts of several machines are; got none, with "
            f"{_listed(sorted(found.values()))} in {manifest.building_folder(shards)}. Give "
            "--build_part=finish when all are made, or remove that folder."
        )


def forget(share_folder: str) -> None:
    """Removes the note of a finished share, before it is made again."""
    as_path(f"{share_folder}/{_NOTE}").unlink(missing_ok=True)


def write(share_folder: str, note: dict) -> None:
    """Writes the note of a finished share."""
    names = [{**part, "path": part["path"].rpartition("/")[2]} for part in note["parts"]]
    manifest.write_note(f"{share_folder}/{_NOTE}", note | {"parts": names})


def collect(shards: list[str], described: dict) -> tuple[list[dict], dict]:
    """The parts of all shares in order, and the note of the first: counts of the text, inputs.

    Args:
        described: The entries of the manifest; those of each share must be the same.

    Raises:
        ValueError: names the shares that are missing, or differ.
    """
    found = folders(shards)
    building = manifest.building_folder(shards)
    if not found:
        raise ValueError(
            f"build_part must be finish only after all parts are made; got none in {building}. "
            "Make them with --build_part=0/n and so on."
        )
    counts = sorted({share.count for share in found.values()})
    if len(counts) > 1:
        there = {n: sum(share.count == n for share in found.values()) for n in counts}
        listed = " and ".join(f"{there[n]} of {n} parts" for n in counts[:2])
        raise ValueError(
            f"build_part must divide a build into one number of parts; got {listed}. Remove the "
            f"folders of those not wanted, {building}/*-of-N."
        )
    shares = [Share(index, counts[0]) for index in range(counts[0])]
    for path in found:
        locks.require_free(path)
    notes = {share: manifest.read_note(f"{folder(shards, share)}/{_NOTE}") for share in shares}
    missing = [share for share in shares if not notes[share]]
    if missing:
        raise ValueError(
            f"build_part=finish must find all {counts[0]} parts; got all but {_listed(missing)}, "
            "not begun or not complete. Run them, then finish."
        )
    for share, note in notes.items():
        _require_same(share, note["described"], described)
        if note["text"] != notes[shares[0]]["text"]:
            raise ValueError(
                f"build_part must read the same text everywhere; got another one in {share} than "
                f"in {shares[0]}. Run the one again that read an old or partial copy."
            )
    parts = [
        {**part, "path": f"{folder(shards, share)}/{part['path']}"}
        for share, note in notes.items()
        for part in note["parts"]
    ]
    parts.sort(key=lambda part: int(part["path"].rpartition("-")[2]))
    return parts, notes[shares[0]]


def _require_same(share: Share, theirs: dict, ours: dict) -> None:
    theirs, ours = comparable(theirs), comparable(ours)
    differing = sorted(key for key in ours | theirs if ours.get(key) != theirs.get(key))
    differing = [_FLAGS.get(key, key) for key in differing]
    if differing:
        raise ValueError(
            f"build_part must have the same settings, vocabulary and input files everywhere; got "
            f"{share} with another {', '.join(differing[:3])} than this command. Run that part "
            "again with this command's flags, or finish with that part's."
        )


def comparable(described: dict) -> dict[str, Any]:
    """A manifest's entries by name, with the input files without times, which copies change."""
    found = json.loads(json.dumps(described))
    files = [[each["file"], each["bytes"]] for each in found.pop("inputs") or ()]
    return {**(found.pop("settings") or {}), **found, "input_file": files}


def refuse_damaged(parts: list[dict]) -> None:
    """Refuses parts that are missing or damaged, by the shares to run again.

    Raises:
        ValueError: there are such parts.
    """
    if parts:
        names = (part["path"].split("/")[-2] for part in parts)
        shares = dict.fromkeys(name.replace("-of-", "/") for name in names)
        raise ValueError(
            f"build_part=finish must find whole parts; got {len(parts)} missing or damaged in "
            f"{_listed(shares)}. Run them again, then finish."
        )


def _listed(shares) -> str:
    names = list(map(str, shares))
    return ", ".join(names[:5]) + f" and {len(names) - 5} more" * (len(names) > 5)
