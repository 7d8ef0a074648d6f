"""Records, runs and loops of updates, for the benchmarks of training.

A run has one long stage. `engine_loop` runs its updates by the loop of an engine, `trainer_loop` by
the loop of the commands, with log, TensorBoard and progress line, and `bare_updates` on a batch
that is in memory.
"""

import contextlib
import io
import itertools
import pathlib

VOCAB_SIZE = 4096


def make_records(
    folder: pathlib.Path,
    max_seq_length: int = 128,
    max_predictions_per_seq: int = 20,
    num_documents: int | None = None,
    vocab_size: int = VOCAB_SIZE,
) -> tuple[str, int]:
    """Writes records with masks of the documentation that comes with Python.

    Text and vocabulary are next to them. Returns their path, and the number of word pieces.
    """
    from official_bert.create_pretraining_data import create_pretraining_data
    from official_bert.data import tokenization
    from official_bert.data.instances import Settings
    from official_bert.demonstration import stdlib_text

    found = itertools.islice(stdlib_text.documents(), num_documents)
    documents = ["\n".join(paragraphs) for _, paragraphs in found]
    text, vocab, records = (str(folder / name) for name in ("text.txt", "vocab.txt", "records"))
    pathlib.Path(text).write_text("\n\n".join(documents))
    size = tokenization.learn(documents, vocab, vocab_size)
    settings = Settings(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        dupe_factor=1,
    )
    create_pretraining_data(text, records, vocab, settings, input_format="paragraphs")
    return records, size


def make_run(config, file, batch_size, max_seq_length=128, max_predictions_per_seq=20, **values):
    """A run of one long stage by LAMB; `values` are further fields of `Run`."""
    from official_bert.stages import Optimizer, Run, Stage

    stage = Stage(
        steps=100_000,
        batch_size=batch_size,
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        learning_rate=1e-3,
        warmup_steps=100,
    )
    values = {"optimizer": Optimizer(), "stages": (stage,), "input_files": (str(file),)} | values
    return Run(config=config, **values)


def engine_loop(run, engine, updates, feed=None, measures_noise=False):
    """A function that runs `updates` updates by an engine's loop.

    Args:
        run: A run of one stage.
        feed: The batches; None: from `engine.feed`.

    Returns:
        The function, with the attributes `optimizer`; `waits`, the seconds per update for which
        each call has waited for input; and `reductions` and `state`, functions.
    """
    from official_bert.engines.loop_state import first_state
    from official_bert.training.stage_model import make_model_and_optimizer

    (stage,) = run.stages
    with engine.scope():
        model, optimizer = make_model_and_optimizer(run, stage)
    loop = engine.training_loop(run, model, optimizer)

    def batches(*shard):
        files, size = run.input_files, stage.batch_size
        return run.task.batches(files, stage.lengths, size, run.config, seed=run.seed, shard=shard)

    feed = feed or engine.feed(batches, range(stage.steps))
    measured = len(model.trainable_variables) if measures_noise else 0
    state = first_state(run).measuring_noise(measured, afresh=True)
    done = {"steps": 0, "state": state}

    def by_loop():
        waited = done["state"].input_wait
        done["state"] = loop(feed, done["steps"], updates, done["state"])
        done["steps"] += updates
        by_loop.waits.append((done["state"].input_wait - waited) / updates)

    by_loop.optimizer, by_loop.waits = optimizer, []
    by_loop.reductions = lambda: loop.reductions(feed, done["state"])
    by_loop.state = lambda: done["state"]
    return by_loop


def trainer_loop(run, updates, model_dir):
    """A `Trainer`, and a function that runs `updates` of its updates, one per call of the graph."""
    import tensorflow as tf

    from official_bert.engines.tf_distribute import TfDistribute
    from official_bert.stages import LoopOptions
    from official_bert.system import memory
    from official_bert.training.trainer import Trainer

    memory.tune_malloc()  # as the commands do
    (stage,) = run.stages
    engine = TfDistribute(tf.distribute.get_strategy())
    trainer = Trainer(run, LoopOptions(log_steps=updates, tensorboard=True), engine, model_dir)
    batches = trainer._records.training(stage)
    feed = engine.feed(lambda *_: batches, range(stage.steps))

    def by_loop():
        for _ in range(updates):
            trainer._state = trainer._pace.measure(
                lambda: trainer._loop(feed, trainer.step, 1, trainer._state), 1
            )
            trainer.step += 1
        with contextlib.redirect_stdout(io.StringIO()):
            trainer._reports.train(
                trainer.step, 0, trainer._state, trainer.optimizer, trainer._pace
            )
        trainer._state = trainer._state.new_window()
        trainer._pace.restart()

    return trainer, by_loop


def bare_updates(trainer, updates):
    """A function that runs forward pass, backward pass and update on the first batch of a run."""
    import tensorflow as tf

    from official_bert.engines.tf_update import make_replica_update

    run, strategy = trainer.run, tf.distribute.get_strategy()
    batch = trainer._records.training(run.stages[0])[0]
    batch = {name: tf.constant(values) for name, values in batch.items()}
    replica_update = make_replica_update(run, trainer.model, trainer.optimizer)

    @tf.function
    def update(step):
        return strategy.run(replica_update, args=(batch, step, 1.0, 0.0))

    def bare():
        for step in range(updates):
            update(tf.constant(step)).numpy()

    return bare
