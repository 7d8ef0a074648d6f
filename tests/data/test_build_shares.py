"""A build on several machines: the bytes of one machine, and shares that do not fit are refused."""

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest

from official_bert.data import build_shares, build_worker, corpus, record_builder
from official_bert.data.instances import Settings
from official_bert.system import locks

SETTINGS = Settings(max_seq_length=64, max_predictions_per_seq=10, dupe_factor=2)


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "BLOCK_BYTES", 5_000)
        yield


@pytest.fixture(scope="module")
def text(small_text, tmp_path_factory):
    """A text of which the first document comes again at the end."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = Path(small_text.path).read_text()[:30_000]
    path.write_text(f"{words}\n\n{words.partition(chr(10) * 2)[0]}\n")
    return small_text._replace(path=str(path))


def build(text, folder, part="", settings=SETTINGS, **options):
    options = {"num_shards": 3, "num_workers": 2, "input_format": "paragraphs"} | options
    return text.build(folder / "a.tfrecord", settings, build_part=part, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def expected(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_machine")
    build(text, folder)
    return contents(folder)


@pytest.fixture(scope="module")
def two_shares(text, tmp_path_factory):
    """A folder in which both shares of two are complete."""
    folder = tmp_path_factory.mktemp("two_shares")
    for part in "0/2", "1/2":
        build(text, folder, part)
    return folder


@pytest.fixture
def shares(two_shares, tmp_path):
    return shutil.copytree(two_shares, tmp_path / "shares")


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (1, {}),
        (3, {"dynamic_masking": True}),
        (9, {"gzip_compress": True}),  # of which some make nothing
    ],
)
def test_the_parts_of_any_number_of_machines_give_the_bytes_of_one(text, tmp_path, count, options):
    options |= {"drop_duplicate_documents": True}
    build(text, tmp_path / "one", **options)
    for index in reversed(range(count)):
        build(text, tmp_path / "several", f"{index}/{count}", num_workers=1, **options)
        assert not list((tmp_path / "several").glob("a.tfrecord*"))
    build(text, tmp_path / "several", "finish", **options)
    assert contents(tmp_path / "several") == contents(tmp_path / "one")
    for part in "0/3", "finish":
        assert build(text, tmp_path / "several", part, **options)["seconds"] == 0


@pytest.mark.parametrize("kind", [build_worker.Part, build_worker.Shard])
def test_interrupted_after_any_step_it_ends_with_the_same_bytes(
    text, tmp_path, expected, kind, stopped
):
    for steps in itertools.count(step=2):
        interruptions = 0
        for part in "0/2", "1/2", "finish":
            try:
                with stopped(kind, steps):
                    build(text, tmp_path / str(steps), part, num_workers=1)
            except KeyboardInterrupt:
                interruptions += 1
                build(text, tmp_path / str(steps), part)
        assert contents(tmp_path / str(steps)) == expected
        if not interruptions:
            break
    assert steps > 1


def test_a_second_run_of_a_part_makes_only_what_is_missing(shares, text, expected, monkeypatch):
    (shares / "a.building/1-of-2/part-000003.records").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="got 1 missing or damaged in 1/2. Run them again"):
        build(text, shares, "finish")
    asked, ask = [], record_builder._ask
    monkeypatch.setattr(record_builder, "_ask", lambda *_: asked.append(_[1]) or ask(*_))
    build(text, shares, "1/2")
    assert [task.index for task in asked] == [3]
    build(text, shares, "finish")
    assert contents(shares) == expected


def test_a_shard_damaged_after_its_parts_were_removed_names_the_parts_to_run(
    shares, text, expected, stopped
):
    with pytest.raises(KeyboardInterrupt), stopped(build_worker.Shard, after=2):
        build(text, shares, "finish", num_workers=1)
    (shares / "a.tfrecord-00000-of-00003").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"missing or damaged in (0/2, 1/2|1/2, 0/2)"):
        build(text, shares, "finish")
    for part in "0/2", "1/2", "finish":
        build(text, shares, part)
    assert contents(shares) == expected


def test_finishing_names_the_parts_that_are_missing(text, tmp_path, stopped):
    with pytest.raises(ValueError, match=r"build_part must be finish only after all parts"):
        build(text, tmp_path, "finish")
    build(text, tmp_path, "1/4")
    with pytest.raises(KeyboardInterrupt), stopped(build_worker.Part):
        build(text, tmp_path, "3/4")
    with pytest.raises(ValueError, match="must find all 4 parts; got all but 0/4, 2/4, 3/4"):
        build(text, tmp_path, "finish")


def test_parts_of_another_number_of_machines_are_refused(text, shares):
    build(text, shares, "0/3")
    with pytest.raises(
        ValueError, match=r"one number of parts; got 2 of 2 parts and 1 of 3 parts\."
    ):
        build(text, shares, "finish")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"random_seed": 1}, "got 0/2 with another random_seed than this command"),
        ({"settings": Settings(max_seq_length=32)}, "another dupe_factor, max_predictions_per_seq"),
        ({"dynamic_masking": True}, "another dynamic_masking than"),
        ({"strip_accents": False}, "another do_lower_case or strip_accents than"),
    ],
)
def test_parts_of_other_settings_are_refused_by_name(text, shares, options, message):
    with pytest.raises(ValueError, match=message):
        build(text, shares, "finish", **options)


def test_a_part_of_another_text_is_refused_by_name(text, shares, tmp_path, expected):
    changed = tmp_path / "text.txt"
    words = Path(text.path).read_text()
    changed.write_text(words.replace("the", "teh", 1))
    notes = {}
    for path in text.path, str(changed):
        build(text._replace(path=path), shares, "1/2")
        notes[path] = json.loads((shares / "a.building/1-of-2/share.json").read_text())["note"]
    with pytest.raises(ValueError, match="another input_file than"):
        build(text, shares, "finish")
    Path(text.path).write_text(changed.read_text())  # in its place, and of the same size
    try:
        build(text, shares, "1/2")
    finally:
        Path(text.path).write_text(words)
    with pytest.raises(ValueError, match="got another one in 1/2 than in 0/2"):
        build(text, shares, "finish")
    build(text, shares, "1/2")
    build(text, shares, "finish")
    ours, theirs = contents(shares), dict(expected)
    ours.pop("a.manifest.json"), theirs.pop("a.manifest.json")  # the time of the text's change
    assert ours == theirs


def test_one_machine_does_not_build_over_the_parts_of_several(text, shares, expected):
    with pytest.raises(ValueError, match="got none, with 0/2, 1/2 in .*a.building. Give --build"):
        build(text, shares)


def test_no_part_is_finished_or_removed_while_its_process_works(text, shares):
    with locks.exclusive(shares / "a.building/1-of-2"):
        for part in "1/2", "finish":
            with pytest.raises(ValueError, match="Another process works in .*1-of-2"):
                build(text, shares, part)
        build(text, shares, "0/2")


def test_no_part_begins_while_another_process_finishes(text, shares, expected):
    before = contents(shares / "a.building/1-of-2")
    other = dataclasses.replace(SETTINGS, dupe_factor=1)
    message = "Another process works in .*a.building"
    with locks.exclusive(shares / "a.building"), pytest.raises(ValueError, match=message):
        build(text, shares, "1/2", other)
    with locks.exclusive(shares / "a.building"), pytest.raises(ValueError, match=message):
        build(text, shares, "1/3")
    assert not (shares / "a.building/1-of-3").exists()
    assert contents(shares / "a.building/1-of-2") == before
    build(text, shares, "finish")
    assert contents(shares) == expected


def test_a_part_that_begins_when_the_others_are_collected_is_waited_for(text, shares, monkeypatch):
    collect = build_shares.collect
    with contextlib.ExitStack() as stack:

        def and_one_begins(*arguments):
            found = collect(*arguments)
            stack.enter_context(locks.exclusive(shares / "a.building/1-of-2"))
            return found

        monkeypatch.setattr(build_shares, "collect", and_one_begins)
        with pytest.raises(ValueError, match="Another process works in .*1-of-2"):
            build(text, shares, "finish")
    assert not (shares / "a.manifest.json").exists()


def test_a_finished_build_leaves_the_parts_of_another_one(text, tmp_path):
    build(text, tmp_path)
    build(text, tmp_path, "0/2", row_filling="packed")
    of_packed = contents(tmp_path / "a.building/0-of-2")
    build(text, tmp_path)  # up to date
    build(text, tmp_path, "1/2")
    assert contents(tmp_path / "a.building/0-of-2") == of_packed


def test_finishing_again_has_nothing_to_do_even_if_the_times_of_the_text_are_others(
    text, shares, expected
):
    part = contents(shares / "a.building/1-of-2")
    made = build(text, shares, "finish")
    (shares / "a.building/1-of-2").mkdir(parents=True)  # as if killed while it removed the parts
    for name, content in part.items():
        (shares / "a.building/1-of-2" / name).write_bytes(content)
    status = os.stat(text.path)
    os.utime(text.path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    try:
        again = build(text, shares, "finish")
    finally:
        os.utime(text.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert {**again, "seconds": 0} == {**made, "seconds": 0}
    assert contents(shares) == expected


def changed_in_place(text, tmp_path):
    """A copy of the text, and a function that changes it without a change of its size."""
    path = tmp_path / "text.txt"
    path.write_bytes(Path(text.path).read_bytes())
    return text._replace(path=str(path)), lambda: path.write_text(
        path.read_text().replace("the", "teh", 1)
    )


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_part_of_changed_text_after_a_finished_build_is_not_taken_for_done(
    text, tmp_path, stopped, is_whole
):
    text, change = changed_in_place(text, tmp_path)
    for part in "0/2", "1/2", "finish":
        build(text, tmp_path / "a", part)
    change()
    if is_whole:
        build(text, tmp_path / "a", "0/2")
    else:
        with pytest.raises(KeyboardInterrupt), stopped(build_worker.Part):
            build(text, tmp_path / "a", "0/2")
    missing = "1/2" if is_whole else "0/2, 1/2"
    with pytest.raises(
        ValueError, match=f"must find all 2 parts; got all but {missing}, not begun"
    ):
        build(text, tmp_path / "a", "finish")
    for part in "0/2", "1/2", "finish":
        build(text, tmp_path / "a", part)
    build(text, tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_part_of_other_settings_after_a_finished_build_is_not_taken_for_done(shares, text):
    build(text, shares, "finish")
    build(text, shares, "1/2", row_filling="packed")
    build(text, shares, "0/2")  # which the manifest alone would take for done
    with pytest.raises(ValueError, match="got 1/2 with another row_filling than this command"):
        build(text, shares, "finish")


def test_finishing_again_says_that_the_text_has_another_time(text, tmp_path):
    text, change = changed_in_place(text, tmp_path)
    for part in "0/2", "1/2", "finish":
        build(text, tmp_path / "a", part)
    said = []
    build(text, tmp_path / "a", "finish", report=said.append)
    change()
    build(text, tmp_path / "a", "finish", report=said.append)
    warned = ["the files of the text were changed or copied" in line for line in said]
    assert warned == [False, True]


def test_killed_while_it_removed_the_parts_it_has_nothing_to_do(shares, text, monkeypatch):
    def remove_a_note(folder):
        (folder / "1-of-2/share.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(record_builder.shutil, "rmtree", remove_a_note)
        build(text, shares, "finish")
    assert build(text, shares, "finish")["seconds"] == 0
    assert not (shares / "a.building").exists()


@pytest.mark.parametrize("part", ["", "0/2", "1/2", "finish"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.building", "for a folder of parts; got a file"),
        ("a.building/0-of-2", "for a folder of parts; got a file"),
        ("a.building@", "for a folder of parts; got a link"),
        ("a.manifest.json/", "for a file of the build; got a folder"),
        ("a.tfrecord-00001-of-00003/", "for a file of the build; got a folder"),
    ],
)
def test_what_is_in_the_way_of_a_build_is_named_before_anything_is_written(
    text, tmp_path, part, name, message
):
    path = tmp_path / name.rstrip("@")
    path.parent.mkdir(exist_ok=True)
    if name.endswith("@"):
        path.symlink_to(tmp_path)
    elif name.endswith("/"):
        path.mkdir()
    else:
        path.write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=f"^output_file must leave the name {path} {message} th"):
        build(text, tmp_path, part)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("part", ["2/2", "-1/2", "1", "1/0", "finished", "0/2/3", "a/b", "٣/٤"])
def test_a_part_that_is_none_is_refused(part):
    with pytest.raises(ValueError, match="build_part must be i/n, from 0/n to n-1/n"):
        build_shares.parse(part)


def test_one_random_stream_has_no_parts(text, tmp_path):
    with pytest.raises(ValueError, match="build_part must be left out with one_random_stream"):
        build(text, tmp_path, "0/2", one_random_stream=True)
