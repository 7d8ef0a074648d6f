"""Reading text: every format and compression gives the same documents; errors name the line."""

import bz2
import contextlib
import csv
import gzip
import json
import lzma
import os
import random
import re
import shutil
import sys
import tempfile
import tracemalloc
from pathlib import Path

import peers
import pytest
import sentencex

from official_bert.data import corpus, text_files
from official_bert.data.record_files import RecordFiles

DOCUMENTS = [["First sentence.", "Second one – with a dash."], ["Another document."]]


def text_of(form: str) -> str:
    if form == "jsonl":
        return "".join(json.dumps({"id": 1, "text": "\n\n".join(d)}) + "\n" for d in DOCUMENTS)
    if form == "wikiextractor":
        page = '<doc id="{0}" url="u" title="T{0}">\nT{0}\n\n{1}\n</doc>\n'
        return "".join(page.format(n, "\n".join(d)) for n, d in enumerate(DOCUMENTS))
    return "\n\n\n".join("\n".join(d) for d in DOCUMENTS) + "\n"


def lines_of(paths, **options):
    return [document.lines for document in corpus.Corpus([*map(str, paths)], **options).documents()]


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.txt", "sentences"), ("a.jsonl", "jsonl"), ("AA", "jsonl"), ("wiki_00", "wikiextractor")],
)
@pytest.mark.parametrize(
    ("ending", "compress"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_forms_and_compressions_are_found_out(tmp_path, name, form, ending, compress):
    path = tmp_path / (name + ending)
    path.write_bytes(compress(text_of(form).encode()))
    found = list(corpus.Corpus([str(path)]).documents())
    assert [document.lines for document in found] == DOCUMENTS
    assert all(document.split == (form != "sentences") for document in found)


def test_a_file_ends_a_document_and_a_byte_order_mark_is_no_text(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("\ufeffText.", encoding="utf-8")
    assert lines_of([tmp_path / "a", tmp_path / "b"]) == [["Text."], ["Text."]]


def test_paragraphs_are_split_and_sentences_are_not():
    lines = ["Dr. Smith came at 5 p.m. He left at once.", "It rained."]
    split = corpus.sentences(corpus.Document(lines, split=True))
    assert split == ["Dr. Smith came at 5 p.m.", "He left at once.", "It rained."]
    assert corpus.sentences(corpus.Document(lines, split=False)) == lines


def test_files_globs_and_folders_are_found_once_and_sorted(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/.hidden"):
        (tmp_path / name).write_text("x")
    names = [f"{tmp_path}/{name}" for name in ("a.txt", "b.txt", "sub/c.txt")]
    assert corpus.find_files(str(tmp_path)) == names
    assert corpus.find_files(f"{tmp_path}/*.txt,{tmp_path}/sub") == names
    assert corpus.find_files([f"{tmp_path}/b.txt", f"{tmp_path}/*.txt"]) == [names[1], names[0]]


def test_links_to_folders_are_followed_and_a_file_under_two_names_is_read_once(tmp_path):
    (tmp_path / "texts/real").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for name in ("texts/real/a.txt", "elsewhere/b.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "texts/link").symlink_to("../elsewhere")
    (tmp_path / "texts/real/circle").symlink_to("..")
    (tmp_path / "texts/same.txt").symlink_to("real/a.txt")
    names = [f"{tmp_path}/texts/{name}" for name in ("link/b.txt", "real/a.txt")]
    assert corpus.find_files(str(tmp_path / "texts")) == names
    assert corpus.find_files([names[1], f"{tmp_path}/texts/./same.txt"]) == names[1:]


@pytest.mark.parametrize(
    ("pattern", "output"),
    [("texts", "link/new"), ("link", "texts/sub/new"), ("texts", "far/new"), ("li*", "texts/a/b")],
)
def test_an_output_is_found_among_the_inputs_through_links(tmp_path, pattern, output):
    (tmp_path / "texts/sub").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("texts")
    (tmp_path / "texts/sub/far").symlink_to(tmp_path / "far")
    with pytest.raises(
        ValueError, match="output_file must not match input_file=.*, which would read it as text"
    ):
        corpus.require_outside(
            {"output_file": [str(tmp_path / output)]}, {"input_file": str(tmp_path / pattern)}
        )
    other = {"output_file": [str(tmp_path / "out/new")]}
    corpus.require_outside(other, {"input_file": str(tmp_path / pattern)})


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        ValueError,
        match=r"input_file must be a regular file, because it is read twice; got .*pipe, a pipe",
    ):
        corpus.find_files(str(tmp_path / "pipe"))


@pytest.mark.parametrize("pattern", ["nowhere/*.txt", "nowhere.txt"])
def test_a_pattern_that_matches_nothing_is_named(pattern):
    with pytest.raises(ValueError, match="must match at least one file; got 'nowhere"):
        corpus.find_files(pattern)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("latin.txt", b"good\nna\xefve\n", r"latin\.txt, line 2 must be UTF-8; .*iconv"),
        (
            "cut.txt.gz",
            gzip.compress(b"x" * 10000, mtime=0)[:-9],
            r"cut\.txt\.gz cannot be read after line",
        ),
        ("cut.txt.xz", lzma.compress(bytes(range(256)) * 99)[:-40], r"cut\.txt\.xz"),
        ("no.txt.bz2", b"plain text", r"no\.txt\.bz2 cannot be read after line 0"),
        ("a.jsonl", b'{"text": "good"}\n{"txt": "bad"}\n', r"line 2 .*'txt'.*text_field"),
        ("a.jsonl", b"no json\n", r"line 1 .*invalid JSON \(Expecting value at character 1\). Fix"),
        ("a.jsonl", b'{"text": "a"}\n[1]\n', r"a\.jsonl, line 2 must be .*; got list"),
        ("a.jsonl", b'{"text": 5}\n', r"a\.jsonl, line 1 must have a string in 'text'; got int"),
        ("a.jsonl", b'{"text": "A.", "text": "B."}\n', "line 1 must have one field .text.; got se"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl, line 1 .*surrogate"),
        ("a.jsonl", b'{"text": "a", "n": %b}\n' % (b"9" * 5000), r"a\.jsonl, line 1 must be a"),
        ("a.jsonl", b'{"text": "a", "n": %b\n' % (b"[" * 200_000), r"a\.jsonl, line 1 must be a"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        list(corpus.Corpus([str(path)]).documents())
    assert ("--text_field" in str(error.value)) == bool(re.search("txt'|got int", message))


PACKED = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda text: (  # with the checksum that its command writes
        peers.load("zstandard").ZstdCompressor(write_checksum=True).compress(text)
    ),
}


@pytest.mark.parametrize("ending", PACKED)
def test_all_streams_of_an_archive_are_read(tmp_path, ending):
    streams = [PACKED[ending](f"Text {n}.\n\n".encode()) for n in range(3)]
    path = tmp_path / f"a.txt{ending}"
    for between in b"", bytes(8):  # padding, which the format of xz names
        path.write_bytes(between.join(streams) + between)
        assert lines_of([path]) == [["Text 0."], ["Text 1."], ["Text 2."]]


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("form", ["sentences", "jsonl"])
@pytest.mark.parametrize("stream", [0, 1])
def test_an_archive_damaged_anywhere_is_refused_as_damaged(tmp_path, ending, form, stream):
    rng = random.Random(stream)
    words = (f"word {rng.random()}" for _ in range(1_000))
    line = '{{"text": "{}"}}\n' if form == "jsonl" else "{}\n"
    text = "".join(map(line.format, words)).encode()
    streams = [PACKED[ending](text), PACKED[ending](text)]
    begins, ends = stream * len(streams[0]), (1 + stream) * len(streams[0])
    whole = b"".join(streams)
    path = tmp_path / f"a.txt{ending}"
    damaged = [whole[:at] for at in range(begins + 1, ends, len(streams[0]) // 6)]
    for at in [*range(begins, begins + 4), *range(begins + 16, ends, len(streams[0]) // 6)]:
        damaged.append(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
    damaged += [whole + b"rubbish", b""]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"cannot be read .* damaged or truncated|; got (text|a|an) .*"
        ):
            list(corpus.Corpus([str(path)], form).documents())


def test_zeros_of_a_damaged_archive_are_not_taken_for_another_kind_of_file(tmp_path):
    packed = bytearray(gzip.compress(bytes(1_000) + b"text\n", 0))
    packed[-8:-4] = b"\0\0\0\0"  # the checksum
    (tmp_path / "a.txt.gz").write_bytes(packed)
    with pytest.raises(ValueError, match="the archive is damaged or truncated"):
        list(corpus.Corpus([str(tmp_path / "a.txt.gz")]).documents())


def test_a_link_that_leads_nowhere_is_named_as_such(tmp_path):
    (tmp_path / "a.txt").write_text("Text.")
    (tmp_path / "link.txt").symlink_to("gone.txt")
    for pattern in tmp_path, tmp_path / "*.txt", tmp_path / "link.txt":
        with pytest.raises(ValueError, match=r"link\.txt, a broken link to 'gone\.txt'"):
            corpus.find_files(str(pattern))
    (tmp_path / "link.txt").unlink()
    (tmp_path / "link.txt").symlink_to("link.txt")
    with pytest.raises(ValueError, match=r"link\.txt, a broken link to 'link\.txt'"):
        corpus.find_files(str(tmp_path))


@pytest.fixture
def guarded(request):
    """A folder with a text and a sub-folder of another, which nobody may read."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    (folder / "sub/inner").mkdir(parents=True)
    (folder / "a.txt").write_text("Text.")
    (folder / "sub/b.txt").write_text("More text.")
    (folder / "sub/inner/c.txt").write_text("The rest.")
    folder.chmod(0o755)
    yield folder
    (folder / "sub").chmod(0o755)
    shutil.rmtree(folder)


@contextlib.contextmanager
def with_mode(folder, mode):
    """A folder has this mode, for a user who is not root: that one may read everything."""
    folder.chmod(mode)
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
@pytest.mark.parametrize(
    "pattern", ["", "*", "**", "**/*.txt", "*/*.txt", "*/b.txt", "sub/*.txt", "*/inner", "sub"]
)
def test_a_folder_that_cannot_be_read_is_not_left_out_in_silence(guarded, mode, pattern):
    whole = corpus.find_files(str(guarded / pattern))
    with with_mode(guarded / "sub", mode):
        try:
            assert corpus.find_files(str(guarded / pattern)) == whole
            assert mode == 0o111  # whoever knows the names may read the files
        except ValueError as error:
            assert re.search("/sub.* cannot be (read|listed)", str(error))  # noqa: PT017


def test_records_in_a_folder_that_cannot_be_listed_are_not_left_out_in_silence(guarded):
    message = "/sub is a folder that cannot be listed"
    with with_mode(guarded / "sub", 0), pytest.raises(ValueError, match=message):
        RecordFiles(str(guarded / "*/*.txt"))


@pytest.mark.parametrize(
    ("line", "block_bytes", "sizes"),
    [
        ("x" * 40, 100, [3] * 7 + [4]),  # a rest of one joined the last
        ("中" * 40, 300, [3] * 7 + [4]),  # bytes, not characters
        ("x", 1_000, [10, 15]),  # short documents: by their number
    ],
)
def test_blocks_hold_whole_documents_of_bounded_size_and_no_small_rest(
    monkeypatch, line, block_bytes, sizes
):
    monkeypatch.setattr(corpus, "MAX_DOCUMENTS", 10)
    found = [corpus.Document([line], False) for _ in range(25)]
    blocks = list(corpus.blocks(found, block_bytes))
    assert [len(block) for block in blocks] == sizes
    assert [document for block in blocks for document in block] == found


def test_a_document_longer_than_a_block_is_cut_at_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 100)
    path = tmp_path / "a.txt"
    path.write_text("\n".join(["x" * 40] * 6) + "\n\n" + "y\n")
    found = list(corpus.Corpus([str(path)]).documents())
    assert [len(document.lines) for document in found] == [2, 2, 2, 1]
    assert [document.continues for document in found] == [False, True, True, False]
    assert [len(block) for block in corpus.blocks(found, 100)] == [2, 2]
    whole = list(corpus.Corpus([str(path)], whole=True).documents())
    assert [len(document.lines) for document in whole] == [6, 1]
    source = corpus.Corpus([str(path)])
    assert len(list(source.documents())) == 4
    assert (source.count, source.duplicates) == (2, 0)


def test_a_line_longer_than_a_megabyte_comes_in_pieces_that_lose_no_word(tmp_path):
    words = " ".join(str(n) for n in range(400_000))  # 2.7 MB
    ideographs = "漢字かな交じり文" * 60_000  # 1.4 MB
    path = tmp_path / "a.txt"
    path.write_text(f"{words}\n\n{' ' * 3_000_000}{ideographs}\nThe last line.", encoding="utf-8")
    found = list(corpus.Corpus([str(path)]).documents())
    assert [document.continues for document in found] == [False, True, False]
    assert " ".join(line for d in found[:2] for line in d.lines) == words
    assert "".join(found[2].lines[:-1]) == ideographs
    assert found[2].lines[-1] == "The last line."
    assert max(len(line.encode()) for d in found for line in d.lines) <= 1 << 20
    assert lines_of([path], whole=True) == [[words], [ideographs, "The last line."]]
    path.write_bytes(words.encode() + b"\n\ngood\nna\xefve\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 4 must be UTF-8"):
        lines_of([path])


def test_a_json_object_that_would_fill_the_memory_is_refused_by_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_OBJECT", 1_000_000)
    path = tmp_path / "a.jsonl"
    fits = json.dumps({"text": "x" * (1_000_000 - len('{"text": ""}'))})
    path.write_text(f"{fits}\n{fits}")
    for whole in (False, True):
        assert len(list(corpus.Corpus([str(path)], whole=whole).documents())) == 2
        path.write_text(f"{fits}\n {fits}\n")
        with pytest.raises(
            ValueError, match=r"a.jsonl, line 2 must be a JSON object of at most 1 MB"
        ):
            list(corpus.Corpus([str(path)], whole=whole).documents())
        path.write_text(f"{fits}\n{fits}\n")


def test_a_long_line_in_a_json_object_comes_in_pieces_that_lose_no_word(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1_000)
    words = " ".join(f"{n} 中文" for n in range(1_000))
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": f"{words}\nThe end."}))
    (cut,) = corpus.Corpus([str(path)]).documents()
    assert max(len(line.encode()) for line in cut.lines) <= 1_000
    assert " ".join(cut.lines) == f"{words} The end."
    (whole,) = corpus.Corpus([str(path)], whole=True).documents()
    assert whole.lines == [words, "The end."]


@pytest.mark.parametrize("text", ["Vitamin A\u00a0. Then B.", "A\u3000.\u202fé", "i.e.\tA\x85."])
def test_wide_spaces_do_not_break_the_library_that_splits(text):
    found = corpus.split_paragraph(text)
    assert "".join("".join(found).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "sentence", ["今天天气很好。", "One sentence follows another. ", "word " * 9]
)
def test_a_long_paragraph_is_split_bit_by_bit_and_loses_nothing(sentence, monkeypatch):
    segment, sizes = sentencex.segment, []

    def measured(language, text):
        sizes.append(len(text))
        return segment(language, text)

    monkeypatch.setattr(sentencex, "segment", measured)
    paragraph = sentence * 2_000
    found = corpus.split_paragraph(paragraph)
    assert max(sizes) <= corpus.LONGEST_SPLIT
    assert sum(sizes) < 1.2 * len(paragraph)
    if sentence.startswith("word"):
        assert " ".join(found) == paragraph.strip()  # cut at blanks, for want of an end
    else:
        assert found == [sentence.strip()] * 2_000


@pytest.mark.parametrize(
    ("line", "is_paragraph"),
    [
        ("One sentence. Another one. And a third.", True),
        ("今天天气很好。我们去公园吧！好吗？", True),
        ("यह एक है। यह दो है। यह तीन है।", True),
        ("One sentence. Another one.", False),
        ("Dr. J. R. Smith, e.g., came at 3.15 p.m. to the U.S. office.", False),
        ("It was the year 1.2.3 of a.b.c and nothing more", False),
        ("A sentence. " * 100_000, True),
    ],
)
def test_a_line_of_three_sentences_looks_like_a_paragraph(line, is_paragraph):
    assert corpus.looks_like_paragraph(line) is is_paragraph


def test_carriage_returns_end_lines_where_nothing_else_does(tmp_path):
    for name, text in {
        "mac": "One.\rTwo.\r\rThree.\r",
        "dos": "One.\r\nTwo.\r\n\r\nThree.\r\n",
        "unix": "One.\nTwo.\n\nThree.",
    }.items():
        (tmp_path / name).write_bytes(text.encode())
        assert lines_of([tmp_path / name]) == [["One.", "Two."], ["Three."]]
    (tmp_path / "stray").write_bytes(b"One.\nTwo.\rTwo still.\n")  # white space, as for Google
    assert lines_of([tmp_path / "stray"]) == [["One.", "Two.\rTwo still."]]


def test_memory_does_not_grow_with_a_document_or_a_line(tmp_path):
    line = b"Some words of a text without a blank line, again and again. " * 2
    for name, end in (("document", b"\n"), ("line", b" ")):
        path = tmp_path / name
        path.write_bytes((line + end) * 160_000)  # 19 MB
        tracemalloc.start()
        size = sum(corpus.text_bytes(d) for d in corpus.Corpus([str(path)]).documents())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert size > 19_000_000
        assert peak < 19_000_000


def test_a_remembered_document_takes_few_bytes():
    seen = corpus._Fingerprints()
    numbers = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1_000_000)]
    assert all(map(seen.add, numbers))
    assert not any(map(seen.add, numbers[:1000]))
    assert sum(map(sys.getsizeof, seen._buckets.values())) / len(numbers) < 16


def test_a_named_column_of_csv_or_tsv_is_text_one_document_a_row(tmp_path):
    long = "A sentence. " * 20_000  # more than Python's csv takes by default
    (tmp_path / "a.csv").write_text(f'id,body\n1,"One, two.\n\nThree."\n2,\n3,{long}\n')
    (tmp_path / "a.tsv").write_text('id\tbody\n1\t"One, two.\n')
    found = list(corpus.Corpus([str(tmp_path / "a.csv")], text_field="body").documents())
    assert [d.lines for d in found] == [["One, two.", "Three."], [long.strip()]]
    assert all(document.split for document in found)
    assert lines_of([tmp_path / "a.tsv"], text_field="body") == [['"One, two.']]
    assert csv.field_size_limit() == 131_072
    with pytest.raises(ValueError, match="one column 'text'; got none. Its first line .*'body'"):
        lines_of([tmp_path / "a.csv"])
    (tmp_path / "a.csv").write_text("text,n\nGood.,1\nOne, two,2\nAlso.,3\n")
    source = corpus.Corpus([str(tmp_path / "a.csv")], skip_bad_lines=True)
    assert [d.lines for d in source.documents()] == [["Good."], ["Also."]]
    assert "line 3 must have 2 columns ('text', 'n'); got 3" in source.warnings()[0]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("a.csv", b'text,n\r\nGood.,\xe9\r\n"caf\xe9,\none\r.",2\r\n\xc3\xa9.,3\r\n'),
        ("a.tsv", b"text\tn\nGood.\t\xe9\ncaf\xe9\t2\n\xc3\xa9.\t3\n"),
    ],
)
def test_a_row_of_csv_or_tsv_that_is_not_utf8_is_refused_or_left_out_alone(tmp_path, name, rows):
    path = str(tmp_path / name)
    Path(path).write_bytes(rows)
    message = r"line 3 must be UTF-8 in 'text'; got b'\\xe9'\. .*iconv.* Give --skip_bad_lines"
    with pytest.raises(ValueError, match=message):
        list(corpus.Corpus([path], skip_bad_lines=False).documents())
    source = corpus.Corpus([path], skip_bad_lines=True)
    assert [document.lines for document in source.documents()] == [["Good."], ["é."]]
    assert source.bad_lines.count == 1


def test_null_is_no_text_in_json_and_is_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": null}\n{"text": "A."}\n{"text": null}\n')
    source = corpus.Corpus([str(tmp_path / "a.jsonl")])
    assert [d.lines for d in source.documents()] == [["A."]]
    assert source.warnings() == ["left out 2 rows whose text is null."]
