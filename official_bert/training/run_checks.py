"""What is checked of a run before the work: whether it fits devices, records and its directory.

`claim` is all of it, for the loop and for what is measured before one; `warnings` are about what
has no effect.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from official_bert import stacking
from official_bert.training import model_directory, model_state

if TYPE_CHECKING:
    import keras

    from official_bert.protocols import Engine
    from official_bert.stages import LoopOptions, Run
    from official_bert.system.places import Place
    from official_bert.training.run_records import RunRecords


def claim(
    run: "Run",
    options: "LoopOptions",
    engine: "Engine",
    records: "RunRecords",
    model_dir: "Place",
    resume_from: int | None = None,
) -> model_directory.Claim:
    """A run's right to its model directory, once its stages and records are found to be in order.

    Args:
        run: A `stages.Run`.
        options: A `stages.LoopOptions`.
        engine: Where the model is to live.
        records: Those of the run.
        model_dir: Its directory.
        resume_from: Step of the checkpoint to return to.

    Raises:
        ValueError: as `check`, `RunRecords.check` and `model_directory.check`.
        OSError: if a file cannot be read.
    """
    check(run, options, engine.num_replicas)
    description = run.describe() | {"records": records.check(engine.validate)}
    if run.init_checkpoint:
        description["init_weights"] = model_state.digest(run.init_checkpoint)
    return model_directory.check(model_dir, run.config, description, resume_from)


def check(run: "Run", options: "LoopOptions", replicas: int) -> None:
    """Refuses batches that cannot be divided, and updates that the run does not have.

    Args:
        run: A `stages.Run`.
        options: A `stages.LoopOptions`.
        replicas: Number of replicas that share a batch.

    Raises:
        ValueError: saying what does not fit.
    """
    stacking.check(run.config, run.stages)
    parts = replicas * run.gradient_accumulation_steps
    for stage in run.stages:
        if stage.batch_size % parts:
            raise ValueError(
                f"The global batch size must be a multiple of {parts} = {replicas} replicas × "
                f"{run.gradient_accumulation_steps} micro-batches (gradient_accumulation_steps); "
                f"got {stage.batch_size}. Change one of these numbers."
            )
    if options.eval_files and options.eval_batch_size % replicas:
        raise ValueError(
            f"eval_batch_size must be a multiple of the {replicas} replicas; got "
            f"{options.eval_batch_size}."
        )
    window = options.profile_steps
    if window and window[1] > run.total_steps:
        raise ValueError(
            f"profile_steps must be within the {run.total_steps} steps of this run; got "
            f"{window[0]},{window[1]}."
        )


def warnings(
    run: "Run", options: "LoopOptions", replicas: int, step: int, model: "keras.Model"
) -> Iterator[str]:
    """Sentences on settings that have no effect in a run that starts after `step` updates.

    These depend on devices, records and the model; the rules of the commands depend only on flags.
    """
    from official_bert.training import stage_model

    decay, depth = run.optimizer.layer_decay, model.config.num_hidden_layers
    rates = stage_model.layer_rates(model.trainable_variables, depth, decay) or ()
    if rates and all(rate == 1 for _, rate in rates):
        yield (
            f"layer_decay={decay:g} has no effect: encoder layers and embeddings are frozen, and "
            "all other variables use the full learning rate. Leave it out, or freeze less."
        )
    for index, stage in enumerate(run.stages):
        if stage.warmup_steps >= stage.steps:
            yield (
                f"stage {index + 1} has {stage.steps} steps, but its warm-up takes "
                f"{stage.warmup_steps}: the learning rate never reaches {stage.learning_rate:g}. "
                "Shorten the warm-up, or train longer."
            )
    if run.reduce_dtype != "fp32" and replicas == 1:
        yield (
            f"reduce_dtype={run.reduce_dtype} has no effect: with one replica there is nothing to "
            "reduce. Leave it out."
        )
    window = options.profile_steps
    if window and step >= window[1]:
        yield (
            f"profile_steps={window[0]},{window[1]} has no effect: this run resumes after step "
            f"{step}. Give later steps."
        )
