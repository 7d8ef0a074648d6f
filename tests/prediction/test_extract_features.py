"""`extract-features`: the lines of Google's script, from transformers' hidden states; resuming."""

import json
import re
import shutil
import signal
import time
import tracemalloc

import command_processes
import in_process
import jax_commands
import numpy as np
import peers
import pytest
from bert_checkpoints import make_source

import official_bert
from official_bert import convert_checkpoint, extract_features
from official_bert.commands import commands

LINES = ["The cat sat. ||| Un able, a mat!", "", "中 é naive", "a ||| b ||| the cat", " ||| a"]
LINES += ["a mat " * 20, "the cat " * 9 + "||| a mat"]


@pytest.fixture(scope="module")
def google(tmp_path_factory):
    """A folder as Google's released ones, with two layers."""
    folder = tmp_path_factory.mktemp("extract") / "google"
    make_source(folder)
    return folder


@pytest.fixture
def flags(google, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    return {
        "input_file": tmp_path / "in.txt",
        "output_file": tmp_path / "out.jsonl",
        "init_checkpoint": google / "bert_model.ckpt",
        "max_seq_length": 12,
    }


def call(flags):
    arguments = command_processes.as_flags(flags)
    return in_process.call(extract_features, extract_features.ExtractFeatures, arguments)


def lines_of(flags):
    return [json.loads(line) for line in flags["output_file"].read_text().splitlines()]


def test_each_token_has_the_hidden_states_of_transformers(google, flags, tmp_path):
    """With the flags of Google's script."""
    torch, transformers = peers.load("torch"), peers.load("transformers")
    files = {"bert_config_file": google / "bert_config.json", "vocab_file": google / "vocab.txt"}
    assert call(flags | files | {"layers": "-1,0", "batch_size": 3, "do_lower_case": True}) == 0
    convert_checkpoint.convert(google, tmp_path / "hf", "huggingface")
    model = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for number, (text, found) in enumerate(zip(LINES, lines_of(flags), strict=True)):
        assert list(found) == ["linex_index", "features"]
        assert found["linex_index"] == number
        pair = re.fullmatch(r"(.*) \|\|\| (.*)", text.strip())
        cut = {"truncation": "longest_first", "max_length": 12, "return_tensors": "pt"}
        ids = tokenizer(*(pair.groups() if pair else [text.strip()]), **cut)
        with torch.no_grad():
            states = model(**ids, output_hidden_states=True).hidden_states
        tokens = tokenizer.convert_ids_to_tokens(ids["input_ids"][0])
        assert [one["token"] for one in found["features"]] == tokens
        for place, one in enumerate(found["features"]):
            assert list(one) == ["token", "layers"]
            assert [list(layer) for layer in one["layers"]] == [["index", "values"]] * 2
            assert [layer["index"] for layer in one["layers"]] == [-1, 0]
            for layer, theirs in zip(one["layers"], (states[-1], states[1]), strict=True):
                np.testing.assert_allclose(layer["values"], theirs[0, place], atol=1e-5)
                assert layer["values"] == [round(value, 6) for value in layer["values"]]


def test_by_default_the_last_four_layers_of_a_model_are_written_to_ascii(google, flags):
    with pytest.raises(ValueError, match="layer must be -2 to 1"):
        extract_features.main(parsed(flags))
    assert call(flags | {"layers": "-1,-2"}) == 0
    assert flags["output_file"].read_bytes().isascii()


def parsed(flags):
    arguments = command_processes.as_flags(flags)
    return commands.parse(extract_features.ExtractFeatures, arguments)


# An output that is continued


@pytest.fixture
def whole(flags):
    """The bytes of an output, made at once."""
    flags |= {"layers": "-1", "batch_size": 2}
    assert call(flags) == 0
    return flags["output_file"].read_bytes()


def test_a_run_continues_where_its_output_ends_with_the_same_bytes(flags, whole, capsys):
    path = flags["output_file"]
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for kept in (9, ends[0] + 9, ends[2], ends[-1] - 1, ends[-1]):
        path.write_bytes(whole[:kept])
        assert call(flags) == 0
        assert path.read_bytes() == whole
        lines = sum(end <= kept for end in ends)
        continued = f", of which {lines} were there" * bool(lines)
        assert f"out.jsonl: the vectors of 7 lines{continued}\n" in capsys.readouterr().out


def test_other_batches_continue_it_to_round_off(flags, whole):
    wanted, path = lines_of(flags), flags["output_file"]
    path.write_bytes(whole[: whole.index(b"\n") + 1])
    assert call(flags | {"batch_size": 3}) == 0
    assert_alike(lines_of(flags), wanted)


def assert_alike(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one["linex_index"] == other["linex_index"]
        for ours, theirs in zip(one["features"], other["features"], strict=True):
            assert ours["token"] == theirs["token"]
            values = [[layer["values"] for layer in each["layers"]] for each in (ours, theirs)]
            np.testing.assert_allclose(*values, atol=5e-6)


def other_text(flags):
    flags["input_file"].write_text("\n".join(LINES[::-1]) + "\n")


def other_vocabulary(flags):
    folder = flags["init_checkpoint"].parent
    words = (folder / "vocab.txt").read_text().replace("\ncat\n", "\ndog\n")
    flags["input_file"].with_name("other.txt").write_text(words)
    flags["vocab_file"] = flags["input_file"].with_name("other.txt")


def other_model(flags):
    folder = flags["input_file"].parent / "other"
    make_source(folder, seed=1)
    flags["init_checkpoint"] = folder / "bert_model.ckpt"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda flags: flags.update(layers="-2"), "layers"),
        (lambda flags: flags.update(layers="0", max_seq_length=9), "layers and max_seq_length"),
        (other_text, "input_file"),
        (other_vocabulary, "vocabulary"),
        (other_model, "model"),
        (lambda flags: flags.update(do_lower_case="False"), "vocabulary"),
    ],
)
def test_the_output_of_other_settings_is_refused_and_stays(flags, whole, capsys, change, named):
    change(flags)
    assert call(flags) == 2
    assert f"out.jsonl, made with another {named}. Give another" in capsys.readouterr().err
    assert flags["output_file"].read_bytes() == whole


def test_files_of_others_are_refused_and_stay(flags, whole, capsys):
    path = flags["output_file"]
    for damaged in (whole.replace(b'x": 6,', b'x": 5,'), b"\0" * 99 + b"\n", b"{}\n"):
        path.write_bytes(damaged)
        assert call(flags) == 2
        assert "out.jsonl is damaged at line" in capsys.readouterr().err
        assert path.read_bytes() == damaged
    path.write_bytes(b"my notes")
    for settings in None, "[]", "{", "{}":
        beside = path.with_name("out.jsonl.settings.json")
        beside.unlink() if settings is None else beside.write_text(settings)
        assert call(flags) == 2
        assert "which has no readable out.jsonl.settings.json" in capsys.readouterr().err
        assert path.read_bytes() == b"my notes"
    path.write_bytes(b"")
    assert call(flags) == 0
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_a_killed_run_is_continued_also_by_jax_without_tensorflow_which_embeds_alike(
    google, flags, tmp_path
):
    lines = [f"{'the cat ' * (n % 5)} sat on a mat" for n in range(1000)]
    flags["input_file"].write_text("\n".join(lines) + "\n")
    flags |= {"layers": "-1,-2", "batch_size": 8}
    path = flags["output_file"]
    with command_processes.start("extract_features", flags) as process:
        while process.poll() is None and not (path.exists() and path.stat().st_size):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    before = path.read_bytes()
    assert 0 < before.count(b"\n") < 1000
    (tmp_path / "jax").mkdir()
    for name in path.name, f"{path.name}.settings.json":
        shutil.copy(tmp_path / name, tmp_path / "jax")
    arguments = flags | {"output_file": tmp_path / "jax" / path.name, "engine": "jax"}
    arguments = command_processes.as_flags(arguments)
    on_jax = {"command": "extract_features", "arguments": arguments}
    asked = [{"texts": lines[:9]}, {"texts": LINES[:4], "pooling": "max", "layer": 0}]
    calls = [on_jax, *({"load": str(google), "embed": arguments} for arguments in asked)]
    (code, *vectors), _ = jax_commands.run(calls, tmp_path)
    assert code == 0
    for arguments, found in zip(asked, vectors, strict=True):
        wanted = official_bert.load(google).embed(**arguments)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert call(flags) == 0
    kept = before[: before.rindex(b"\n") + 1]
    assert path.read_bytes().startswith(kept)
    assert (tmp_path / "jax" / path.name).read_bytes().startswith(kept)
    assert [line["linex_index"] for line in lines_of(flags)] == [*range(1000)]
    assert_alike(lines_of({"output_file": tmp_path / "jax" / path.name}), lines_of(flags))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(flags, tmp_path):
    peaks = []
    for count in 16, 16, 160:  # the first makes the program
        flags["input_file"].write_text("the cat sat on a mat\n" * count)
        flags["output_file"] = tmp_path / f"{len(peaks)}.jsonl"
        tracemalloc.start()
        assert call(flags | {"layers": "-1", "batch_size": 4}) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[1]


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"init_checkpoint": None}, "--model_dir or --init_checkpoint must name the model; got ne"),
        ({"model_dir": "a"}, "--model_dir or --init_checkpoint must name the model; got both"),
        ({"layers": "-1,last"}, "--layers must be whole numbers separated by commas, such as -1"),
        ({"layers": ""}, "--layers must be whole numbers"),
        ({"layers": "-1,2"}, "layer must be -2 to 1, where -1 is the last; got 2"),
        ({"max_seq_length": 4}, "--max_seq_length must be at least 5; got 4"),
        ({"max_seq_length": 21}, "max_seq_length must be at most 20, the model's number of posit"),
        ({"batch_size": 0}, "--batch_size must be at least 1; got 0"),
        ({"input_file": "nowhere.txt"}, "--input_file must be an existing file; got 'nowhere.txt'"),
        ({"output_file": "gs://bucket/out"}, "output_file must be a path on this machine"),
        ({"use_tpu": True}, "--use_tpu has no counterpart: one device of this machine computes."),
        ({"engine": "torch"}, "--engine must be tensorflow or jax; got 'torch'"),
        ({"engine": "jax"}, "--engine must match the Keras backend of this process, tensorflow"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(flags, capsys, monkeypatch, change, message):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    with pytest.raises(ValueError, match=re.escape(message)):
        extract_features.main(parsed({"layers": "-1"} | flags | change))
    assert not flags["output_file"].exists()


def test_an_input_is_never_overwritten(flags, capsys):
    before = flags["input_file"].read_bytes()
    assert call(flags | {"output_file": flags["input_file"]}) == 2
    assert "output_file must not overwrite an input" in capsys.readouterr().err
    assert flags["input_file"].read_bytes() == before


def test_bytes_that_are_not_utf_8_name_their_line_after_the_lines_before(flags, capsys):
    flags["input_file"].write_bytes(b"\xef\xbb\xbfthe cat\r\na\n\xff\n")
    assert call(flags | {"layers": "-1", "batch_size": 1}) == 2
    assert "in.txt, line 3 must be text in UTF-8; got" in capsys.readouterr().err
    first, second = lines_of(flags)
    assert [one["token"] for one in first["features"]] == ["[CLS]", "the", "cat", "[SEP]"]
    assert len(second["features"]) == 3


def test_lines_that_are_cut_are_counted_in_one_warning(flags, capsys):
    assert call(flags | {"layers": "-1"}) == 0
    out, error = capsys.readouterr()
    assert error.startswith("warning: 3 lines have more than 12 word pieces, with [CLS] and [SEP],")
    assert "warning" not in out
