"""The command: its flags, what it refuses in one line, and that killing it changes nothing."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import events
import in_process
import numpy as np
import pytest
import tensorflow as tf
import warm_python
from command_processes import as_flags, without

import official_bert
from official_bert import run_pretraining
from official_bert.commands import commands, machine, refused
from official_bert.commands.pretraining_settings import Pretrain
from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data import input_pipeline, manifest, record_files, records
from official_bert.data.instances import Settings
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.training import checkpoints, run_files, trainer

OFFICIAL_DEFAULTS = {
    "max_seq_length": 128,
    "max_predictions_per_seq": 20,
    "train_batch_size": 32,
    "num_steps_per_epoch": 1000,
    "num_train_epochs": 3,
    "warmup_steps": 10000,
    "learning_rate": 5e-5,
    "end_lr": 0.0,
    "optimizer_type": "adamw",
    "use_next_sentence_label": True,
    "model_dir": "/tmp",
    "distribution_strategy": "mirrored",
    "tpu": "",
    "task_index": -1,
    "dtype": "fp32",
    "train_summary_interval": 0,
    "log_steps": 100,
}


FLAGS = commands.flags_of(Pretrain)
REFUSED = refused.flags(Pretrain)


def call(settings, *more):
    return in_process.call(run_pretraining, Pretrain, [*as_flags(settings), *more])


@pytest.fixture
def files(small_corpus, tmp_path):
    """The flags that name files."""
    path = tmp_path / "bert_config.json"
    path.write_text(small_corpus.config.to_json())
    return {
        "bert_config_file": str(path),
        "input_files": small_corpus.train,
        "model_dir": str(tmp_path / "model"),
    }


SMALL = {
    "max_seq_length": 32,
    "max_predictions_per_seq": 5,
    "train_batch_size": 16,
    "num_steps_per_epoch": 6,
    "num_train_epochs": 1,
    "warmup_steps": 2,
    "learning_rate": 5e-3,
    "optimizer_type": "lamb",
    "log_steps": 3,
    "distribution_strategy": "off",
}


def test_flags_of_the_official_script_keep_their_names_and_defaults():
    assert {name: FLAGS[name].default for name in OFFICIAL_DEFAULTS} == OFFICIAL_DEFAULTS
    for name in ("bert_config_file", "init_checkpoint", "worker_hosts"):
        assert FLAGS[name].default is None


# All flags of tensorflow/models' official/legacy/bert/run_pretraining.py and what it imports, the
# short names last; of google-research/bert's; and of NVIDIA's for TensorFlow 2.
OFFICIAL_FLAGS = """
    all_reduce_alg allreduce_bytes_per_pack bert_config_file datasets_num_private_threads
    distribution_strategy dtype enable_xla end_lr explicit_allreduce fp16_implementation gin_file
    gin_param hub_module_trainable hub_module_url init_checkpoint input_files learning_rate
    log_steps loss_scale max_predictions_per_seq max_seq_length model_dir model_export_path num_gpus
    num_steps_per_epoch num_train_epochs optimizer_type per_gpu_thread_count run_eagerly scale_loss
    steps_per_loop sub_model_export_name task_index tf_gpu_thread_mode tpu train_batch_size
    train_summary_interval use_keras_compile_fit use_next_sentence_label warmup_steps worker_hosts
    ara ds dt gt_mode ls md ng pgtc
"""
FLAGS_OF_2018 = """
    bert_config_file do_eval do_train eval_batch_size gcp_project init_checkpoint input_file
    iterations_per_loop learning_rate master max_eval_steps max_predictions_per_seq max_seq_length
    num_tpu_cores num_train_steps num_warmup_steps output_dir save_checkpoints_steps tpu_name
    tpu_zone train_batch_size use_tpu
"""
FLAGS_OF_NVIDIA = """
    benchmark bert_config_file distribution_strategy dllog_path dtype dynamic_loss_scale enable_xla
    fp16_implementation hub_module_url init_checkpoint input_files learning_rate loss_scale
    max_predictions_per_seq max_seq_length model_dir model_export_path model_type
    num_accumulation_steps num_gpus num_steps_per_epoch num_train_epochs optimizer_type run_eagerly
    save_checkpoint_steps scale_loss steps_per_loop tpu train_batch_size use_fp16 use_horovod
    use_keras_compile_fit warmup_steps
"""


@pytest.mark.parametrize("names", [OFFICIAL_FLAGS, FLAGS_OF_2018, FLAGS_OF_NVIDIA])
def test_every_flag_of_the_other_scripts_is_there_or_refused_with_its_reason(names):
    assert set(names.split()) <= {*FLAGS, *REFUSED}
    assert not {*FLAGS} & {*REFUSED}  # these are not in the manual


@pytest.mark.parametrize(
    "argument", ["--use_fp16", "--nodo_train", "--gin_param=a.b=1", "--ng=8", "--output_dir out"]
)
def test_a_flag_of_another_script_is_refused_however_it_is_written(files, capsys, argument):
    assert call(files | SMALL, *argument.split()) == 2
    name = argument.lstrip("-").split()[0].split("=")[0].removeprefix("no")
    reason = REFUSED[name]
    assert capsys.readouterr().err == f"run_pretraining: error: --{name} {reason}\n"


def test_a_run_from_flags_leaves_a_checkpoint_and_goes_on_when_called_again(files, capsys):
    idle = {"eval_batch_size": 8, "eval_steps": 2, "loss_scale": "dynamic", "num_gpus": 0}
    assert call(files | SMALL | idle | {"distribution_strategy": "off"}) == 0
    said = capsys.readouterr()
    assert "step 6/6" in said.out
    assert said.err.splitlines() == [
        "warning: --loss_scale has no effect with --dtype=fp32, which needs none.",
        "warning: --eval_steps, --eval_batch_size have no effect without --eval_files.",
    ]
    assert checkpoints.CheckpointStore(files["model_dir"]).latest().step == 6
    assert call(files | SMALL) == 0
    said = capsys.readouterr().out
    assert "resuming from " in said
    assert "step 6/6" not in said


def test_a_run_has_the_vocabulary_of_its_records_and_other_records_are_refused(
    files, small_corpus, tmp_path, capsys
):
    assert call(files | SMALL | {"num_steps_per_epoch": 1, "warmup_steps": 1}) == 0
    model, pieces = (
        pathlib.Path(files["model_dir"]),
        pathlib.Path(small_corpus.vocab_file).read_text(),
    )
    assert (model / "vocab.txt").read_text() == pieces
    assert official_bert.load(model).tokenizer.encode("The", add_special_tokens=False).ids
    words = pieces.splitlines()
    (model / "vocab.txt").write_text("\n".join([*words[:-2], *words[:-3:-1]]) + "\n")
    start = {"init_checkpoint": str(model), "model_dir": str(tmp_path / "another")}
    assert call(without(files, "bert_config_file") | SMALL | start) == 2
    assert "input_files must be made with the vocabulary of" in capsys.readouterr().err
    (model / "vocab.txt").write_text(pieces)
    (model / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert call(without(files, "bert_config_file") | SMALL | start) == 2
    assert "input_files must be made with --do_lower_case=False" in capsys.readouterr().err
    (model / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": false}')
    assert call(without(files, "bert_config_file") | SMALL | start) == 2
    said = capsys.readouterr().err
    assert "must be made with --do_lower_case --strip_accents=False, as for" in said
    assert not (tmp_path / "another").exists()


def test_held_out_records_have_the_vocabulary_of_the_others(files, small_corpus, tmp_path, capsys):
    words = pathlib.Path(small_corpus.vocab_file).read_text().splitlines()
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*words[:-2], *words[:-3:-1]]) + "\n")
    held_out = str(tmp_path / "held_out.tfrecord")
    create_pretraining_data(
        str(small_corpus.folder / "train.txt"),
        held_out,
        str(vocab),
        max_seq_length=32,
        max_predictions_per_seq=5,
        dupe_factor=1,
    )
    given = files | SMALL | {"eval_files": held_out}
    assert call(given) == 2
    assert "eval_files must be made with the vocabulary of" in capsys.readouterr().err
    (tmp_path / "others.tfrecord").write_bytes(  # as of another tool: of an unknown vocabulary
        next(small_corpus.folder.glob("train_32.tfrecord-*")).read_bytes()
    )
    given |= {"input_files": f"{tmp_path}/others.tfrecord", "model_dir": f"{tmp_path}/unknown"}
    assert call(given) == 0
    assert not (tmp_path / "unknown/vocab.txt").exists()


def test_warnings_of_the_builder_come_again_when_its_records_are_opened(
    files, small_corpus, tmp_path, capsys
):
    text = tmp_path / "text.txt"
    lines = (small_corpus.folder / "train.txt").read_text().split("\n")
    text.write_text("\n\n".join(filter(None, lines)))  # a blank line after every sentence
    shards = str(tmp_path / "records.tfrecord")
    settings = Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=1)
    given = {"input_format": "sentences", "num_workers": 1, "allow_unfit_text": True}
    create_pretraining_data(str(text), shards, small_corpus.vocab_file, settings, **given)
    (made,) = [made for _, made in record_files.manifests([shards])]
    warnings = manifest.warnings(made)
    assert any("sentence" in warning for warning in warnings)
    once = {"input_files": shards, "num_steps_per_epoch": 1, "warmup_steps": 1}
    assert call(files | SMALL | once) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [f"warning: {shards}: {warning}" for warning in warnings]


def test_a_warm_up_longer_than_the_run_is_done_as_far_as_it_goes_with_a_warning(files, capsys):
    changed = {"warmup_steps": 60, "log_steps": 1, "num_steps_per_epoch": 3}
    assert call(files | SMALL | changed) == 0
    said = capsys.readouterr().out
    assert "has 3 steps, but its warm-up takes 60" in said
    assert "rate 1.67e-04" in said  # 5e-3 · 2 / 60, in the third update


def test_a_run_in_a_bucket_keeps_whether_xla_compiled_it_when_jax_resumes_it(tmp_path):
    (tmp_path / "run.json").write_text('{"stages": [], "enable_xla": true}')
    engine = TfDistribute(tf.distribute.get_strategy())  # on a CPU, where the default is off
    for model_dir in (str(tmp_path), f"file://{tmp_path}"):
        args = Pretrain(input_files=("a",), engine="jax", model_dir=model_dir)
        assert machine.enable_xla(args, None, engine, model_dir)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"output_dir": "x"}, "--output_dir is called --model_dir here."),
        ({"num_train_steps": 7}, "--num_train_steps is --num_steps_per_epoch times"),
        ({"bert_config_file": "/nowhere/c.json"}, "must be a readable file; got '/nowhere/c.json'"),
        ({"bert_config_file": "/"}, "must be a readable file; got '/' (Is a directory)."),
        ({"bert_config_file": sys.executable}, f"{sys.executable} must be JSON; got"),
        ({"bert_config_file": ""}, "--bert_config_file is required"),
        ({"input_files": "/nowhere/*.tfrecord"}, "/nowhere/*.tfrecord"),
        ({"max_seq_length": 48}, "train_48.tfrecord"),
        ({"max_predictions_per_seq": 7}, "max_predictions_per_seq"),
        (
            {"optimizer_type": "sgd"},
            "optimizer_type must be lamb, adamw, lars, orscale, muon or MODULE:CLASS",
        ),
        ({"optimizer_type": "no_such:Thing"}, "can be imported; got 'no_such:Thing': No module"),
        ({"optimizer_settings": '{"nestrov": 1}'}, "optimizer_settings must be arguments of lamb_"),
        ({"dtype": "int8"}, "dtype must be fp32 or bf16 or fp16"),
        ({"reduce_dtype": "fp8"}, "reduce_dtype must be fp32 or bf16 or fp16"),
        ({"reduce_dtype": "fp16"}, "reduce_dtype must be fp32 or bf16 with dtype=fp32; got 'fp16'"),
        ({"dtype": "fp16", "loss_scale": "big"}, "loss_scale must be 'dynamic' or a number"),
        ({"distribution_strategy": "parameter_server"}, "Pass multi_worker_mirrored"),
        (
            {"distribution_strategy": "mirrored", "num_gpus": 64},
            "num_gpus must be at most 0, the number",
        ),
        ({"tpu": "my-tpu"}, "Pass distribution_strategy=tpu"),
        ({"worker_hosts": "a:1,b:1"}, "must be multi_worker_mirrored with worker_hosts"),
        ({"local_workers": 2}, "--distribution_strategy: --local_workers already sets this"),
        ({"engine": "torch"}, "--engine must be tensorflow or jax; got 'torch'. On torch, only"),
        ({"engine": "jax"}, "--distribution_strategy: --engine=jax trains on all devices of"),
        (
            {"engine": "jax", "distribution_strategy": "tpu", "tpu": "x"},
            "--tpu: with --engine=jax, start the command on every host of the slice",
        ),
        (
            {"engine": "jax", "distribution_strategy": "tpu", "task_index": 0},
            "--task_index: with --engine=jax and --distribution_strategy=tpu, JAX itself finds",
        ),
        (
            {"engine": "jax", "distribution_strategy": "tpu"},
            "--engine must match the Keras backend of this process, tensorflow; got jax.",
        ),
        ({"num_gpus": 1}, "num_gpus must be 0 with distribution_strategy='off', which uses"),
        ({"warmup_steps": 2.5}, "--warmup_steps must be a whole number; got 2.5"),
        ({"distribution_strategy": "TPU", "enable_xla": False}, "--enable_xla: JAX and TPUs alw"),
        ({"all_reduce_alg": "ring", "distribution_strategy": "mirrored"}, "all_reduce_alg must be"),
        ({"recipe": "demo"}, "--max_seq_length, --max_predictions_per_seq, --train_batch_size, --"),
        ({"profile_steps": "9"}, "profile_steps must be FIRST,LAST"),
        (
            {"profile_steps": "3,9"},
            "profile_steps must be within the 6 steps of this run; got 3,9.",
        ),
        ({"init_checkpoint": "/nowhere/model.ckpt"}, "/nowhere/model.ckpt must be a folder with"),
        (
            {"init_checkpoint": "/nowhere/a.ckpt.index"},
            "/nowhere/a.ckpt must be a folder with",
        ),
        (
            {"init_checkpoint": "s3://bucket/a"},
            "s3://bucket/a is not a readable TensorFlow checkpoint",
        ),
        (
            {"init_moments": True},
            "--init_moments: the moments are those of --init_checkpoint; give",
        ),
        ({"warmup_steps": -1}, "--warmup_steps must be at least 0"),
        ({"masked_lm_prob": 0.2}, "masked_lm_prob must be left out for records with fixed"),
        ({"warmup_steps": "nan"}, "--warmup_steps must be a finite number; got nan."),
        ({"learning_rate": "inf"}, "--learning_rate must be a finite number; got inf."),
        ({"weight_decay": "inf"}, "--weight_decay must be a finite number; got inf."),
        ({"epsilon": "inf"}, "--epsilon must be a finite number; got inf."),
        (
            {"dtype": "fp16", "loss_scale": "inf"},
            "loss_scale must be positive and finite; got 'inf'",
        ),
        ({"num_train_epochs": "inf"}, "--num_train_epochs must be a finite number; got inf."),
        ({"num_train_epochs": "nan"}, "--num_train_epochs must be a finite number; got nan."),
        (
            {"num_train_epochs": -1},
            "steps; got 6 times -1.",
        ),
        (
            {"num_train_epochs": 1e300},
            "must be 1 to 2,147,483,647 steps; got 6 times 1e+300.",
        ),
        ({"input_files": "s3://a/b*"}, "s3://a/b* needs the package tensorflow-io"),
        ({"eval_files": "s3://a/b"}, "s3://a/b needs the package tensorflow-io"),
        (
            {"model_dir": "s3://bucket/model"},
            "s3://bucket/model/run.json needs the package tensorflow-io",
        ),
        ({"model_dir": "gs:/bucket/model"}, "gs://bucket/folder; got 'gs:/bucket/model'"),
        ({"model_dir": ""}, "--model_dir is required"),
        ({"resume_from": 3}, "got 3, but no run has begun there. Leave it out."),
        ({"seed": 2**70}, "seed must fit in 64 bits"),
    ],
)
def test_what_cannot_work_ends_with_one_line_before_any_work(files, capsys, changed, message):
    assert call(files | SMALL | changed) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(pathlib.Path(files["model_dir"]).glob("*"))


def test_ctrl_c_before_the_first_update_ends_with_one_line(files, capsys, monkeypatch, request):
    monkeypatch.setattr(run_pretraining, "_trainer", lambda _: os.kill(os.getpid(), signal.SIGINT))
    # As in a terminal, also where the tests run in a shell's background, which ignores SIGINT.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, previous))
    assert call(files | SMALL) == 130
    said = capsys.readouterr()
    assert said.out == (
        "Stopped at once. Run the same command again to resume from the last checkpoint.\n"
    )
    assert said.err == ""


def test_a_signal_amid_the_first_files_waits_for_a_checkpoint(files, monkeypatch):
    def killed(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(trainer, "record_start", killed)
    assert call(files | SMALL) == 143
    assert checkpoints.CheckpointStore(files["model_dir"]).latest().step == 1


def test_a_second_ctrl_c_stops_at_once_also_after_a_sigterm(files, monkeypatch):
    def killed(*_):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(trainer, "record_start", killed)
    assert call(files | SMALL) == 130
    assert checkpoints.CheckpointStore(files["model_dir"]).latest() is None


def test_a_vocabulary_beyond_the_models_is_refused(files, small_corpus, tmp_path, capsys):
    config = json.loads(small_corpus.config.to_json()) | {"vocab_size": 200}
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    assert call(files | SMALL) == 2
    assert "vocab" in capsys.readouterr().err


SHORT_AND_LONG = """
    Stage(max_seq_length=32, max_predictions_per_seq=5, **same),
    Stage(max_seq_length=64, max_predictions_per_seq=10, **same),
"""


def write_recipe(folder, same, stages):
    """Writes a recipe of stages, expressions that may use `same`; the flag's value."""
    path = folder / "mine.py"
    path.write_text(
        "from official_bert.recipes import Recipe\n"
        "from official_bert.stages import Stage\n"
        f"same = {same}\n"
        f"def recipe():\n    return Recipe(stages=({stages}))\n"
    )
    return f"{path}:recipe"


def test_a_recipe_from_a_file_sets_the_stages(files, tmp_path):
    same = "dict(batch_size=8, learning_rate=1e-3, steps=2)"
    recipe = write_recipe(tmp_path, same, SHORT_AND_LONG)
    args = commands.parse(Pretrain, as_flags(files | {"recipe": recipe}))
    stages = run_pretraining.run_from_flags(args).stages
    assert [(stage.steps, stage.max_seq_length) for stage in stages] == [(2, 32), (2, 64)]


@pytest.mark.parametrize(
    ("flags", "trained"),
    [([], False), (["--use_next_sentence_label"], True), (["--nouse_next_sentence_label"], False)],
)
def test_a_recipe_says_whether_pairs_are_trained_unless_the_flag_does(
    files, tmp_path, flags, trained
):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "import dataclasses\n"
        "from official_bert import recipes\n"
        "def alone():\n"
        "    return dataclasses.replace(recipes.bert_base(), use_next_sentence_label=False)\n"
    )
    args = commands.parse(Pretrain, [*as_flags(files), f"--recipe={recipe}:alone", *flags])
    assert run_pretraining.run_from_flags(args).task.use_next_sentence_label is trained
    args = commands.parse(Pretrain, [*as_flags(files), "--recipe=bert_base"])
    assert run_pretraining.run_from_flags(args).task.use_next_sentence_label


def test_records_for_dynamic_masking_are_masked_as_the_flags_say(files, small_corpus, tmp_path):
    records = str(tmp_path / "dynamic.tfrecord")
    create_pretraining_data(
        str(small_corpus.folder / "train.txt"),
        records,
        small_corpus.vocab_file,
        Settings(max_seq_length=32, max_predictions_per_seq=5),
        num_workers=1,
        input_format="paragraphs",
        dynamic_masking=True,
    )
    dynamic = {"input_files": records, "max_predictions_per_seq": 12}
    few, many = (tmp_path / "few", tmp_path / "many")
    for share, folder in ((0.1, few), (0.4, many)):
        flag = {"masked_lm_prob": share, "model_dir": str(folder)}
        assert call(files | SMALL | dynamic | flag) == 0
    assert json.loads((many / "run.json").read_text())["masked_lm_prob"] == 0.4
    weights = [checkpoints.CheckpointStore(folder).latest().tensors() for folder in (few, many)]
    name = "bert/embeddings/word_embeddings"
    assert not np.array_equal(weights[0][name], weights[1][name])


def test_the_next_sentence_task_can_be_left_out(files, tmp_path):
    assert call(files | SMALL, "--nouse_next_sentence_label") == 0
    line = json.loads((tmp_path / "model" / "train_log.jsonl").read_text().splitlines()[-1])
    assert "next_sentence_loss" not in line
    assert line["loss"] == line["masked_lm_loss"]


def assert_profile_is_written_and_over(folder):
    assert list((folder / "model/summaries/train").rglob("*.xplane.pb"))
    with tf.profiler.experimental.Profile(str(folder / "another")):
        """Another can be begun: none is on."""


def test_a_profile_amid_which_a_run_fails_is_written(files, tmp_path):
    """In its second stage."""
    recipe = write_recipe(
        tmp_path,
        "dict(batch_size=8, steps=20, max_seq_length=32, max_predictions_per_seq=5)",
        "Stage(learning_rate=1e-3, **same), Stage(learning_rate=1e30, **same)",
    )
    changed = {"distribution_strategy": "off", "profile_steps": "5,40", "max_skipped_updates": 3}
    assert call(files | {"recipe": recipe} | changed) == 3
    assert_profile_is_written_and_over(tmp_path)


def test_summaries_and_a_profile_are_written_and_one_that_lies_behind_is_warned_of(
    files, tmp_path, capsys
):
    settings = files | SMALL | {"profile_steps": "2,3"}
    assert call(settings) == 0
    assert "warning" not in capsys.readouterr().out
    assert list((tmp_path / "model/summaries/train").glob("events.out.tfevents.*"))
    assert_profile_is_written_and_over(tmp_path)
    assert call(settings) == 0
    message = "warning: profile_steps=2,3 has no effect: this run resumes after step 6"
    assert message in capsys.readouterr().out


@pytest.fixture
def many_records(small_corpus, tmp_path):
    """A function that writes more records than are read at once, one of them bad."""
    paths = sorted(map(str, small_corpus.folder.glob("train_32.tfrecord-*")))
    good = next(iter(tf.data.TFRecordDataset(paths).as_numpy_iterator()))

    def write(bad, count, window):
        frames = [records.frame(good)] * count
        path = tmp_path / "many.tfrecord"
        path.write_bytes(b"".join(frames))
        data = input_pipeline.Batches([str(path)], 64, 32, 5, window_records=window)
        blocks = -(-count // records.RECORDS_PER_BLOCK)
        last = int(data._epoch_order(0, blocks)[-1])  # the last to be read in the first epoch
        frames[last * records.RECORDS_PER_BLOCK + 7] = bad(good)
        path.write_bytes(b"".join(frames))
        return {"input_files": str(path)}, f"{path}, record {last * records.RECORDS_PER_BLOCK + 7}"

    return write


def damaged(good):
    damage = bytearray(records.frame(good))
    damage[40] ^= 1
    return bytes(damage)


def with_changed_ids(change):
    def bad(good):
        example = tf.train.Example.FromString(good)
        change(example.features.feature["input_ids"].int64_list.value)
        return records.frame(example.SerializeToString())

    return bad


def assert_ended_at_a_record(code, error, where, what, model_dir):
    assert code == 2
    assert error.count("\n") == 1, error
    assert error.startswith(f"run_pretraining: error: {where}")
    assert what in error
    assert "records and run the same command again; if the repair changes them, add" in error
    assert checkpoints.CheckpointStore(model_dir).latest().step > 0


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (damaged, "its checksum does not match"),
        (with_changed_ids(lambda ids: ids.__setitem__(5, 9999)), "; got 9999. Make the"),
        (with_changed_ids(lambda ids: ids.append(1)), "must have length 32; got 33"),
    ],
)
def test_a_bad_record_in_mid_run_ends_it_in_one_line(
    files, many_records, bad, what, capfd, monkeypatch
):
    names, where = many_records(bad, 2048, 1024)
    settings = files | SMALL | names | {"train_batch_size": 64, "num_steps_per_epoch": 99}
    monkeypatch.setattr(input_pipeline, "WINDOW_RECORDS", 1024)
    monkeypatch.setattr(record_files, "BLOCKS_IN_FINGERPRINT", 1)  # which would find it before
    code = call(settings | {"save_checkpoints_steps": 4})
    assert_ended_at_a_record(code, capfd.readouterr().err, where, what, files["model_dir"])


@pytest.mark.slow
def test_a_process_ends_in_one_line_at_a_damaged_record(files, small_corpus, many_records):
    names, where = many_records(damaged, 80_000, input_pipeline.WINDOW_RECORDS)
    shape = json.loads(small_corpus.config.to_json())
    shape |= {"hidden_size": 8, "intermediate_size": 8}
    pathlib.Path(files["bert_config_file"]).write_text(json.dumps(shape))
    settings = files | SMALL | names | {"train_batch_size": 4096, "num_steps_per_epoch": 99}
    settings |= {"save_checkpoints_steps": 4}
    process = start(settings, stderr=subprocess.PIPE, popen=subprocess.Popen)
    _, error = process.communicate()
    what = "its checksum does not match"
    assert_ended_at_a_record(process.returncode, error, where, what, files["model_dir"])


def start(settings, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, popen=warm_python.Popen):
    """The command as a process, quiet, with its output in a pipe."""
    return popen(
        [sys.executable, "-m", "official_bert.run_pretraining", *as_flags(settings)],
        stdout=stdout,
        stderr=stderr,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )


STAGES = (48, 24, 24)
THREE_STAGES = """
    Stage(steps={}, depth=1, max_seq_length=32, max_predictions_per_seq=5, **same),
    Stage(steps={}, depth=2, max_seq_length=32, max_predictions_per_seq=5,
          trained_layers=(1,), train_embeddings=False, **same),
    Stage(steps={}, depth=2, max_seq_length=64, max_predictions_per_seq=10, **same),
""".format(*STAGES)


def result(model_dir):
    """All that a run leaves, by file, without what is a matter of the machine or of the starts."""
    found = {}
    for path in pathlib.Path(model_dir).rglob("*"):
        if path.is_file() and path.name != run_files.STARTS and "tfevents" not in path.name:
            name, content = str(path.relative_to(model_dir)), path.read_bytes()
            if name == "train_log.jsonl":
                content = [json.loads(line) for line in content.splitlines()]
                for line in content:
                    line.pop("timing", None)
            elif name.startswith("ctl_step") and name.endswith(".json"):
                content = json.loads(content)
                content["state"].pop("seconds")
                content["state"]["loop"].pop("input_wait")
                content["sha256"].pop("state")
            found[name] = content
    return found


def steps_saved(model_dir):
    names = pathlib.Path(model_dir).glob("ctl_step_*.json")
    return max(
        (int(path.name.split(".")[0].removeprefix("ctl_step_")) for path in names), default=0
    )


def wait_until(condition, process):
    while not condition() and process.poll() is None:
        time.sleep(0.0002)


@pytest.mark.slow
def test_kills_at_random_moments_of_the_whole_run_change_not_a_bit_of_what_it_leaves(
    files, small_corpus, tmp_path
):
    """SIGKILL in mid-checkpoint, at changes of stage, in the last export, and at any moments."""
    same = "dict(batch_size=8, learning_rate=1e-3, warmup_steps=5)"
    shape = json.loads(small_corpus.config.to_json()) | {"num_hidden_layers": 2}
    pathlib.Path(files["bert_config_file"]).write_text(json.dumps(shape))
    settings = files | {
        "recipe": write_recipe(tmp_path, same, THREE_STAGES),
        "eval_files": small_corpus.held_out,
        "eval_steps": 16,
        "log_steps": 6,
        "save_checkpoints_steps": 4,
        "keep_checkpoint_max": 2,
        "distribution_strategy": "off",
    }
    whole = start(settings | {"model_dir": str(tmp_path / "whole")})
    seed = random.randrange(2**32)  # other moments every time; a failure prints it
    rng = random.Random(seed)
    model_dir, total = tmp_path / "model", sum(STAGES)
    # The folder in whose mid-writing to kill, in some tenths of the run; else after a while.
    folders = {0: model_dir / "best", rng.choice([1, 6]): model_dir}
    changes = {5: STAGES[0], 7: STAGES[0] + STAGES[1]}
    changes = dict([rng.choice([*changes.items()]), (10, total)])  # of stage, and to the export
    moments = [
        (
            changes.get(tenth, rng.randrange(tenth * total // 10, (tenth + 1) * total // 10)),
            folders.get(tenth, rng.random() / (50 if tenth == 10 else 1)),
        )
        for tenth in sorted([*folders, *changes, rng.choice([2, 3, 4, 8, 9])])
    ]
    kills = 0
    for step, how in moments:
        process = start(settings, stdout=subprocess.DEVNULL)
        wait_until(lambda step=step: steps_saved(model_dir) >= step, process)
        if isinstance(how, float):
            time.sleep(how)
        else:
            wait_until(lambda how=how: list(how.glob(".writing-*")), process)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    # A busy machine may miss a moment, and the run comes to its end before.
    assert kills >= 3, f"only {kills} kills; seed {seed}, moments {moments}"
    for process in (whole, start(settings, popen=subprocess.Popen)):
        output, _ = process.communicate()
        assert process.returncode == 0, output
    left, wanted = result(model_dir), result(tmp_path / "whole")
    assert left.keys() == wanted.keys(), f"after kills at {moments}, seed {seed}"
    for name, content in wanted.items():
        assert left[name] == content, f"{name} differs after kills at {moments}"
    for kind in ("train", "eval"):
        shown, wanted_steps = (
            events.steps(folder / "summaries" / kind, "masked_lm_loss")
            for folder in (model_dir, tmp_path / "whole")
        )
        assert shown == wanted_steps, f"TensorBoard shows others after kills at {moments}"


@pytest.mark.slow
def test_many_stages_of_one_model_are_traced_once_a_shape_and_nothing_is_on_stderr(files, tmp_path):
    """TensorFlow warns of 5 traces in some 10 calls, which 8 stages of one call each would be."""
    same = "dict(batch_size=8, learning_rate=1e-3, steps=3)"
    recipe = write_recipe(tmp_path, same, SHORT_AND_LONG * 4)
    settings = files | {"recipe": recipe, "steps_per_loop": 3}
    process = start(settings, stderr=subprocess.PIPE, popen=subprocess.Popen)
    output, error = process.communicate()
    assert process.returncode == 0
    assert output.count("stage 8") == 2
    assert error == ""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_says_how_to_go_on_and_ends(files, number, code):
    """It also writes the profile that is being made."""
    long = {"num_steps_per_epoch": 100_000, "log_steps": 20, "profile_steps": "5,90000"}
    process = start(files | SMALL | long)
    for line in process.stdout:
        if line.startswith("step"):
            process.send_signal(number)
            break
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait() == code
    step = checkpoints.CheckpointStore(files["model_dir"]).latest().step
    assert f"Stopped at step {step}. Run the same command again" in rest
    assert "Traceback" not in rest
    assert list(pathlib.Path(files["model_dir"]).rglob("*.xplane.pb"))
