"""Flags without effect, over all commands: a warning where idle, an error where they contradict."""

import pytest
from absl import flags

from official_bert import convert_checkpoint, create_pretraining_data, demo, rehearse
from official_bert.commands import (
    classifier_flags,
    commands,
    flag_definitions,
    pretraining_flags,
    squad_flags,
)

COMMANDS = {
    "create_pretraining_data": (create_pretraining_data._define_flags, create_pretraining_data),
    "run_pretraining": (pretraining_flags.define_flags, pretraining_flags),
    "run_classifier": (classifier_flags.define_flags, classifier_flags),
    "run_squad": (squad_flags.define_flags, squad_flags),
    "convert_checkpoint": (convert_checkpoint._define_flags, convert_checkpoint),
    "demo": (demo._define_flags, demo),
    "rehearse": (rehearse.define_flags, rehearse),
}
REQUIRED = {
    "create_pretraining_data": "--input_file=a --output_file=b --vocab_file=c",
    "convert_checkpoint": "--input=a --output=b",
    "rehearse": "--bert_config_file=a",
}


@pytest.fixture
def parse():
    """A function of a command and its flags as one text: the flags, parsed, and the rules."""
    before = {*flags.FLAGS}

    def parsed(command, text):
        define, module = COMMANDS[command]
        define()
        flags.FLAGS([command, *REQUIRED.get(command, "").split(), *text.split()])
        return flags.FLAGS, module.RULES

    yield parsed
    flags.FLAGS.unparse_flags()
    for name in {*flags.FLAGS} - before:
        delattr(flags.FLAGS, name)


@pytest.mark.parametrize("command", COMMANDS)
def test_rules_name_flags_of_their_command(parse, command):
    needed = {"rehearse": "--topology=v3:2x2", "convert_checkpoint": "--output_format=tf1"}
    values, rules = parse(command, needed.get(command, ""))
    for rule in rules:
        assert {*rule.names} <= {*values}
        rule.reason.format(**values.flag_values_dict())
        rule.when(values)


@pytest.mark.parametrize(
    ("command", "given", "idle"),
    [
        ("create_pretraining_data", "--dynamic_masking --dupe_factor=5", "dupe_factor"),
        ("create_pretraining_data", "--dynamic_masking --use_v2_feature_names", "use_v2_feature"),
        ("create_pretraining_data", "--one_random_stream --num_workers=3", "num_workers"),
        ("run_pretraining", "--eval_steps=5", "eval_steps"),
        ("run_pretraining", "--eval_batch_size=8", "eval_batch_size"),
        ("run_pretraining", "--loss_scale=dynamic", "loss_scale"),
        ("run_pretraining", "--optimizer_type=lars --beta_2=0.9", "beta_2"),
        ("run_pretraining", "--distribution_strategy=off --all_reduce_alg=nccl", "all_reduce_alg"),
        ("run_pretraining", "--distribution_strategy=tpu --num_gpus=8", "num_gpus"),
        ("run_pretraining", "--engine=jax --enable_xla", "enable_xla"),
        ("run_pretraining", "--engine=jax --all_reduce_alg=nccl", "all_reduce_alg"),
        ("run_pretraining", "--engine=jax --distribution_strategy=mirrored", "distribution_stra"),
        ("run_classifier", "--do_train --eval_batch_size=16", "eval_batch_size"),
        ("run_classifier", "--do_train --predict_batch_size=16", "predict_batch_size"),
        ("run_classifier", "--do_eval --train_file=a.tsv", "train_file"),
        ("run_classifier", "--do_eval --learning_rate=1e-4", "learning_rate"),
        ("run_classifier", "--do_eval --layer_decay=0.9", "layer_decay"),
        ("run_classifier", "--do_eval --seed=7", "seed"),
        ("run_classifier", "--do_train --dev_file=a.tsv", "dev_file"),
        ("run_classifier", "--do_train --data_dir=a", "data_dir"),
        ("run_classifier", "--do_train --loss_scale=512", "loss_scale"),
        ("run_classifier", "--do_train --task_name=MRPC --predict_file=a.tsv", "predict_file"),
        ("run_squad", "--do_train --predict_file=a.json", "predict_file"),
        ("run_squad", "--do_train --n_best_size=5", "n_best_size"),
        ("run_squad", "--do_predict --verbose_logging", "verbose_logging"),
        ("run_squad", "--do_predict --do_eval --eval_batch_size=8", "eval_batch_size"),
        ("run_squad", "--do_predict --null_score_diff_threshold=-2", "null_score_diff_threshold"),
        ("convert_checkpoint", "--output_format=keras --nokeep_slots", "keep_slots"),
        ("demo", "--corpus_format=paragraphs", "corpus_format"),
        ("rehearse", "--topology=v3:2x2 --log_steps=5", "log_steps"),
        ("rehearse", "--topology=v3:2x2 --local_workers=2", "local_workers"),
        ("rehearse", "--topology=v3:2x2 --host_network_gbits=5", "host_network_gbits"),
        ("rehearse", "--topology=h100:1x8 --host_network_gbits=5", "host_network_gbits"),
        ("rehearse", "--topology=h100:1x8 --price_per_chip_hour=5", "price_per_chip_hour"),
    ],
)
def test_an_idle_flag_is_warned_of_and_becomes_its_default(parse, capsys, command, given, idle):
    values, rules = parse(command, given)
    flag_definitions.apply(values, rules)
    said = capsys.readouterr().err
    assert said.startswith(f"warning: --{idle}")
    assert " has no effect " in said
    assert said.endswith(".\n")
    assert said.count("\n") == 1
    name = said.split()[1].removeprefix("--")
    assert values[name].value == values[name].default
    flag_definitions.apply(values, rules)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        ("run_pretraining", "--recipe=demo --learning_rate=1", "--learning_rate: --recipe=demo al"),
        ("run_pretraining", "--train_summary_interval=50", "--train_summary_interval: TensorBoard"),
        ("run_pretraining", "--shard_optimizer", "--shard_optimizer: only with --engine=jax"),
        ("run_pretraining", "--engine=jax --noenable_xla", "--enable_xla: JAX and TPUs alw"),
        ("run_pretraining", "--engine=jax --num_gpus=0", "--num_gpus: with --engine=jax, CUDA_"),
        ("run_pretraining", "--local_workers=2 --distribution_strategy=off", "--distribution_str"),
        ("run_classifier", "--do_eval --resume_from=10", "--resume_from: only with --do_train"),
        ("run_classifier", "--do_eval --num_seeds=2 --init_checkpoint=a", "--num_seeds: --init_"),
        ("run_classifier", "--do_eval --task_name=MRPC --dev_file=a", "--dev_file: --task_name="),
        ("run_squad", "--do_eval --predictions_file=a", "--predictions_file: only with --eval"),
        ("convert_checkpoint", "--output_format=keras --keep_slots", "--keep_slots: --output_form"),
        ("demo", "--corpus=", "--corpus: it names no file"),
    ],
)
def test_a_flag_that_would_change_the_result_is_refused(parse, capsys, command, given, message):
    values, rules = parse(command, given)
    with pytest.raises(ValueError, match=message):
        flag_definitions.apply(values, rules)
    assert capsys.readouterr().err == ""


def test_flags_that_agree_with_what_happens_pass_in_silence(parse, capsys):
    values, rules = parse(
        "run_pretraining",
        "--local_workers=2 --distribution_strategy=multi_worker_mirrored --dtype=fp16 "
        "--loss_scale=dynamic --train_summary_interval=50 --log_steps=50 --eval_files=a "
        "--eval_steps=5 --all_reduce_alg=ring --tpu=",
    )
    flag_definitions.apply(values, rules)
    assert capsys.readouterr().err == ""


def test_scoring_a_file_of_answers_ignores_the_flags_of_a_model_aloud(parse, capsys):
    given = "--evaluate --predict_file=a --predictions_file=b"
    values, _ = parse("run_squad", f"{given} --vocab_file=c --max_seq_length=64")
    squad_flags.check(values)
    assert capsys.readouterr().err == (
        "warning: --max_seq_length, --vocab_file have no effect with --evaluate, which scores a "
        "file of answers.\n"
    )
    flags.FLAGS(["run_squad", *given.split(), "--do_predict"])
    with pytest.raises(ValueError, match="--do_predict: --evaluate scores a file of answers and"):
        squad_flags.check(values)


# Bounds


def in_one_line(command, parse, text):
    with pytest.raises(flags.Error) as caught:
        parse(command, text)
    return commands.in_our_words(caught.value)


@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        ("run_pretraining", "--masked_lm_prob=15", "at least 0 and below 1; got 15. 15 % is 0.15."),
        ("run_pretraining", "--masked_lm_prob=-3", "at least 0 and below 1; got -3. 15 % is 0.15."),
        ("run_pretraining", "--max_ngram_size=0", "at least 1; got 0."),
        ("run_pretraining", "--beta_1=1", "at least 0 and below 1; got 1."),
        ("run_pretraining", "--beta_2=-0.1", "at least 0 and below 1; got -0.1."),
        ("run_pretraining", "--epsilon=-1", "at least 0; got -1."),
        ("run_pretraining", "--weight_decay=-1", "at least 0; got -1."),
        ("run_pretraining", "--global_clipnorm=-1", "at least 0; got -1. 0 is for no clipping."),
        ("run_pretraining", "--learning_rate=-1", "at least 0; got -1."),
        ("run_pretraining", "--warmup_steps=1e300", "at most 2,147,483,647; got 1e+300."),
        ("run_pretraining", "--log_steps=many", "a whole number; got 'many'."),
        ("run_pretraining", "--beta_1=high", "a number; got 'high'."),
        ("run_classifier", "--layer_decay=2", "above 0 and at most 1; got 2. 1 trains all layers"),
        ("run_classifier", "--warmup_proportion=10", "at least 0 and at most 1; got 10. 10 % is"),
        ("run_classifier", "--num_train_epochs=0", "above 0; got 0."),
        ("run_squad", "--doc_stride=0", "at least 1; got 0."),
        ("create_pretraining_data", "--max_ngram_size=0", "at least 1; got 0."),
        ("create_pretraining_data", "--short_seq_prob=10", "at least 0 and below 1; got 10. 10 %"),
        ("rehearse", "--host_network_gbits=0", "at least 0.001; got 0."),
    ],
)
def test_a_number_out_of_bounds_is_refused_by_its_flag(parse, command, given, message):
    found = in_one_line(command, parse, given)
    name = given.split("=")[0]
    assert found.startswith(f"{name} must be ")
    assert message in found


def test_the_ends_of_the_bounds_are_legal(parse):
    values, _ = parse("run_pretraining", "--global_clipnorm=0 --beta_1=0 --layer_decay=1")
    from official_bert.commands import optimizer_flags

    assert optimizer_flags.optimizer(values).global_clipnorm == 0


@pytest.mark.parametrize("written", ["-ng 1", "--ng=1", "--nong", "--output_dir out"])
def test_a_flag_of_another_script_is_refused_before_what_follows_it(parse, written):
    name = written.lstrip("-").removeprefix("no").split("=")[0].split()[0]
    reason = pretraining_flags.REFUSED[name]
    assert in_one_line("run_pretraining", parse, written) == f"--{name} {reason}"


@pytest.mark.parametrize("text", [",", "a,", "a,,b", " , a"])
@pytest.mark.parametrize("name", ["input_files", "eval_files"])
def test_an_empty_name_in_a_list_of_files_is_refused(parse, name, text):
    values, _ = parse("run_pretraining", "--bert_config_file=a --input_files=b")
    values[name].parse(text)
    with pytest.raises(ValueError, match=rf"--{name} must be .*; got '{text}'\. Is a variable"):
        pretraining_flags.check(values)


def test_an_empty_expression_would_freeze_everything(parse):
    values, _ = parse("run_pretraining", "--bert_config_file=a --input_files=b --freeze=layer_0/,")
    with pytest.raises(ValueError, match="freeze must contain no empty expression"):
        pretraining_flags.check(values)
