"""Records at addresses, here TensorFlow's own for files; `test_bucket` has an object store."""

import gzip
import re
from pathlib import Path

import pytest

from official_bert.data import build_worker, corpus, input_pipeline
from official_bert.data.instances import Settings
from official_bert.learn_vocabulary import learn_vocabulary
from official_bert.system import locks
from official_bert.system.places import RemotePath, as_path

SETTINGS = Settings(max_seq_length=64, max_predictions_per_seq=10, dupe_factor=2)


@pytest.fixture(autouse=True)
def small_and_fast(monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 5_000)
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def words(small_text):
    return Path(small_text.path).read_text()[:30_000]


@pytest.fixture
def store(words, tmp_path):
    """An address with a folder `texts` of three files, of which one is compressed."""
    store = RemotePath(f"file://{tmp_path}/store")
    (store / "texts/inner").mkdir()
    names = {
        "a.txt": words[:10_000],
        "inner/b.txt.gz": words[10_000:20_000],
        "c.txt": words[20_000:],
    }
    for name, text in {**names, ".hidden": "hidden", "inner/.hidden": "hidden"}.items():
        data = text.encode()
        with (store / "texts" / name).open("wb") as file:
            file.write(gzip.compress(data) if name.endswith(".gz") else data)
    return store


def build(small_text, texts, folder, **options):
    options = {"num_shards": 3, "num_workers": 2, "input_format": "paragraphs"} | options
    return small_text._replace(path=str(texts)).build(f"{folder}/a.tfrecord", SETTINGS, **options)


def contents(folder):
    """{name: bytes} of the files in a folder and below."""
    if isinstance(folder, RemotePath):
        return {str(f).removeprefix(f"{folder}/"): f.read_bytes() for f in folder.files()}
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def shards(folder):
    return {name: data for name, data in contents(folder).items() if "manifest" not in name}


@pytest.fixture
def expected(small_text, store, tmp_path):
    """The shards of the same texts on this machine."""
    for name, data in contents(store / "texts").items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    build(small_text, tmp_path / "texts", tmp_path / "records")
    return shards(tmp_path / "records")


def test_a_store_has_the_records_of_this_machine(small_text, store, expected, tmp_path):
    build(small_text, f"{store}/texts", store / "records")
    assert shards(store / "records") == expected
    assert [*contents(store / "records")] == ["a.manifest.json", *sorted(expected)]
    assert build(small_text, f"{store}/texts", store / "records")["seconds"] == 0
    build(small_text, f"{store}//texts/*", f"{store}//again")  # globs, and more slashes than needed
    assert shards(store / "again") == expected
    build(small_text, f"{store}/texts", tmp_path / "here")
    assert shards(tmp_path / "here") == expected
    batches = input_pipeline.Batches(
        [f"{store}/records/a.tfrecord-*"],
        batch_size=4,
        max_seq_length=64,
        max_predictions_per_seq=10,
        seed=1,
    )
    assert batches[0]["input_ids"].shape == (4, 64)


def test_interrupted_after_any_step_a_build_in_a_store_ends_the_same(
    small_text, store, expected, stopped
):
    for kind, steps in (build_worker.Part, 2), (build_worker.Shard, 0), (build_worker.Shard, 1):
        folder = store / f"{kind.__name__}{steps}"
        with pytest.raises(KeyboardInterrupt), stopped(kind, steps):
            build(small_text, f"{store}/texts", folder, num_workers=1)
        assert not (folder / "a.manifest.json").exists()
        with pytest.raises(ValueError, match="unfinished build|must match a file"):
            input_pipeline.Batches([f"{folder}/a.tfrecord-*"], 4, 64, 10, seed=1)
        build(small_text, f"{store}/texts", folder)
        assert shards(folder) == expected


def test_parts_of_several_machines_meet_in_a_store(small_text, store, expected):
    build(small_text, f"{store}/texts", store / "r", build_part="1/2")
    with pytest.raises(ValueError, match="must find all 2 parts; got all but 0/2"):
        build(small_text, f"{store}/texts", store / "r", build_part="finish")
    build(small_text, f"{store}/texts", store / "r", build_part="0/2")
    part = next(file for file in (store / "r").files() if file.name.endswith("1.records"))
    part.unlink()
    with pytest.raises(ValueError, match="1 missing or damaged in 1/2"):
        build(small_text, f"{store}/texts", store / "r", build_part="finish")
    build(small_text, f"{store}/texts", store / "r", build_part="1/2")
    build(small_text, f"{store}/texts", store / "r", build_part="finish")
    assert shards(store / "r") == expected


def test_a_vocabulary_is_learned_from_a_store(store, expected, tmp_path):
    for name, texts in ("here", tmp_path / "texts"), ("there", f"{store}/texts"):
        learn_vocabulary(str(texts), str(tmp_path / name), vocab_size=300)
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


@pytest.mark.parametrize(
    ("texts", "records", "message"),
    [
        ("none", "r/a", "input_file must match at least one file; got 'file://.*/none'"),
        ("none/*", "r/a", "input_file must match at least one file"),
        ("texts", "texts/a", "output_file must not match input_file"),
        ("texts/*", "texts/a", "output_file must not match input_file"),
        ("texts/a.txt", "texts/a.txt", "output_file must not overwrite an input"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(small_text, store, texts, records, message):
    with pytest.raises(ValueError, match=message):
        small_text._replace(path=f"{store}/{texts}").build(f"{store}/{records}", SETTINGS)


@pytest.mark.parametrize("address", ["gs://", "gs:/b/a", "gs://b", "gs://b/"])
def test_an_output_without_a_file_in_a_bucket_is_refused(small_text, address):
    with pytest.raises(ValueError, match="^output_file must"):
        small_text.build(address, SETTINGS)


def test_a_store_that_tensorflow_lacks_names_the_package():
    message = "s3://b/a needs the package tensorflow-io, which adds s3:// to TensorFlow"
    with pytest.raises(ValueError, match=re.escape(message)):
        as_path("s3://b/a").exists()
