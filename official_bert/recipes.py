"""Recipes: functions that return the stages and the optimizer of a run, with their results.

    lamb-bert pretrain --recipe=NAME \
        --bert_config_file=bert_config.json --model_dir=model \
        --input_files='records/train_{max_seq_length}-*' \
        --eval_files='records/held_out_{max_seq_length}-*'

is every recipe's command, with a NAME of `RECIPES`, or `--recipe=FILE.py:FUNCTION` for one of your
own. Batches are global: on few devices add `--gradient_accumulation_steps`. A recipe fixes
everything that decides the result; flags of the optimizer override the recipe's values.

In a docstring, "Reports" gives the measurements of the recipe's source, with its hardware; numbers
that were recalled and not looked up are marked. "Measured here" gives what this project ran itself.
"""

import dataclasses
import functools
import math
import os
import re
import runpy
from collections.abc import Callable, Mapping
from typing import Any

from official_bert import stacking
from official_bert.stages import Optimizer, Stage
from official_bert.system import settings
from official_bert.system.settings import setting

PAPER_SEQUENCES = 512 * 1_000_000  # of the LAMB paper's BERT-Large runs; 40 epochs in its count
BERT_SEQUENCES = 256 * 1_000_000  # of the original BERT
LAMB_RATE_AT_32K = 5e-3
LAMB_WARMUP_STEPS = 3_125


@settings.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run's result apart from the model and the records."""

    stages: tuple[Stage, ...] = setting("The stages of the run, in order.")
    optimizer: Optimizer = setting("The settings of the optimizer.", default_factory=Optimizer)
    use_next_sentence_label: bool = setting("Whether the next-sentence task is trained.", True)
    minutes: float | None = setting(
        "A wall-clock budget. The steps of the stages are then proportions; their number is "
        "measured when the run begins (`budget.py`).",
        None,
    )


def find(name: str) -> Recipe:
    """The recipe for a name in `RECIPES`, `budget(MINUTES)`, `bert_base_budget(HOURS)`, or
    `FILE.py:FUNCTION`.

    Raises:
        ValueError: as `named`, or its function does not return a `Recipe`.
        OSError: if the file cannot be read.
    """
    recipe = named(name)()
    if not isinstance(recipe, Recipe):
        raise ValueError(f"{name} must return a recipes.Recipe; got {recipe!r}.")
    return recipe


def named(name: str) -> Callable[[], Recipe]:
    """The function that makes the recipe of a name; it imports Keras, which takes seconds.

    Raises:
        ValueError: if there is no such recipe.
        OSError: if the file cannot be read.
    """
    if timed := re.fullmatch(rf"({'|'.join(_BY_TIME)})\((.*)\)", name):
        return functools.partial(_of_time, *timed.groups())
    file, colon, function = name.rpartition(":")
    if colon and not os.path.isfile(file):
        raise ValueError(f"recipe must be FILE.py:FUNCTION with an existing file; got {name!r}.")
    functions: Mapping[str, Any] = runpy.run_path(file) if colon else RECIPES
    if not callable(functions.get(function)):
        choice = f"a function in {file}" if colon else f"one of {', '.join(RECIPES)}"
        raise ValueError(
            f"recipe must be {choice}, budget(MINUTES), bert_base_budget(HOURS), or "
            f"FILE.py:FUNCTION; got {name!r}."
        )
    return functions[function]


# Two phases: nine tenths of the sequences at length 128, one tenth at 512


def bert_base(batch_size: int = 4_096) -> Recipe:
    """BERT-Base by LAMB in two phases, on the same number of sequences as the original BERT.

    The rate and the warm-up follow the LAMB paper's rule for its batch table (`bert_large`); the
    62,500 updates of batch 4,096 are the original's 1,000,000 of 256.

    Hardware:  any; 8 GPUs of 40 GB hold the batch in 2 to 8 micro-batches.
    Time:      2.4e19 model FLOPs (`flops.step_flops`): 67 hours on one device that sustains
               100 TFLOP/s.
    Reports:   no published run. The original BERT-Base, by Adam: SQuAD 1.1 F1 88.5 (recalled).
    Measured here: the seconds per update on a CPU, in `benchmarks/mslt.py`; no complete run.
    """
    return Recipe(stages=_lamb_two_phase(batch_size, BERT_SEQUENCES))


def bert_large(batch_size: int = 32_768) -> Recipe:
    """BERT-Large by LAMB: the paper's batch table, 512 … 32,768, without tuning.

    Rate 5e-3 · √(batch / 32,768), 3,125 updates of warm-up, then linear decay over both phases.

        batch     updates      rate        SQuAD 1.1 F1   TPUv3 chips   time
        512       1,000,000    0.625e-3    91.752         16            82.8 h
        1,024       500,000    0.884e-3    91.761         32            43.2 h
        2,048       250,000    1.250e-3    91.946         64            21.4 h
        4,096       125,000    1.768e-3    91.137         128           693.6 min
        8,192        62,500    2.500e-3    91.263         256           390.5 min
        16,384       31,250    3.536e-3    91.345         512           200.0 min
        32,768       15,625    5.000e-3    91.475         1,024         101.2 min

    Hardware:  as in the table; other devices with micro-batches.
    Time:      as in the table.
    Reports:   the table, from arXiv 1904.00962, table 1. We read it so that both phases share one
               schedule, with no second warm-up; rates and warm-up are recalled.
    Measured here: no run; tests check the arithmetic and the schedule.
    """
    return Recipe(stages=_lamb_two_phase(batch_size, PAPER_SEQUENCES))


def bert_large_mixed_batch() -> Recipe:
    """BERT-Large in 8,599 updates: batch 65,536, then 32,768 with a second warm-up.

    In the second phase the rate rises from zero again. The paper does not print this run's rates.
    These, with a warm-up of 2,000 and 200 updates, are NVIDIA's for the same batches.

    Hardware:  1,024 TPUv3 chips.
    Time:      76.19 min there.
    Reports:   SQuAD 1.1 F1 90.584 (arXiv 1904.00962, table 1).
    Measured here: no run; tests check the arithmetic and the schedule. Both updates
               compile for that pod and fit; estimates are in `docs/tpu.md`.
    """
    first = _stage_128(steps=7_038, batch_size=65_536, learning_rate=6e-3, warmup_steps=2_000)
    second = _stage_512(steps=1_561, batch_size=32_768, learning_rate=4e-3, warmup_steps=200)
    return Recipe(stages=(first, second))


def bert_large_nvidia() -> Recipe:
    """BERT-Large as NVIDIA's scripts train it: their rates, decay and variant of LAMB.

    Every tensor has a trust ratio, also biases and LayerNorms. The warm-up is 28.43 % and 12.8 % of
    the phases. After it the rate falls as √(1 - t/T), counted from the start of a phase, so the
    rate drops when the warm-up ends. Moments are kept between the phases. Sequences of 512 have 80
    predictions.

    Hardware:  256 A100.
    Time:      1.2 h (their PyTorch), 2.02 h (their TensorFlow 2).
    Reports:   SQuAD 1.1 F1 90.96 and 90.94; final pre-training loss about 1.24.
    Measured here: no run; tests check the schedule against their formula.
    """
    decay = {"decay_power": 0.5, "decay_from": "start"}
    first = _stage_128(
        steps=7_038,
        batch_size=65_536,
        learning_rate=6e-3,
        warmup_steps=round(0.2843 * 7_038),
        **decay,
    )
    second = _stage_512(
        steps=1_563,
        batch_size=32_768,
        learning_rate=4e-3,
        warmup_steps=round(0.128 * 1_563),
        max_predictions_per_seq=80,
        **decay,
    )
    return Recipe(stages=(first, second), optimizer=Optimizer(exclude_from_layer_adaptation=()))


# MLPerf Training: from a published checkpoint to 0.72 of the masked tokens, at length 512


def bert_large_mlperf(batch_size: int = 768) -> Recipe:
    """The last records of LAMB on BERT: MLPerf Training, rounds 4.1 and 5.0.

    They train masked LM only, from the benchmark's checkpoint (`--init_checkpoint`), until 0.72 of
    the held-out masked tokens are right. Next to the LAMB paper, both decay rates of the moments
    are low, weight decay is high, and there is little warm-up or none.

        batch     rate      β₁       β₂       decay    steps   warm-up   minutes   on
        768       0.96e-3   0.60466  0.85437  0.1      3,680   0         5.469     8 H100
                                                                         3.384     8 B200
        8,192     3.44e-3   0.7206   0.78921  0.1      600     0 †       0.305     512 GB200
        13,888    3.60e-3   0.75     0.9      0.0167   480     290       0.119     3,472 H100

    † not in our notes of its log.

    Hardware:  as in the table.
    Time:      as in the table; the measured time ends when the accuracy is reached.
    Reports:   the table, from the logs of mlcommons/training_results_v4.1 (768 on H100, 13,888) and
               v5.0 (768 on B200, 8,192).
    Measured here: no run.
    """
    steps, warmup_steps, rate, beta_1, beta_2, decay = _MLPERF[batch_size]
    stage = _stage_512(
        steps=steps, batch_size=batch_size, learning_rate=rate, warmup_steps=warmup_steps
    )
    optimizer = Optimizer(beta_1=beta_1, beta_2=beta_2, weight_decay=decay)
    return Recipe(stages=(stage,), optimizer=optimizer, use_next_sentence_label=False)


_MLPERF = {  # batch: steps, warm-up, rate, β₁, β₂, weight decay
    768: (3_680, 0, 9.6e-4, 0.60466, 0.85437, 0.1),
    8_192: (600, 0, 3.44e-3, 0.7206, 0.78921, 0.1),
    13_888: (480, 290, 3.6e-3, 0.75, 0.9, 0.0167),
}


# AdamW, to compare with


def bert_base_adamw() -> Recipe:
    """The original BERT-Base: Adam with decoupled decay, batch 256, 1,000,000 updates.

    Hardware:  4 Cloud TPUs (16 chips).
    Time:      4 days there (recalled).
    Reports:   SQuAD 1.1 F1 88.5 (recalled, arXiv 1810.04805).
    Measured here: no run; tests check the arithmetic and the schedule.
    """
    return Recipe(stages=_adamw_two_phase(256), optimizer=Optimizer(type="adamw"))


def bert_large_adamw() -> Recipe:
    """BERT-Large by AdamW at batch 512: the baseline of the LAMB paper's table.

    The paper does not print its rate; 1e-4 and 10,000 updates of warm-up are the original BERT's.
    For a comparison at larger batches, tune AdamW as much as LAMB (arXiv 2102.06356).

    Hardware:  16 TPUv3 chips.
    Time:      81.4 h there.
    Reports:   SQuAD 1.1 F1 90.395 (arXiv 1904.00962, table 1).
    Measured here: no run; tests check the arithmetic and the schedule.
    """
    return Recipe(stages=_adamw_two_phase(512), optimizer=Optimizer(type="adamw"))


# Stacking


def bert_base_mslt() -> Recipe:
    """BERT-Base by MSLT: 3 + 3 + 3 + 3 layers, then all, with `bert_base`'s updates and batches.

    Hardware:  as `bert_base`.
    Time:      1.58× fewer model FLOPs than `bert_base`. Five equal phases of one length cost
               9 + 12 + 15 + 18 + 36 of 5 · 36 layers, 2.0× fewer. But the tenth of the updates at
               length 512 trains all layers in both runs. The paper reports more than 110 %
               speed-up, communication included.
    Reports:   "no significant degradation" (arXiv 2011.13635), with the authors' own schedule.
    Measured here: five equal phases at length 128 take 1.96× less time than `bert_base`'s updates
               on four CPU cores, at batch 16 (`benchmarks/mslt.py`); no complete run.
    """
    return Recipe(stages=stacking.mslt(bert_base().stages, (3, 6, 9, 12)))


def bert_large_mslt() -> Recipe:
    """BERT-Large by MSLT: 6 layers per stage, then all; `bert_large`'s updates at batch 4,096.

    Hardware:  as `bert_large`.
    Time:      1.60× fewer model FLOPs than `bert_large_4k`; see `bert_base_mslt`.
    Reports:   as `bert_base_mslt`.
    Measured here: no run; tests check the arithmetic.
    """
    return Recipe(stages=stacking.mslt(bert_large(4_096).stages, (6, 12, 18, 24)))


def bert_base_progressive_stacking() -> Recipe:
    """BERT-Base by Gong et al.'s doubling, 3 → 6 → 12; `bert_base`'s updates and batches.

    Hardware:  as `bert_base`.
    Time:      1.15× fewer model FLOPs than `bert_base`.
    Reports:   about 25 % less time to the same quality (recalled; Gong et al., ICML 2019).
    Measured here: no run; tests check the arithmetic.
    """
    return Recipe(stages=stacking.doubling(bert_base().stages, (3, 6, 12)))


# Small ones


def demo() -> Recipe:
    """A small BERT on the documentation that comes with Python: minutes on two CPU cores.

    With the short sequences of the first stage, the model leaves the plateau where it knows only
    word frequencies (`docs/recipes.md`). The second stage teaches the rest, with a warm-up of its
    own. The optimizer is Muon, two fifths of the tokens are masked, and rows are full
    (`docs/evidence/same_hour.md` has what each of these does). There is no next-sentence task: on
    this text its head stayed within a point of the majority label, and the same updates teach more
    about words without it. Muon's products cost the same for every batch: with 3,072 and 4,096
    tokens to an update, 2,250 updates teach as much as 4,000 of 2,048, in less time.

    Command: `make demo`.
    """
    first = Stage(
        steps=650,
        batch_size=192,
        max_seq_length=16,
        max_predictions_per_seq=7,
        learning_rate=5e-3,
        warmup_steps=100,
        end_learning_rate=2.5e-3,
    )
    second = Stage(
        steps=1_600,
        batch_size=64,
        max_seq_length=64,
        max_predictions_per_seq=26,
        learning_rate=3.5e-3,
        warmup_steps=200,
    )
    optimizer = Optimizer(type="muon", beta_2=0.98, weight_decay=0.1)
    return Recipe(stages=(first, second), optimizer=optimizer, use_next_sentence_label=False)


def small() -> Recipe:
    """A small BERT on Wikipedia in 20 minutes: sequences of 16 tokens, then of 128.

    The model has 4 layers of width 256, 4 heads, feed-forward width 1,024, 4,096 word pieces, 128
    positions, initial values of 0.04 and no dropout. As in `demo`, it leaves the plateau with short
    sequences. The trained 16 positions are added cyclically to the 112 new ones of the long
    sequences, so that the model does not return to the plateau. The first stage trains two layers;
    the second doubles them by copying. 44 % of the tokens are masked, then 25 %, in full rows.
    `docs/whole_way.md` has the commands from text to records. There is no next-sentence task: the
    same updates teach more about words without it.

    Hardware:  a CPU. One with instructions for bfloat16 takes 0.6 of the time with `--dtype=bf16`.
    Time:      20 minutes on one core in bfloat16.
    Reports:   nothing; the recipe is this project's.
    Measured here: all of it, `docs/results/small_wiki.md`: held-out masked-LM loss 2.743 nats,
               accuracy 46.6 % (the most frequent token: 4.3 %).
    """
    first = Stage(
        steps=2_500,
        batch_size=128,
        max_seq_length=16,
        max_predictions_per_seq=7,
        learning_rate=4e-3,
        warmup_steps=250,
        end_learning_rate=2e-3,
        depth=2,
    )
    second = Stage(
        steps=7_000,
        batch_size=16,
        max_seq_length=128,
        max_predictions_per_seq=32,
        learning_rate=5e-3,
        warmup_steps=250,
        new_positions="repeat",
    )
    return Recipe(
        stages=(first, second),
        optimizer=Optimizer(beta_2=0.98),
        use_next_sentence_label=False,
    )


def budget(minutes: float) -> Recipe:
    """`small` in `minutes` of wall-clock time on this machine: `--recipe='budget(20)'`.

    The stages keep their proportions. The number of updates is measured before the first one,
    written into `run.json`, and then fixed. So the run ends with the weights of a run with this
    number of updates, and a resumed run makes the same number, even on a slower machine.

    Hardware:  any.
    Time:      `minutes`, without start-up.
    """
    return dataclasses.replace(small(), minutes=minutes)


def bert_base_budget(hours: float) -> Recipe:
    """BERT-Base in `hours` of wall-clock time on this machine: `--recipe='bert_base_budget(24)'`.

    The demo's ingredients at the batch of the published cheap encoders: Muon, 30 % of the tokens
    masked, no next sentence, 4,096 sequences of 128 tokens for nine tenths of the updates, then
    1,024 of 512, to whose new positions the first 128 are added cyclically, as in `small`. Give it
    dynamic records with full rows, `--masked_lm_prob=0.3` and 39 and 154 predictions; a
    configuration without dropout; and `--dtype=bf16`. The number of updates is measured as in
    `budget`.

    Hardware:  a server with GPUs, or a slice of TPUs; other devices with micro-batches.
    Time:      `hours`, without start-up.
    Reports:   no published run of this mixture. Of its parts: MosaicBERT (GLUE 79.6 after 1.13 h on
               8 A100, 83.3 after 3.8 h) has the batch, the masks, bf16 and no next sentence, with
               AdamW and another architecture; the academic budget (BERT-Base's level after 24 h on
               8 GPUs of 12 GB) the batch, the length and no next sentence, with AdamW.
    Measured here: the ingredients on two layers of width 128 (`docs/evidence/same_hour.md`), the
               added positions in `small`, from 16 tokens to 128. No run at this size: the rate,
               1e-3, is a guess; try half and twice that value.
    """
    first = _stage_128(
        steps=9_000,
        batch_size=4_096,
        max_predictions_per_seq=39,
        learning_rate=1e-3,
        warmup_steps=600,
        end_learning_rate=1e-4,
    )
    second = _stage_512(
        steps=1_000,
        batch_size=1_024,
        max_predictions_per_seq=154,
        learning_rate=2e-4,
        warmup_steps=50,
        new_positions="repeat",
    )
    return Recipe(
        stages=(first, second),
        optimizer=Optimizer(type="muon", beta_2=0.98, weight_decay=0.1),
        use_next_sentence_label=False,
        minutes=60 * hours,
    )


_BY_TIME = {"budget": (budget, "MINUTES"), "bert_base_budget": (bert_base_budget, "HOURS")}


def _of_time(name, text):
    function, unit = _BY_TIME[name]
    try:
        time = float(text)
    except ValueError:
        time = math.nan
    if not 0 < time < math.inf:
        raise ValueError(
            f"{unit} of recipe {name}({unit}) must be a number above 0; got {text!r}. Give for "
            f"example {name}(24)."
        )
    return function(time)


# How recipes are made


def _lamb_two_phase(batch_size, sequences):
    """Rate ∝ √batch and constant warm-up steps, for the same number of sequences at any batch."""
    rate = LAMB_RATE_AT_32K * math.sqrt(batch_size / 32_768)
    return _two_phase(batch_size, sequences // batch_size, rate, LAMB_WARMUP_STEPS)


def _adamw_two_phase(batch_size):
    return _two_phase(batch_size, 1_000_000, 1e-4, 10_000)


def _two_phase(batch_size, steps, learning_rate, warmup_steps):
    """Nine tenths of the steps at length 128, the rest at 512, under one linear schedule."""
    first = math.ceil(0.9 * steps)
    between = learning_rate * (steps - first) / (steps - warmup_steps)
    return (
        _stage_128(
            steps=first,
            batch_size=batch_size,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            end_learning_rate=between,
        ),
        _stage_512(steps=steps - first, batch_size=batch_size, learning_rate=between),
    )


def _stage_128(**fields):
    return Stage(**{"max_seq_length": 128, "max_predictions_per_seq": 20, **fields})


def _stage_512(**fields):
    return Stage(**{"max_seq_length": 512, "max_predictions_per_seq": 76, **fields})


RECIPES = {
    "demo": demo,
    "small": small,
    "bert_base": bert_base,
    "bert_base_adamw": bert_base_adamw,
    "bert_base_mslt": bert_base_mslt,
    "bert_base_progressive_stacking": bert_base_progressive_stacking,
    "bert_large": bert_large,
    "bert_large_512": functools.partial(bert_large, 512),
    **{f"bert_large_{2**n}k": functools.partial(bert_large, 1024 * 2**n) for n in range(6)},
    "bert_large_mixed_batch": bert_large_mixed_batch,
    "bert_large_nvidia": bert_large_nvidia,
    **{
        f"bert_large_mlperf_{batch_size}": functools.partial(bert_large_mlperf, batch_size)
        for batch_size in _MLPERF
    },
    "bert_large_adamw": bert_large_adamw,
    "bert_large_mslt": bert_large_mslt,
}
