"""Paths: addresses are refused, and so are outputs that are inputs under whatever name."""

import os
from pathlib import Path

import in_process
import pytest
from command_processes import as_flags

from official_bert import demo, learn_vocabulary, rehearse, run_pretraining
from official_bert.commands import fill_blanks, plots
from official_bert.commands.pretraining_settings import Pretrain
from official_bert.system import local_paths

ADDRESSES = ("gs://b/a", "s3://b/a", "hdfs://host:9000/a", "gs:/b/a", "file:///tmp/a")


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_refused_with_the_flag_and_what_to_do(address):
    for given in (address, f"a.txt,{address}", ["a.txt", address], Path(address)):
        with pytest.raises(
            ValueError, match=r"output_file must be .*; got the address '\w+:/.*Copy the files"
        ):
            local_paths.require_local(output_file=given)


def test_paths_of_this_machine_are_taken():
    local_paths.require_local(a=None, b="/tmp/a:b", c="a/b,c", d=["x"], e=Path("/gs:/a"), f="12:30")


SETTINGS = {
    demo: demo.Demo,
    fill_blanks: fill_blanks.FillBlanks,
    learn_vocabulary: learn_vocabulary.LearnVocabulary,
    plots: plots.Plot,
    rehearse: rehearse.Rehearse,
    run_pretraining: Pretrain,
}


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """A function that calls a command in this test's folder; the one line with which it ends."""
    monkeypatch.chdir(tmp_path)

    def line(module, flags):
        words = [*as_flags(flags), *["A [MASK]."] * (module is fill_blanks)]
        assert in_process.call(module, SETTINGS[module], words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        return said

    return line


def commands(folder: Path, address: str):
    """Every command with an address in each flag that takes a path of this machine."""
    text, vocab = folder / "a.txt", folder / "vocab.txt"
    fill = {"model_dir": folder, "vocab_file": vocab}
    learn = {"input_file": text, "vocab_file": vocab}
    run = {"model_dir": folder / "model", "input_files": "x", "bert_config_file": folder / "c.json"}
    rehearsal = run | {"topology": "v3:2x2", "report_file": folder / "r.json"}
    for module, flags, changed in [
        (learn_vocabulary, learn, ("vocab_file",)),
        (fill_blanks, fill, ("model_dir", "vocab_file")),
        (plots, {"log_file": text, "output_dir": folder}, ("log_file", "output_dir")),
        (demo, {"output_dir": folder, "corpus": text}, ("output_dir", "corpus")),
        (rehearse, rehearsal, ("report_file",)),
    ]:
        for name in changed:
            yield module, name, {**flags, name: address}


def test_no_command_makes_a_folder_of_an_address(tmp_path, refused):
    (tmp_path / "a.txt").write_text("A sentence.\n")
    for module, name, flags in commands(tmp_path, "gs://bucket/folder/a"):
        line = refused(module, flags)
        assert f"{name} must be a path on this machine; got the address 'gs:/" in line
    assert sorted(os.listdir(tmp_path)) == ["a.txt"]


@pytest.mark.parametrize("name", ["model_dir", "bert_config_file"])
def test_no_run_makes_a_folder_of_what_is_no_address(tmp_path, refused, name):
    flags = {"model_dir": "model", "input_files": "x", "bert_config_file": "c.json"}
    line = refused(run_pretraining, flags | {name: "gs:/bucket/model"})
    assert f"{name} must be a local path or an address with two slashes" in line
    assert "got 'gs:/bucket/model'." in line
    assert os.listdir(tmp_path) == []


@pytest.fixture
def names(tmp_path):
    """One file under four names, another file, and a folder with a third."""
    (tmp_path / "a").write_text("text")
    (tmp_path / "soft").symlink_to("a")
    os.link(tmp_path / "a", tmp_path / "hard")
    (tmp_path / "other").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").write_text("text")
    (tmp_path / "way").symlink_to("folder")
    return tmp_path


@pytest.mark.parametrize("output", ["a", "soft", "hard", "folder/../a"])
@pytest.mark.parametrize("given", ["a", "soft", "hard"])
def test_an_output_that_is_an_input_is_refused_through_links_too(names, output, given):
    with pytest.raises(ValueError, match="output_file must not overwrite .* of vocab_file"):
        local_paths.require_apart(
            {"output_file": [names / "new", names / output]},
            {"input_file": [names / "other"], "vocab_file": [names / given]},
        )


@pytest.mark.parametrize("output", ["folder", "way", "folder/b", "way/b"])
def test_a_folder_to_be_written_holds_no_input(names, output):
    with pytest.raises(ValueError, match="input_file"):
        local_paths.require_apart({"output": [names / output]}, {"input_file": [names / "way/b"]})


def test_files_that_are_not_there_yet_and_other_files_are_apart(names):
    local_paths.require_apart(
        {"output": [names / "new", names / "folder", names / "folder/a"]},
        {"input": [names / "a", names / "other", names / "folders"]},
    )


@pytest.mark.parametrize(
    ("module", "flags", "message"),
    [
        (
            rehearse,
            {"topology": "v3:2x2", "bert_config_file": "a.txt", "report_file": "./a.txt"},
            "report_file must not overwrite an input; got './a.txt', which is or contains 'a.txt'",
        ),
        (
            run_pretraining,
            {
                "input_files": "x",
                "bert_config_file": "a.txt",
                "model_dir": "model",
                "init_checkpoint": "model/pretrained/bert_model.ckpt-1",
            },
            "model_dir must not overwrite an input; got 'model/pretrained', which ",
        ),
        (
            demo,
            {"output_dir": "out", "corpus": "out/text"},
            "contains 'out/text/b.txt' of corpus",
        ),
        (demo, {"output_dir": "out", "corpus": "."}, "contains './out/text/b.txt' of corpus"),
        (
            demo,
            {"output_dir": "new", "corpus": "*"},
            "must not match corpus='*', which would read it as text",
        ),
    ],
)
def test_no_command_writes_over_what_it_reads(tmp_path, refused, module, flags, message):
    names = ("a.txt", "out/text/b.txt", "model/pretrained/bert_model.ckpt-1.index")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert message in refused(module, flags)
    left = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == dict.fromkeys(names, "{}")
