"""Parquet, Arrow and folders of `datasets`: each row is read as written, and damage is named."""

import csv
import gzip
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from official_bert.data import arrow_files, corpus, table_files
from official_bert.learn_vocabulary import learn_vocabulary
from official_bert.tasks import tables

ROOT = Path(__file__).parents[2]
TEXTS = ["One text.\n\nIts second paragraph.", "漢字 and é.", None, "", "A last\u2028 one."]
LINES = [["One text.", "Its second paragraph."], ["漢字 and é."], ["A last\u2028 one."]]


def write(path, table, rows=2):
    """Writes a table in groups of `rows` rows, in the format that the name says."""
    path = Path(path)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
        return str(path)
    new = pa.ipc.new_file if path.name.startswith("file") else pa.ipc.new_stream
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return str(path)


def save_dataset(folder, table, files=2):
    """A folder as of `Dataset.save_to_disk`, next to a cache of other columns."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05d}-of-{files:05d}.arrow" for n in range(files)]
    each = -(-len(table) // files)
    for n, name in enumerate(names):
        write(folder / name, table.slice(n * each, each))
    write(folder / "cache-00ff.arrow", pa.table({"input_ids": [[1]]}))
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0",
        "_split": "t",
    }
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}, indent=2))


def lines_of(pattern, **options):
    found = corpus.Corpus(corpus.find_files(str(pattern)), **options).documents()
    return [document.lines for document in found]


NAMES = "a.parquet", "stream.arrow", "file.arrow", "misnamed"
TYPES = {
    "string": pa.string(),
    "large": pa.large_string(),
    "view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", TYPES)
def test_a_row_is_a_document_whatever_the_type_of_its_text(tmp_path, name, kind):
    column = pa.array(TEXTS).cast(TYPES[kind])
    table = pa.table({"id": range(len(TEXTS)), "body": column})
    path = write(tmp_path / name, table)
    assert lines_of(path, text_field="body") == LINES
    source = corpus.Corpus([path], text_field="body")
    assert all(document.split for document in source.documents())
    assert (source.count, source.null_rows) == (3, 1)
    assert source.warnings() == ["left out 1 row whose text is null."]
    assert 0.9 < source.share_read <= 1


@pytest.mark.parametrize("name", NAMES[:3])
def test_text_in_structures_and_lists_is_found(tmp_path, name):
    rows = [{"text": "One.", "n": 1}, None, {"text": None, "n": 2}, {"text": "Two.", "n": 3}]
    lists = [["One. Two.", "Three.\nFour."], [], None, ["Five.", None]]
    path = write(tmp_path / name, pa.table({"document": rows, "paragraphs": lists}))
    assert lines_of(path, text_field="document.text") == [["One."], ["Two."]]
    expected = [["One. Two.", "Three.", "Four."], ["Five."]]
    assert lines_of(path, text_field="paragraphs") == expected


def write_rows(path, rows):
    """Writes rows of a text and another column, in the format that the name says."""
    if path.suffix in (".parquet", ".arrow"):
        columns = {"text": [text for text, _ in rows], "other": [other for _, other in rows]}
        return write(path, pa.table(columns), rows=len(rows))
    with gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w", newline="") as file:
        if path.name.startswith("a.csv"):
            csv.writer(file).writerows([("text", "other"), *rows])
        elif path.name.startswith("a.jsonl"):
            file.writelines(json.dumps({"other": o, "text": t}) + "\n" for t, o in rows)
        else:
            file.writelines(text + "\n\n" for text, _ in rows)
    return str(path)


PLAIN = ["a.txt", "a.csv", "a.jsonl", "a.parquet", "a.arrow", "file.arrow"]


@pytest.mark.parametrize("name", [*PLAIN, "a.txt.gz", "a.csv.gz"])
def test_the_text_is_estimated_without_other_columns_and_decompressed(tmp_path, name):
    draw = random.Random(0)
    rows = [("été " * draw.randrange(1, 40), draw.randbytes(400).hex()) for _ in range(8000)]
    size = sum(len(text.strip().encode()) for text, _ in rows)
    source = corpus.Corpus([write_rows(tmp_path / name, rows)])
    within = 0.05 if name in PLAIN else 0.3
    assert source.estimated_bytes == pytest.approx(size, rel=within)


@pytest.mark.parametrize("name", PLAIN)
def test_many_files_are_estimated_by_some_of_them(tmp_path, name):
    rows = [("été", "x" * n) for n in range(10)]
    paths = [tmp_path / f"{number}" / name for number in range(20)]
    for path in paths:
        path.parent.mkdir()
        write_rows(path, rows)
    source = corpus.Corpus(list(map(str, paths)))
    assert source.estimated_bytes == pytest.approx(20 * 10 * 5)


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_wrong_column_is_refused_with_the_columns_that_are_there(tmp_path, name):
    path = write(tmp_path / name, pa.table({"id": [1], "body": ["A text."], "b.c": ["x"]}))
    options = {"input_file": path, "vocab_file": str(tmp_path / "v.txt")}
    for field, message in {
        None: "one column 'text'; got none. Its columns are 'id' .int64., 'body' .string.",
        "id": "text in its column 'id'; got int64. Its columns are ",
        "body.x": "one column 'body.x'; got none",
    }.items():
        with pytest.raises(ValueError, match=f"{name} must have {message}") as error:
            learn_vocabulary(**options, **({"text_field": field} if field else {}))
        assert str(error.value).endswith(" Name one with --text_field.")
    assert lines_of(path, text_field="b.c") == [["x"]]


def beginnings(data):
    """Proper beginnings of a file: the longest ones, and every 13th."""
    return (data[:end] for end in {*range(0, len(data), 13), *range(len(data) - 20, len(data))})


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_truncated_file_is_refused_by_name(tmp_path, name):
    data = Path(write(tmp_path / name, pa.table({"text": TEXTS}))).read_bytes()
    form = "parquet" if name == "a.parquet" else "arrow"
    cut = tmp_path / "cut.bin"
    for part in beginnings(data):
        cut.write_bytes(part)
        with pytest.raises(ValueError, match=r"cut\.bin cannot be read.*damaged or truncated"):
            list(arrow_files.rows(str(cut), form, ["text"]))


def test_damage_is_named_with_its_row_group_or_batch(tmp_path):
    table = pa.table({"text": [f"{n} {random.Random(n).random()}" for n in range(90)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=30, write_page_checksum=True, compression="none")
    offset = path.read_bytes().index(b"45 0.")  # in the second group
    data = bytearray(path.read_bytes())
    data[offset + 4] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read in row group 2 of 3 \("):
        lines_of(path)
    stream = tmp_path / "a.arrow"
    data = Path(write(stream, table, rows=30)).read_bytes()
    stream.write_bytes(data[: len(data) * 3 // 4])
    with pytest.raises(ValueError, match=r"a\.arrow cannot be read in record batch 3 \("):
        lines_of(stream)
    stream.write_bytes(data + data)
    with pytest.raises(ValueError, match="cannot be read after record batch 3 .data after its end"):
        lines_of(stream)


@pytest.mark.parametrize("name", NAMES[:3])
def test_no_flipped_bit_ends_the_process_or_passes_as_another_error(tmp_path, name):
    data = Path(write(tmp_path / name, pa.table({"text": TEXTS * 3}))).read_bytes()
    form = "parquet" if name == "a.parquet" else "arrow"
    flips = random.Random(5)
    path = tmp_path / "flipped.bin"
    for _ in range(100):
        flipped = bytearray(data)
        flipped[flips.randrange(len(data))] ^= 1 << flips.randrange(8)
        path.write_bytes(flipped)
        try:
            list(arrow_files.rows(str(path), form, ["text"]))
        except ValueError as error:
            assert str(error).startswith(str(path))  # noqa: PT017


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_row_that_is_not_utf8_is_refused_or_left_out_alone(tmp_path, name):
    cells = pa.array([b"Good.", b"caf\xe9", b"Also good."]).view(pa.string())
    path = write(tmp_path / name, pa.table({"text": cells}), rows=3)
    with pytest.raises(ValueError, match=r"row 2 must be UTF-8 in 'text'.* --skip_bad_lines"):
        list(corpus.Corpus([path], skip_bad_lines=False).documents())
    source = corpus.Corpus([path], skip_bad_lines=True)
    assert [document.lines for document in source.documents()] == [["Good."], ["Also good."]]
    assert source.bad_lines.count == 1


def test_the_folders_of_datasets_and_of_spark_are_read_as_their_lists_say(tmp_path):
    table = pa.table({"text": ["A.", "B.", "C."]})
    save_dataset(tmp_path / "both/train", table)
    save_dataset(tmp_path / "both/test", pa.table({"text": ["D."]}), files=1)
    (tmp_path / "both/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert lines_of(tmp_path / "both/train") == [["A."], ["B."], ["C."]]
    assert lines_of(tmp_path / "both") == [["D."], ["A."], ["B."], ["C."]]
    spark = tmp_path / "spark"
    spark.mkdir()
    write(spark / "part-0.snappy.parquet", table)
    for name in "_SUCCESS", "_metadata", ".part-0.crc":
        (spark / name).write_bytes(b"")
    assert lines_of(spark) == [["A."], ["B."], ["C."]]
    (tmp_path / "partitioned").mkdir()
    written = []
    pq.write_to_dataset(
        table.append_column("lang", pa.array(["de", "de", "en"])),
        tmp_path / "partitioned",
        partition_cols=["lang"],
        metadata_collector=written,
    )
    pq.write_metadata(table.schema, tmp_path / "partitioned/_metadata", written)
    pq.write_metadata(table.schema, tmp_path / "partitioned/_common_metadata")
    (tmp_path / "partitioned/_SUCCESS").write_bytes(b"")
    assert lines_of(tmp_path / "partitioned") == [["A."], ["B."], ["C."]]


def test_the_folder_of_a_dataset_that_lacks_files_or_a_split_is_refused(tmp_path):
    both, train = tmp_path / "both", tmp_path / "both/train"
    for split in "train", "test":
        save_dataset(both / split, pa.table({"text": ["A.", "B."]}))
    (both / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    message = r"both/train must hold all 2 files that its state\.json lists; got none named"
    for path in [*train.glob("data-*")]:  # one is missing, then both
        path.unlink()
        for folder in both, train:
            with pytest.raises(ValueError, match=message):
                lines_of(folder)
    (train / "state.json").write_text("{")
    with pytest.raises(ValueError, match=r"state\.json must list the files of a dataset"):
        lines_of(both)
    shutil.rmtree(train)
    with pytest.raises(ValueError, match=r"must hold all splits that .*; got none named train\."):
        lines_of(both)


def test_a_table_of_examples_may_be_parquet_or_a_dataset_with_class_labels(tmp_path):
    noted = {"info": {"features": {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}}}
    columns = {"text": ["A.", "B."], "label": [0, 1], "score": [0.5, 2.0]}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(noted)})
    write(tmp_path / "a.parquet", table)
    save_dataset(tmp_path / "saved", table)
    (tmp_path / "folder").mkdir()
    for n in range(2):
        write(tmp_path / f"folder/{n}.parquet", table)
    (tmp_path / "folder/._0.parquet").write_bytes(b"of a Mac")  # hidden: not a table
    expected = {"text": ["A.", "B."], "label": ["bad", "good"], "score": ["0.5", "2.0"]}
    for name in "a.parquet", "saved":
        found = table_files.read_columns(str(tmp_path / name), [*columns])
        assert (found.columns, found.lines) == (expected, [1, 2])
    found = table_files.read_columns(str(tmp_path / "folder"), ["text"])
    assert (found.columns["text"], found.lines) == (["A.", "B."] * 2, [1, 2, 3, 4])


@pytest.mark.parametrize("kind", ["List", "Sequence"])
def test_lists_of_class_labels_are_their_names(tmp_path, kind):
    feature = {"feature": {"names": ["joy", "anger"], "_type": "ClassLabel"}, "_type": kind}
    noted = {"info": {"features": {"labels": feature, "plain": [{"dtype": "string"}]}}}
    columns = {"labels": [[1, 0], [], [0]], "plain": [["x"], ["y", "z"], []]}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(noted)})
    save_dataset(tmp_path / "saved", table)
    found = table_files.read_columns(str(tmp_path / "saved"), [*columns], lists=[*columns]).columns
    assert [*map(json.loads, found["labels"])] == [["anger", "joy"], [], ["joy"]]
    assert [*map(json.loads, found["plain"])] == columns["plain"]
    for column in [[1], None], [[1], [None]]:
        path = write(tmp_path / "null.parquet", pa.table({"labels": column}))
        with pytest.raises(ValueError, match="row 2 must have text in 'labels'; got null"):
            table_files.read_columns(path, ["labels"], lists=["labels"])


def test_lists_and_nulls_as_labels_are_refused_with_what_to_do(tmp_path):
    lists = write(tmp_path / "lists.parquet", pa.table({"text": ["A."], "label": [["x"]]}))
    columns = tables.Columns("text")
    with pytest.raises(ValueError, match=r"'label'; got a list\. .* give --multi_label\.$"):
        tables.read(lists, columns)
    nulls = write(tmp_path / "n.parquet", pa.table({"text": ["A.", "B."], "label": [["x"], None]}))
    with pytest.raises(ValueError, match=r"row 2 .* 'label'; got null\. Write \[\] for no label"):
        tables.read(nulls, columns, label_lists=True)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([None, "x"], r"a\.parquet, row 1 must have text in 'text'; got null"),
        ([0.5, float("nan")], "row 2 must have text or a finite number in 'text'; got nan"),
        ([["x"], ["y"]], "row 1 must have one text in 'text'; got a list"),
        ([{"a": 1}, None], r"must have text in its column 'text'; got struct<a: int64>"),
        ([], "must have at least one row"),
    ],
)
def test_a_cell_that_is_no_text_of_an_example_is_refused(tmp_path, column, message):
    path = write(tmp_path / "a.parquet", pa.table({"text": column}))
    with pytest.raises(ValueError, match=message):
        table_files.read_columns(path, ["text"])


def test_a_folder_that_is_not_one_table_is_refused(tmp_path):
    save_dataset(tmp_path / "both/train", pa.table({"text": ["A."]}))
    (tmp_path / "both/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match=r"splits train, test\. Give .* such as .*both/train"):
        table_files.read_columns(str(tmp_path / "both"), ["text"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="must be a file, or a folder of Parquet .*with neither"):
        table_files.read_columns(str(tmp_path / "empty"), ["text"])


def test_without_pyarrow_one_line_names_the_extra(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", pa.table({"text": TEXTS}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"a\.parquet needs the package pyarrow.*\[parquet\]"):
        lines_of(path)


def test_a_file_of_another_kind_than_the_flag_is_refused(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({"text": TEXTS}))
    text = tmp_path / "a.txt"
    text.write_text("Some text.\n")
    with pytest.raises(ValueError, match=r"must be plain text .*=sentences says; got a Parquet"):
        lines_of(path, form="sentences")
    with pytest.raises(ValueError, match="must be an Arrow file, .*; got a Parquet file"):
        lines_of(path, form="arrow")
    with pytest.raises(ValueError, match="must be a Parquet file, .*; got another kind"):
        lines_of(text, form="parquet")
    for name, content, got in ("a.PARQUET", b"", "an empty file"), ("a.arrow", b"Not found", "b'N"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} must be an? .*, as its name says; got {got}"):
            lines_of(tmp_path / name)


@pytest.mark.slow
def test_the_same_records_come_of_every_format_with_any_number_of_workers(
    small_text, tmp_path, monkeypatch, worker_processes
):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 20_000)
    documents = Path(small_text.path).read_text().strip().split("\n\n")
    table = pa.table({"text": [None, *documents], "n": range(len(documents) + 1)})
    write(tmp_path / "a.parquet", table, rows=7)
    write(tmp_path / "a.arrow", table, rows=5)
    save_dataset(tmp_path / "saved", table, files=3)
    rows = [{"text": text, "n": n} for n, text in enumerate(table["text"].to_pylist())]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    records = set()
    for name, workers in ("a.parquet", 1), ("a.arrow", 2), ("saved", 2), ("a.jsonl", 3):
        text, output = small_text._replace(path=str(tmp_path / name)), tmp_path / f"of_{name}/a"
        assert text.build(output, dupe_factor=1, num_workers=workers)["null_rows"] == 1
        records.add(output.read_bytes())
    assert len(records) == 1


MEMORY = """
import re, sys
from official_bert.data import corpus
size = sum(len(line) for d in corpus.Corpus(sys.argv[1:]).documents() for line in d.lines)
print(size, re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_bounded_though_the_file_is_one_row_group(tmp_path):
    def peak(rows):
        path = tmp_path / f"{rows}.parquet"
        texts = (f"{n} " + "some words of text " * 500 for n in range(rows))
        table = pa.table({"text": list(texts), "other": [bytes(2000)] * rows})
        pq.write_table(table, path, row_group_size=rows, use_dictionary=False)
        command = [sys.executable, "-c", MEMORY, str(path)]
        size, kilobytes = subprocess.check_output(command, cwd=ROOT, text=True).split()
        assert int(size) > rows * 9000
        return int(kilobytes)

    small, large = peak(500), peak(20_000)  # 5 MB and 190 MB of text
    assert large - small < 60_000
