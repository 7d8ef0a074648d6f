"""Runs of the JAX engine, in a process of its own: Keras has one backend per process.

    python tests/support/jax_training.py JOBS.json

trains every job of a list, one after another; `make_run` makes the same run for the other engine,
which is used where Keras' backend is TensorFlow.
"""

import dataclasses
import json
import os
import pathlib
import signal
import sys

import warm_python

from official_bert.model.config import BertConfig
from official_bert.stages import LoopOptions, Optimizer, Run, Stage

OPTIONS = {"log_steps": 5, "save_checkpoints_steps": 5, "keep_checkpoint_max": 0}
STAGE = Stage(
    steps=30,
    batch_size=16,
    max_seq_length=32,
    max_predictions_per_seq=5,
    learning_rate=5e-3,
    warmup_steps=3,
)


def make_run(job):
    """The run of a job, a dictionary of JSON values; what it does not say is as above."""
    config = BertConfig.from_values(job["config"])
    stages = job.get("stages", [{}])
    return Run(
        config=dataclasses.replace(config, **job.get("model", {})),
        stages=tuple(dataclasses.replace(STAGE, **stage) for stage in stages),
        optimizer=Optimizer(**job.get("optimizer", {})),
        input_files=(job["records"],),
        **job.get("run", {}),
    )


def make_options(job):
    held_out = {"eval_files": (job["held_out"],)} if job.get("evaluates") else {}
    given = OPTIONS | {"steps_per_loop": 5} | held_out | job.get("options", {})
    return LoopOptions(**given)


def train(job, engine):
    """Trains a job to its end; the text of what ended it before, if anything did."""
    from official_bert.training.trainer import Diverged, Trainer

    if "killed_at" in job:
        engine.training_loop = _killed_at(job["killed_at"], engine.training_loop)
    try:
        Trainer(make_run(job), make_options(job), engine, job["model_dir"]).train()
    except Diverged as error:
        return str(error)
    return None


def _killed_at(step, make_loop):
    """The engine's `training_loop`, whose process is killed before it makes the step."""

    def training_loop(*arguments):
        loop = make_loop(*arguments)

        def watched(batches, first_step, steps, state):
            if first_step <= step < first_step + steps:
                os.kill(os.getpid(), signal.SIGKILL)
            return loop(batches, first_step, steps, state)

        return watched

    return training_loop


def job(corpus, model_dir, **settings):
    """A job on a `small_text.SmallCorpus`, for `run_jobs` and `make_run`."""
    places = {"records": corpus.train, "held_out": corpus.held_out, "model_dir": str(model_dir)}
    return {"config": dataclasses.asdict(corpus.config), **places, **settings}


def run_jobs(jobs, folder, devices=1):
    """Trains jobs in a process of the JAX engine; what ended each, and its other results."""
    done = run_process(jobs, folder, devices)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def run_process(jobs, folder, devices=1, backend="jax"):
    """The ended process that trains jobs."""
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    return warm_python.run(
        [sys.executable, __file__, str(path)],
        env=environment(devices) if backend == "jax" else {**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )


def environment(devices=1):
    """The variables of a process with this many CPU devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    root = str(pathlib.Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PYTHONPATH": path,
    }


def sizes(job):
    """Bytes of a device's memory for what an update takes, and those of all weights."""
    import jax

    from official_bert.data.input_pipeline import batch_spec
    from official_bert.engines import jax_update
    from official_bert.engines.jax_placement import Placement
    from official_bert.training.stage_model import make_model_and_optimizer

    run = make_run(job)
    stage = run.stages[0]
    model, optimizer = make_model_and_optimizer(run, stage)
    placement = Placement(jax.devices(), **job.get("engine", {}))
    batch = batch_spec(stage.batch_size, *stage.lengths)
    memory = jax_update.lower(run, model, optimizer, placement, batch).compile().memory_analysis()
    weights = 4 * sum(variable.value.size for variable in model.trainable_variables)
    return {"arguments": memory.argument_size_in_bytes, "weights": weights}


def make_engine(**settings):
    if os.environ["KERAS_BACKEND"] == "jax":
        from official_bert.engines.jax_mesh import JaxMesh

        return JaxMesh(**settings)
    import tensorflow as tf

    from official_bert.engines.tf_distribute import TfDistribute

    return TfDistribute(tf.distribute.get_strategy())


def main(path):
    results = []
    for each in json.loads(pathlib.Path(path).read_text()):
        ended = train(each, make_engine(**each.get("engine", {})))
        result = {"ended": ended, "tensorflow": "tensorflow" in sys.modules}
        results.append(result | (sizes(each) if each.get("measures") else {}))
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
