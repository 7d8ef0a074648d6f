"""Flags without effect, over all commands: a warning where idle, an error where they contradict."""

import re

import pytest

from official_bert import (
    convert_checkpoint,
    create_pretraining_data,
    demo,
    rehearse,
    run_classifier,
    run_squad,
    run_tagger,
)
from official_bert.commands import commands, pretraining_settings, refused
from official_bert.commands.arguments import apply

RECORDS = "--input_file=a --output_file=b --vocab_file=c"
CONVERT = "--input=a --output=b --output_format=tf1"
REHEARSE = "--bert_config_file=a --topology=v3:2x2"
COMMANDS = {  # dataclass, module of its rules, flags that it requires
    "create_data": (create_pretraining_data.CreateData, create_pretraining_data, RECORDS),
    "run_pretraining": (pretraining_settings.Pretrain, pretraining_settings, "--input_files=b"),
    "run_classifier": (run_classifier.Classify, run_classifier, ""),
    "run_squad": (run_squad.Squad, run_squad, ""),
    "run_tagger": (run_tagger.Tag, run_tagger, ""),
    "convert_checkpoint": (convert_checkpoint.Convert, convert_checkpoint, CONVERT),
    "demo": (demo.Demo, demo, ""),
    "rehearse": (rehearse.Rehearse, rehearse, REHEARSE),
}


def parse(command, text):
    settings, _, required = COMMANDS[command]
    return commands.parse(settings, [*required.split(), *text.split()])


def applied(command, args):
    return apply(args, COMMANDS[command][1].RULES)


@pytest.mark.parametrize("command", COMMANDS)
def test_rules_name_flags_of_their_command(command):
    args = parse(command, "")
    for rule in COMMANDS[command][1].RULES:
        assert {*rule.names} <= {*commands.flags_of(type(args))}
        rule.reason.format_map(vars(args))
        rule.when(args)


@pytest.mark.parametrize(
    ("command", "given", "idle"),
    [
        ("create_data", "--dynamic_masking --dupe_factor=5", "dupe_factor"),
        ("create_data", "--dynamic_masking --use_v2_feature_names", "use_v2_feature"),
        ("create_data", "--one_random_stream --num_workers=3", "num_workers"),
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
        ("run_classifier", "--do_eval --minutes=7", "minutes"),
        ("run_classifier", "--do_eval --early_stopping=7", "early_stopping"),
        ("rehearse", "--topology=v3:2x2 --minutes=5", "minutes"),
        ("run_classifier", "--do_train --dev_file=a.tsv", "dev_file"),
        ("run_classifier", "--do_train --data_dir=a", "data_dir"),
        ("run_classifier", "--do_train --loss_scale=512", "loss_scale"),
        ("run_classifier", "--do_train --task_name=MRPC --predict_file=a.tsv", "predict_file"),
        ("run_squad", "--do_train --predict_file=a.json", "predict_file"),
        ("run_tagger", "--do_train --dev_file=a.conll", "dev_file"),
        ("run_tagger", "--do_eval --predict_file=a.conll", "predict_file"),
        ("run_tagger", "--do_predict --train_file=a.conll", "train_file"),
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
def test_an_idle_flag_is_warned_of_and_becomes_its_default(capsys, command, given, idle):
    args = applied(command, parse(command, given))
    said = capsys.readouterr().err
    assert said.startswith(f"warning: --{idle}")
    assert " has no effect " in said
    assert said.endswith(".\n")
    assert said.count("\n") == 1
    name = said.split()[1].removeprefix("--")
    assert name not in args.given
    assert getattr(args, name) == commands.flags_of(type(args))[name].default
    applied(command, args)
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
        ("run_pretraining", "--early_stopping=3 --eval_steps=5", "--early_stopping: it needs eval"),
        ("run_pretraining", "--early_stopping=3 --eval_files=a", "--early_stopping: it needs eval"),
        ("run_squad", "--do_train --early_stopping=3 --eval_steps=5", "give --do_eval and --eval"),
        ("run_tagger", "--do_train --do_eval --early_stopping=3", "give --do_eval and --eval"),
        (
            "run_classifier",
            "--do_train --minutes=9 --num_train_epochs=2",
            "--num_train_epochs: --m",
        ),
    ],
)
def test_a_flag_that_would_change_the_result_is_refused(capsys, command, given, message):
    args = parse(command, given)
    with pytest.raises(ValueError, match=message):
        applied(command, args)
    assert capsys.readouterr().err == ""


def test_flags_that_agree_with_what_happens_pass_in_silence(capsys):
    args = parse(
        "run_pretraining",
        "--local_workers=2 --distribution_strategy=multi_worker_mirrored --dtype=fp16 "
        "--loss_scale=dynamic --train_summary_interval=50 --log_steps=50 --eval_files=a "
        "--eval_steps=5 --all_reduce_alg=ring --tpu=",
    )
    assert applied("run_pretraining", args) is args
    assert capsys.readouterr().err == ""


def test_scoring_a_file_of_answers_ignores_the_flags_of_a_model_aloud(capsys):
    given = run_squad.Squad(evaluate=True, predict_file="a", predictions_file="b")
    run_squad.check(given.replaced(vocab_file="c", max_seq_length=64))
    assert capsys.readouterr().err == (
        "warning: --max_seq_length, --vocab_file have no effect with --evaluate, which scores a "
        "file of answers.\n"
    )
    with pytest.raises(ValueError, match="--do_predict: --evaluate scores a file of answers and"):
        run_squad.check(given.replaced(do_predict=True))


# Bounds


@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        ("run_pretraining", "--masked_lm_prob=15", "at least 0 and below 1; got 15. 15 % is 0.15."),
        ("run_pretraining", "--masked_lm_prob=-3", "at least 0 and below 1; got -3. 15 % is 0.15."),
        ("run_pretraining", "--max_ngram_size=0", "at least 1; got 0."),
        ("run_pretraining", "--beta_1=1", "at least 0 and below 1; got 1."),
        ("run_pretraining", "--minutes=0", "above 0; got 0."),
        ("run_pretraining", "--minutes=inf", "a finite number; got inf."),
        ("run_pretraining", "--report_to=wandb,x", "wandb or mlflow; got 'x'."),
        ("run_tagger", "--early_stopping=-1", "at least 0; got -1."),
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
        ("run_tagger", "--max_seq_length=2", "at least 3; got 2."),
        ("create_data", "--max_ngram_size=0", "at least 1; got 0."),
        ("create_data", "--strip_accents=foo", "true or false; got 'foo'."),
        ("run_classifier", "--do_lower_case=", "true or false; got ''."),
        ("create_data", "--short_seq_prob=10", "at least 0 and below 1; got 10. 10 %"),
        ("rehearse", "--host_network_gbits=0", "at least 0.001; got 0."),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_flag(command, given, message):
    name = given.split("=")[0]
    with pytest.raises(ValueError, match=f"^{name} must be .*{re.escape(message)}"):
        parse(command, given)


def test_the_ends_of_the_bounds_are_legal():
    args = parse("run_pretraining", "--global_clipnorm=0 --beta_1=0 --layer_decay=1")
    assert args.optimizer().global_clipnorm == 0


@pytest.mark.parametrize("written", ["-ng 1", "--ng=1", "--nong", "--output_dir out"])
def test_a_flag_of_another_script_is_refused_before_what_follows_it(written):
    name = written.lstrip("-").removeprefix("no").split("=")[0].split()[0]
    reason = refused.flags(pretraining_settings.Pretrain)[name]
    with pytest.raises(ValueError, match=f"^{re.escape(f'--{name} {reason}')}$"):
        parse("run_pretraining", written)


@pytest.mark.parametrize("text", [",", "a,", "a,,b", " , a"])
@pytest.mark.parametrize("name", ["input_files", "eval_files"])
def test_an_empty_name_in_a_list_of_files_is_refused(name, text):
    args = parse("run_pretraining", "--bert_config_file=a").replaced(
        **{name: tuple(member.strip() for member in text.split(","))}
    )
    with pytest.raises(ValueError, match=rf"--{name} must be .*; got '.*,.*'\. Is a variable"):
        pretraining_settings.check(args)


def test_an_empty_expression_would_freeze_everything():
    args = parse("run_pretraining", "--bert_config_file=a --freeze=layer_0/,")
    with pytest.raises(ValueError, match="freeze must contain no empty expression"):
        pretraining_settings.check(args)


# Arguments


def test_settings_know_which_of_them_were_given_by_flags_or_in_python():
    args = parse("run_pretraining", "--dtype=fp32 --noinit_moments --seed=7 --seed=8")
    assert args.given == {"input_files", "dtype", "init_moments", "seed"}
    assert (args.seed, args.init_moments, args.input_files) == (8, False, ("b",))
    same = pretraining_settings.Pretrain(
        dtype="fp32", init_moments=False, seed=8, input_files=("b",)
    )
    assert (same, same.given) == (args, args.given)
    assert commands.parse(type(args), commands.as_flags(args)) == args
    assert args.without(["seed"]).given == args.given - {"seed"}


def test_a_command_line_repeats_lists_that_contain_commas():
    args = parse("run_pretraining", "").replaced(freeze=("layer_[0-5]/", "a{1,2}"))
    assert commands.parse(type(args), commands.as_flags(args)).freeze == args.freeze
