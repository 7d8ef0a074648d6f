"""Three updates in one go, and stopped and resumed, of runs of any task on either engine.

    python tests/support/optimizer_runs.py FOLDER

makes those that `on_jax` has written there, in a process of its own: Keras has one backend each.
"""

import pathlib
import pickle
import sys

import jax_training
import numpy as np
import warm_python


def three_updates(run, engine, folder):
    """All tensors before, after three updates, and after a stop at the second and a resumption.

    The state goes through a checkpoint into a model and an optimizer made again, whose variables
    Keras calls otherwise, and back; only the program of the updates is not made twice. The longest
    call is the first: JAX makes another program for a longer one.
    """
    from official_bert.engines import loop_state
    from official_bert.training import checkpoints, model_state
    from official_bert.training.stage_model import make_model_and_optimizer

    (stage,) = run.stages

    def made():
        with engine.scope():
            return make_model_and_optimizer(run, stage)

    def state(*pair):
        return model_state.gather(*pair, engine.to_host)

    def opened(*shard):
        files = stage.resolve(run.input_files)
        return run.task.batches(
            files, stage.lengths, stage.batch_size, run.config, seed=run.seed, shard=shard
        )

    def update(first, steps):
        loop(engine.feed(opened, range(first, first + steps)), first, steps, zero)

    first, again, zero = made(), made(), loop_state.first_state(run)
    loop = engine.training_loop(run, *first)
    before = state(*first)
    update(0, 2)
    folder.mkdir(parents=True)
    checkpoints.write_bundle(folder / "model.ckpt-1", state(*first))
    update(2, 1)
    after = state(*first)
    model_state.restore(*again, checkpoints.read_tensors(folder / "model.ckpt-1"))
    model_state.restore(*first, state(*again))
    update(2, 1)
    return before, after, state(*first)


def on_jax(runs, folder):
    """What `three_updates` returns for {name: (run, number of devices)} on JAX, by name."""
    (folder / "runs").write_bytes(pickle.dumps(runs))
    command = [sys.executable, __file__, str(folder)]
    environment = jax_training.environment(devices=2)
    done = warm_python.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return pickle.loads((folder / "results").read_bytes())


def main(folder):
    import jax

    from official_bert.engines.jax_mesh import JaxMesh

    results = {}
    for name, (run, devices) in pickle.loads((folder / "runs").read_bytes()).items():
        engine = JaxMesh(devices=jax.devices()[:devices])
        found = three_updates(run, engine, folder / f"checkpoints/{len(results)}")
        results[name] = [{k: np.asarray(v) for k, v in tensors.items()} for tensors in found]
    (folder / "results").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
