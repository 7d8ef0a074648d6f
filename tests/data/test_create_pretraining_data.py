"""The commands: official flags, progress and summary, one line for each mistake."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import in_process
import pytest
from small_text import topics

from official_bert import create_pretraining_data as command
from official_bert.data import corpus, manifest, record_builder, tokenization
from official_bert.data.instances import Settings
from official_bert.learn_vocabulary import learn_vocabulary

ROOT = Path(__file__).parents[2]


def run(*arguments, module="create_pretraining_data", script=False) -> subprocess.CompletedProcess:
    how = [f"official_bert/{module}.py"] if script else ["-m", f"official_bert.{module}"]
    return subprocess.run(
        [sys.executable, *how, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT
    )


def without_progress(said):
    """The lines of stderr without those on progress, which come every few seconds."""
    return [line for line in said.splitlines() if not re.search(r"MB/s .* left$", line)]


def flags(small_text, tmp_path, **values):
    values = {
        "input_file": small_text.path,
        "output_file": tmp_path / "out" / "a.tfrecord",
        "vocab_file": small_text.vocab_file,
        "dupe_factor": 1,
    } | values
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def test_the_fields_of_the_settings_are_arguments_of_the_function_too(small_text, tmp_path):
    form = {"max_seq_length": 32, "max_predictions_per_seq": 5, "row_filling": "packed"}
    for name, given in {
        "a": {"settings": Settings(**form, dupe_factor=1)},
        "b": form | {"dupe_factor": 1},
        "c": {"settings": Settings(**form), "dupe_factor": 1},
    }.items():
        small_text.build(tmp_path / f"{name}.tfrecord", **given)
    first, *others = (path.read_bytes() for path in sorted(tmp_path.glob("*.tfrecord")))
    assert others == [first, first]


def test_text_to_vocabulary_to_records_by_two_commands(small_text, tmp_path):
    vocab_file = tmp_path / "vocab.txt"
    learned = run(
        f"--input_file={small_text.path}",
        f"--vocab_file={vocab_file}",
        "--vocab_size=500",
        module="learn_vocabulary",
        script=True,
    )
    assert learned.returncode == 0, learned.stderr
    assert len(tokenization.read_vocabulary(str(vocab_file))) == 500
    official = {
        "do_lower_case": True,
        "do_whole_word_mask": True,
        "max_ngram_size": 3,
        "gzip_compress": True,
        "use_v2_feature_names": True,
        "max_seq_length": 64,
        "max_predictions_per_seq": 10,
        "random_seed": 5,
        "dupe_factor": 2,
        "masked_lm_prob": 0.2,
        "short_seq_prob": 0.2,
        "vocab_file": vocab_file,
    }
    made = run(*flags(small_text, tmp_path, **official, num_shards=2, num_workers=2), script=True)
    assert made.returncode == 0, made.stderr
    assert "MB/s" in made.stderr
    assert "padding" in made.stderr
    described = json.loads((tmp_path / "out/a.manifest.json").read_text())
    del official["vocab_file"]
    assert official.items() <= described["settings"].items()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vocab_file": "nowhere.txt"}, "vocab_file must be an existing file; got 'nowhere.txt'"),
        (
            {"input_file": "nowhere/*.txt"},
            "input_file must match at least one file; got 'nowhere/*.txt'",
        ),
        ({"input_file": "BUILD,"}, "input_file must be one or more names, separated by single"),
        ({"max_ngram_size": 3}, "max_ngram_size must be 1 without --do_whole_word_mask; got 3"),
        ({"max_seq_length": 2}, "--max_seq_length must be at least 8 and at most 65,536; got 2."),
        ({"num_workers": -1}, "--num_workers must be at least 0; got -1. 0 is one"),
        ({"num_shards": 100_000}, "num_shards must be at most 99,999; got 100,000"),
        (
            {"num_shards": 90_000, "dupe_factor": 1},
            "num_shards must be at most the number of records, which is",
        ),
        ({"masked_lm_prob": 15}, "--masked_lm_prob must be at least 0 and below 1; got 15. 15 %"),
        ({"max_ngram_size": 0}, "--max_ngram_size must be at least 1; got 0."),
        ({"output_file": "tests"}, "output_file must be the path of a file to write; got 'tests'"),
        ({"output_file": "tests/", "num_shards": 2}, "output_file must be the path of a file to"),
        ({"output_file": "BUILD/a"}, "output_file must be in a folder that can be written to"),
        ({"output_file": "/proc/none/a"}, "output_file must be in a folder that can be written to"),
        ({"output_file": "a,b/c"}, "output_file must name different files in one folder"),
    ],
)
def test_a_mistake_ends_with_one_clear_line_and_an_exit_code(
    small_text, tmp_path, monkeypatch, capsys, wrong, message
):
    monkeypatch.chdir(ROOT)
    arguments = flags(small_text, tmp_path, **wrong)
    assert in_process.call(command, command.CreateData, arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"create_pretraining_data: error: {message}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def create(small_text, tmp_path, text: bytes, settings: Settings | None = None, **options):
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    options = {"num_workers": 1, "vocab_file": small_text.vocab_file} | options
    return command.create_pretraining_data(
        str(path),
        str(tmp_path / "out/a.tfrecord"),
        settings=settings or Settings(dupe_factor=1),
        **options,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "input_file must contain text; got none in"),
        (b"\n \n\n", "input_file must contain text; got none in"),
        (b'{"text": null}\n' * 2, r"got none in .*\. Left out 2 rows whose text is null\. Check"),
        ("漢字かな交じり文。\n".encode() * 20, "must fit the text; .* first .* tokens are .UNK"),
        (b"caf\xe9\n", "line 1 must be UTF-8"),
    ],
)
def test_text_that_cannot_be_used_is_refused_before_the_work(small_text, tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        create(small_text, tmp_path, text)
    assert not (tmp_path / "out").exists()


def test_a_cased_vocabulary_is_refused_unless_case_is_kept(small_text, tmp_path):
    cased = tmp_path / "cased.txt"
    cased.write_text(f"{Path(small_text.vocab_file).read_text().rstrip()}\nThe\nT\n")
    with pytest.raises(ValueError, match=r"must be off for a cased vocabulary; got .* with 'T'"):
        create(small_text, tmp_path, b"The.\n", vocab_file=str(cased), do_lower_case=True)
    assert not (tmp_path / "out").exists()


def test_bytes_that_are_no_text_in_the_middle_lose_nothing(small_text, tmp_path, monkeypatch):
    monkeypatch.setattr("official_bert.data.corpus.BLOCK_BYTES", 20_000)
    good = Path(small_text.path).read_bytes()
    with pytest.raises(ValueError, match="must be UTF-8"):
        create(small_text, tmp_path, good + b"\n\ncaf\xe9\n")
    parts = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out/a.building").glob("part*.json")}
    assert len(parts) > 5
    monkeypatch.setattr("official_bert.data.record_builder.remove_parts", lambda *_: None)
    create(small_text, tmp_path, good + b"\n\ncaf\n")
    again = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out/a.building").glob("part*.json")}
    assert sum(again.get(name) == time for name, time in parts.items()) >= len(parts) - 1


def test_lines_that_cannot_be_read_are_left_out_on_request_counted_and_named(small_text, tmp_path):
    good = b'{"text": "The value of a name."}\n{"text": "Another name, another value."}\n' * 20
    bad = [b'{"text": "half \\ud800 of a pair"}', b'{"text": "cut', b'{"body": "x"}', b"caf\xe9"]
    bad += [b"[]", b'{"text": 5}']
    text = good + b"\n".join(bad) + b"\n" + good
    options = {"num_workers": 1, "input_format": "jsonl"}
    for line in bad:
        with pytest.raises(ValueError, match="line 1 .* Give --skip_bad_lines"):
            create(small_text, tmp_path, line + b"\n" + good, **options)
    lines = []
    made = create(small_text, tmp_path, text, report=lines.append, skip_bad_lines=True, **options)
    assert (made["documents"], made["bad_lines"]) == (80, 6)
    with pytest.raises(ValueError, match="line 41 .* Give --skip_bad_lines"):  # not up to date
        create(small_text, tmp_path, text, **options)
    assert "warning: left out 6 unreadable lines. The first: " in lines[-1]
    assert (
        "text.txt, line 41 must have valid Unicode in 'text'; got half of a surrogate" in lines[-1]
    )
    said = []
    file = str(tmp_path / "new/vocab.txt")
    (tmp_path / "new").mkdir()
    reading = {"input_format": "jsonl", "skip_bad_lines": True, "vocab_size": 100}
    learn_vocabulary(str(tmp_path / "text.txt"), file, report=said.append, **reading)
    assert said[-1].startswith("warning: left out 6 unreadable lines")


def test_duplicate_documents_are_counted_and_dropped_on_request(small_text, tmp_path):
    text = b"The same words again.\nAnd some more.\n\n" * 3 + b"Other words.\n"
    counted = create(small_text, tmp_path, text)
    dropped = create(small_text, tmp_path, text, drop_duplicate_documents=True)
    assert (counted["documents"], counted["duplicate_documents"]) == (4, 2)
    assert (dropped["documents"], dropped["duplicate_documents"]) == (2, 2)


def one_document_a_line(count: int) -> bytes:
    return "".join(" ".join(document) + "\n" for document in topics(count)).encode()


@pytest.mark.parametrize("dynamic", [False, True])
def test_long_lines_are_cut_not_dropped_and_the_summary_says_so(small_text, tmp_path, dynamic):
    lines = []
    options = {"dynamic_masking": dynamic, "report": lines.append}
    made = create(small_text, tmp_path, one_document_a_line(8), **options)
    assert made["long_sentences"] == made["sentences"] == 8
    assert made["dropped_tokens"] < 0.05 * made["text_tokens"]
    assert made["tokens"] - 3 * made["sequences"] > 0.95 * made["text_tokens"]
    said = "\n".join(lines)
    written = made["text_tokens"] - made["dropped_tokens"]
    assert f"{made['text_tokens']:,} tokens read, {written:,} written" in said
    assert "; sentences longer than a sequence: 8\n" in said
    assert "% of the text is in lines that look like three sentences or more" in said
    assert "--input_format=paragraphs" in said


def test_a_text_of_sentences_is_built_without_a_warning(small_text, tmp_path):
    lines = []
    options = {"input_format": "paragraphs", "report": lines.append}
    made = create(
        small_text, tmp_path, Path(small_text.path).read_bytes(), Settings(dupe_factor=5), **options
    )
    assert made["dropped_tokens"] < 0.01 * made["text_tokens"]
    assert "warning" not in "\n".join(lines)


def test_paragraphs_that_fit_a_sequence_are_told_from_sentences_too(small_text, tmp_path):
    lines = []
    text = ("A line begins. It goes on with more words. And so it ends.\n" * 5 + "\n") * 20
    made = create(small_text, tmp_path, text.encode(), Settings(dupe_factor=5), report=lines.append)
    assert made["long_sentences"] == 0
    assert "warning: 100% of the text is in lines that look like three sentences" in lines[-1]
    assert "--input_format=paragraphs" in lines[-1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_sentences_longer_than_a_short_sequence_are_no_paragraphs(small_text, tmp_path, dynamic):
    documents = corpus.Corpus([small_text.path], "paragraphs").documents()
    text = "\n\n".join("\n".join(corpus.sentences(document)) for document in documents)
    lines = []
    options = {"dynamic_masking": dynamic, "report": lines.append, "allow_dropped_text": True}
    settings = Settings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=5)
    made = create(small_text, tmp_path, text.encode(), settings, **options)
    assert made["long_sentence_tokens"] > 0.5 * made["text_tokens"]
    assert "look like three sentences" not in "\n".join(lines)


BOOKS = ["The value of a name is given to a name.\n" * 1_000, "Another book.\n" * 3_000]
SENTENCES = [f"The value {n} is given to a name." for n in range(400)]
CUT = ("One word and another. " * 10 + "\n") * 150 + "\n"
ONE_DOCUMENT, FULL_BLOCKS = "the text is a single document", "documents that each fill a block"


@pytest.mark.parametrize(
    ("text", "dynamic", "warning", "is_warned"),
    [
        *(("\n".join(SENTENCES), dynamic, ONE_DOCUMENT, True) for dynamic in (False, True)),
        *(("\n\n".join(SENTENCES), dynamic, ONE_DOCUMENT, False) for dynamic in (False, True)),
        ("\n".join(BOOKS), False, FULL_BLOCKS, True),
        ("\n".join(BOOKS), True, FULL_BLOCKS, False),
        ("The value 漢 is given to a name.\n\n" * 200, False, r"tokens are \[UNK\]: the voc", True),
        (CUT * 2, False, "in no record: sentences have 80 tokens on average.* --dupe_factor", True),
    ],
    ids=range(8),
)
def test_text_that_teaches_little_is_warned_of_with_the_likely_cause(
    small_text, tmp_path, monkeypatch, text, dynamic, warning, is_warned
):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 20_000)
    lines = []
    options = {"dynamic_masking": dynamic, "report": lines.append, "allow_unfit_text": True}
    made = create(small_text, tmp_path, text.encode(), **options)
    assert bool(re.search(f"\nwarning: .*{warning}", lines[-1])) == is_warned
    assert (0.1 < made["dropped_tokens"] / made["text_tokens"] < 0.5) == text.startswith("One")


def test_over_half_of_the_text_dropped_is_refused_unless_it_is_allowed(small_text, tmp_path):
    text, options = one_document_a_line(8), {"one_random_stream": True}
    with pytest.raises(
        ValueError,
        match=r"input_file must lose at most 50% .*; got 9\d\.\d% of .* in no record: 8 of 8",
    ):
        create(small_text, tmp_path, text, **options)
    assert not list((tmp_path / "out").glob("a.tfrecord*"))
    made = create(small_text, tmp_path, text, allow_dropped_text=True, **options)
    assert made["dropped_tokens"] > 0.9 * made["text_tokens"]
    assert (tmp_path / "out/a.tfrecord").exists()


def test_one_stream_that_the_memory_cannot_hold_is_refused_before_the_work(
    small_text, tmp_path, monkeypatch
):
    text = Path(small_text.path).read_bytes()
    monkeypatch.setattr("official_bert.system.memory.available", lambda: len(text))
    with pytest.raises(
        ValueError, match=r"one_random_stream must be off .* 7 times its records, .* Without it"
    ):
        create(small_text, tmp_path, text, Settings(dupe_factor=7), one_random_stream=True)
    assert not (tmp_path / "out").exists()
    assert create(small_text, tmp_path, text)["sequences"]


def test_a_full_disk_is_refused_before_the_work(small_text, tmp_path, monkeypatch):
    import collections

    usage = collections.namedtuple("usage", "total used free")(10, 10, 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(
        ValueError, match="output_file must be on a disk with room for about .* GB of records; got"
    ):
        create(small_text, tmp_path, Path(small_text.path).read_bytes())


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/shm"), reason="needs a mount")
def test_a_disk_that_fills_up_ends_with_one_line_and_the_parts_stay(small_text, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)])
    if mounted.returncode:
        pytest.skip("cannot mount a small disk")
    try:
        output = disk / "a.tfrecord"
        values = {"output_file": output, "num_workers": 1, "dupe_factor": 10}
        made = run(*flags(small_text, tmp_path, **values))
        assert made.returncode == 2
        assert "No space left on device" in made.stderr
        assert len(without_progress(made.stderr)) == 1
        assert not output.exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_progress_tells_rate_and_time_left(small_text, tmp_path, monkeypatch):
    monkeypatch.setattr("official_bert.data.corpus.BLOCK_BYTES", 20_000)
    monkeypatch.setattr(record_builder, "SECONDS_BETWEEN_LINES", 0.0)
    lines = []
    create(small_text, tmp_path, Path(small_text.path).read_bytes(), report=lines.append)
    assert len(lines) > 5
    assert all("MB/s" in line and "left" in line for line in lines[:-1])
    assert "documents" in lines[-1]


@pytest.mark.parametrize(
    ("seconds", "done", "left"),
    [(100, 1.000001, "0 min 00 s"), (100, 0.5, "1 min 40 s"), (59.6, 0.5, "1 min 00 s")],
)
def test_the_time_left_is_whole_seconds_and_never_less_than_none(monkeypatch, seconds, done, left):
    monkeypatch.setattr(record_builder, "SECONDS_BETWEEN_LINES", 0.0)
    lines = []
    source = SimpleNamespace(share_read=done, text_bytes=1000)
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    progress = record_builder.Progress(source, lines.append)
    monkeypatch.setattr("time.monotonic", lambda: seconds)
    progress(1000, 10)
    assert lines[0].endswith(f"  {left} left")


@pytest.mark.parametrize(("workers", "most"), [(500, 8), (3, 3), (0, 2)])
def test_no_more_processes_are_started_than_there_is_work_or_cores_for(
    small_text, tmp_path, monkeypatch, worker_processes, workers, most
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    started = []
    start = subprocess.Popen

    def count(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr("subprocess.Popen", count)
    text = Path(small_text.path).read_bytes()
    create(small_text, tmp_path, text, num_workers=workers, num_shards=4)
    assert len(started) <= 4  # one block, four shards
    monkeypatch.setattr("official_bert.data.corpus.BLOCK_BYTES", 5_000)
    started.clear()
    create(small_text, tmp_path, text, num_workers=workers, num_shards=4)
    assert 1 <= len(started) <= most


# The command with workers that take their time, so that a build cannot end unseen.
SLOW_COMMAND = """
import time
import unicodedata
from official_bert import create_pretraining_data
from official_bert.data import record_builder
ask = record_builder._ask
record_builder._ask = lambda *task: (ask(*task), time.sleep(2))[0]
main, settings = create_pretraining_data.main, create_pretraining_data.CreateData
create_pretraining_data.commands.run(main, settings)
"""


def test_ctrl_c_ends_with_one_line_and_the_next_run_goes_on(small_text, tmp_path):
    arguments = flags(small_text, tmp_path, num_workers=2)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_COMMAND, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        # As in a terminal, also where the tests run in a shell's background, which ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    building = tmp_path / "out/a.building"
    while process.poll() is None and not list(building.glob("part-*.json")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    *progress, last = said.splitlines()
    assert last == "create_pretraining_data: interrupted; run the same command again to resume."
    assert all(line.endswith(" left") for line in progress)
    assert run(*arguments).returncode == 0
    assert not building.exists()


@pytest.fixture
def inputs(small_text, tmp_path):
    """The contents of a folder with a text and a vocabulary, and links to them."""
    for name, path in zip(("text.txt", "vocab.txt"), small_text, strict=True):
        (tmp_path / name).write_bytes(Path(path).read_bytes())
    (tmp_path / "soft.txt").symlink_to("text.txt")
    os.link(tmp_path / "text.txt", tmp_path / "hard.txt")
    (tmp_path / "soft_vocab.txt").symlink_to("vocab.txt")
    return {path.name: path.read_bytes() for path in sorted(tmp_path.iterdir())}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"output_file": "text.txt"}, "output_file must not overwrite .* of input_file"),
        ({"output_file": "soft.txt"}, "output_file must not overwrite .* of input_file"),
        ({"output_file": "hard.txt"}, "output_file must not overwrite .* of input_file"),
        ({"output_file": "new,text.txt"}, "output_file must not overwrite .* of input_file"),
        ({"output_file": "vocab.txt"}, "output_file must not overwrite .* of vocab_file"),
        ({"output_file": "soft_vocab.txt"}, "output_file must not overwrite .* of vocab_file"),
        ({"input_file": "text.txt,soft_vocab.txt"}, "must not overwrite an input"),
        ({"input_file": "*.txt"}, "vocab_file must not overwrite .* of input_file"),
        ({"input_file": "."}, "must not overwrite an input"),
        ({"input_file": "t*", "output_file": "t.tfrecord"}, "which would read it as text"),
        ({"input_file": "te*", "output_file": "texts/t"}, "which would read it as text"),
    ],
)
def test_an_output_that_is_an_input_is_refused_and_all_stays_as_it_was(
    inputs, tmp_path, monkeypatch, wrong, message
):
    monkeypatch.chdir(tmp_path)
    given = {"input_file": "text.txt", "output_file": "out/a", "vocab_file": "vocab.txt"} | wrong
    with pytest.raises(ValueError, match=message):
        command.create_pretraining_data(**given, num_workers=1)
    assert {path.name: path.read_bytes() for path in sorted(tmp_path.iterdir())} == inputs


@pytest.mark.parametrize("name", ["text.txt", "soft.txt", "hard.txt"])
def test_a_vocabulary_is_not_learned_over_its_text(inputs, tmp_path, name):
    with pytest.raises(ValueError, match="vocab_file must not overwrite .* of input_file"):
        learn_vocabulary(str(tmp_path / "text.txt"), str(tmp_path / name), vocab_size=300)
    with pytest.raises(
        ValueError, match="must not match input_file=.*, which would read it as text"
    ):
        learn_vocabulary(str(tmp_path), str(tmp_path / "new.txt"), vocab_size=300)
    assert {path.name: path.read_bytes() for path in sorted(tmp_path.iterdir())} == inputs


def test_options_without_effect_on_the_text_are_warned_of_and_leave_no_trace(small_text, tmp_path):
    text, said = Path(small_text.path).read_bytes()[:20_000], []
    create(small_text, tmp_path, text, report=said.append, language="de", json_field="body")
    found = [line for line in said if line.startswith("warning: --")]
    assert [line.split("=")[0] for line in found] == [
        "warning: --text_field",
        "warning: --language",
    ]
    settings = json.loads((tmp_path / "out/a.manifest.json").read_text())["settings"]
    assert (settings["language"], settings["json_field"]) == ("en", "text")


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_line_documents_fill_rows_and_any_number_of_workers_writes_the_same(
    small_text, tmp_path, dynamic
):
    lines = [line for line in Path(small_text.path).read_text().splitlines() if line][:300]
    text = tmp_path / "lines.txt"
    text.write_text("\n\n".join(line[:80] for line in lines) + "\n")
    made = []
    for workers in (1, 2):
        records = tmp_path / f"{workers}.tfrecord"
        settings = Settings(64, 10, dupe_factor=1, row_filling="full")
        options = {"dynamic_masking": dynamic, "num_workers": workers}
        summary = small_text._replace(path=str(text)).build(records, settings, **options)
        made.append(records.read_bytes())
    assert made[0] == made[1]
    assert summary["dropped_tokens"] == 0
    assert summary["tokens"] / (64 * summary["sequences"]) > 0.98


def test_records_of_documents_are_described_as_before_rows_could_be_filled(small_text, tmp_path):
    paths = {filling: str(tmp_path / f"{filling}.tfrecord") for filling in ("documents", "full")}
    for filling, path in paths.items():
        small_text.build(path, Settings(64, 10, dupe_factor=1, row_filling=filling))
    made = {name: manifest.read(manifest.path_for([path])) for name, path in paths.items()}
    assert "row_filling" not in made["documents"]["settings"]
    assert made["full"]["settings"]["row_filling"] == "full"


# Text that would ruin a training: (text, settings, what is said, whether it is an error).
MANY_SENTENCES = [f"Sentence {n} has the word value{n} in it." for n in range(300)]
PAIRS = ["\n".join(MANY_SENTENCES[n : n + 2]) for n in range(0, 300, 2)]
TITLES, GOOD, TWICE = map("\n\n".join, (MANY_SENTENCES, PAIRS, PAIRS[:50] * 2))
COPIES = "\n\n".join(PAIRS[:1] * 199 + PAIRS[1:2])
NOTICES = "\n\n".join(f"{p}\nThis site uses cookies to improve what it shows." for p in PAIRS)
HARM = {
    "blank lines": (TITLES, {}, "every next-sentence label is 1, and .* padd", 1),
    "titles": (TITLES, {"dynamic_masking": True}, "single sentence, so ..% ", 0),
    "duplicates": (COPIES, {}, "9.% of the text (in|is in) documents", 1),
    "some": (TWICE, {}, "50% of the text is in documents that occurred be", 0),
    "dropped": (TWICE, {"drop_duplicate_documents": True}, None, 0),
    "notices": (NOTICES, {}, "lines that are in .*This site", 0),
    "no case": (GOOD, {"do_lower_case": False}, "and the vocabulary none", 1),
    "no token": ("\u200b\u200b\n\u200b\n\n" * 9, {}, "lines or more of characters that the t", 2),
    "good": (GOOD, {}, None, 0),
}


@pytest.mark.parametrize("case", HARM)
def test_text_that_would_ruin_a_training_is_not_taken_in_silence(
    small_text, tmp_path, monkeypatch, case
):
    from official_bert.data import coverage, fit

    monkeypatch.setattr(fit, "MANY", 100)
    monkeypatch.setattr(coverage, "MOSTLY_UNKNOWN", 1.0)
    text, options, message, errors = HARM[case]
    options = {"drop_duplicate_documents": False} | options
    if errors:
        with pytest.raises(ValueError, match=message) as error:
            create(small_text, tmp_path, text.encode(), **options)
        assert not list((tmp_path / "out").glob("a.tfrecord*"))
        assert ("--allow_unfit_text to continue" in str(error.value)) == (errors == 1)
        if errors == 2:
            return
    lines = []
    options |= {"report": lines.append, "allow_unfit_text": True}
    create(small_text, tmp_path, text.encode(), **options)
    warned = json.loads((tmp_path / "out/a.manifest.json").read_text())["warnings"]
    assert [f"warning: {line}" for line in warned] == lines[-1].splitlines()[4:]
    assert bool(warned) == bool(message)
    assert not message or re.search(message, "\n".join(warned))
    paths = str(tmp_path / "text.txt"), str(tmp_path / "out/a.tfrecord"), small_text.vocab_file
    command.create_pretraining_data(*paths, Settings(dupe_factor=1), num_workers=1, **options)
    up_to_date, *again = lines[-1].splitlines()
    assert up_to_date.endswith("is up to date: nothing to do.")
    assert again == [f"warning: {line}" for line in warned]


def test_a_cased_vocabulary_for_text_without_capitals_is_warned_of(small_text, tmp_path):
    cased = tmp_path / "cased.txt"
    cased.write_text(f"{Path(small_text.vocab_file).read_text().rstrip()}\nThe\nT\nS\n")
    for text, is_warned in (GOOD.lower(), True), (GOOD, False):
        lines = []
        options = {"vocab_file": str(cased), "report": lines.append}
        create(small_text, tmp_path, text.encode(), **options)
        assert ("100% of the lines are without a capital letter" in lines[-1]) == is_warned


def test_text_in_nfd_is_warned_of_if_the_vocabulary_is_of_nfc(tmp_path, small_text):
    plain = "Der Wind weht heute stark, und das Haus am Bach ist noch leer, als die Uhr zwei zeigt"
    text = "".join(f"{plain} in Köln {n}.\n{plain} für Zoë.\n\n" for n in range(60))
    apart = unicodedata.normalize("NFD", text)
    for source, vocabulary, is_warned in (
        (apart, text, True),
        (text, text, False),
        (apart, apart, False),
    ):
        vocab_file = str(tmp_path / "v.txt")
        tokenization.learn(vocabulary.splitlines(), vocab_file, 300, do_lower_case=False)
        lines = []
        options = {"vocab_file": vocab_file, "report": lines.append, "do_lower_case": False}
        create(small_text, tmp_path / "made", source.encode(), **options)
        assert ("letters and accents apart (NFD)" in lines[-1]) == is_warned
    text = "Öäü ëïâ éèê.\nÂêî ôûñ.\n\n" * 9
    tokenization.learn(text.splitlines(), vocab_file, 300, do_lower_case=False)
    options = {"vocab_file": vocab_file, "do_lower_case": False}
    with pytest.raises(
        ValueError, match=r"are .UNK.\. .* are apart \(NFD\): write the text in NFC"
    ):
        create(small_text, tmp_path, unicodedata.normalize("NFD", text).encode(), **options)
