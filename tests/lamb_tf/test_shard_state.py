"""State that is divided among the devices of a `keras.distribution`: the same weights, less memory.

All is computed in one process with eight devices that XLA makes of the CPU.
"""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import lamb_tf

TRAIN = """
import functools, json
import jax, keras, numpy as np
import lamb_tf

DEVICES = 8

def trained(make, distribution):
    keras.distribution.set_distribution(distribution)
    optimizer = make()  # with the distribution set: its counters lie on all devices, too
    keras.utils.set_random_seed(1)
    model = keras.Sequential([
        keras.Input((24,)),
        keras.layers.Dense(64, activation="relu", name="hidden"),
        keras.layers.Dense(16, name="between"),
        keras.layers.Dense(3, name="last"),
    ])
    model.compile(optimizer=optimizer, loss="mse")
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(160, 24)).astype("float32"), rng.normal(size=(160, 3))
    model.fit(x, y.astype("float32"), batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model

def bytes_on_a_device(variables):
    device = jax.devices()[0]
    return sum(
        shard.data.nbytes for v in variables for shard in v.value.addressable_shards
        if shard.device == device
    )

def difference(ours, theirs):
    pairs = zip(ours, theirs)
    return max(float(np.abs(np.asarray(a.value) - np.asarray(b.value)).max()) for a, b in pairs)

def slots(model):
    pairs = [model.optimizer.slots(v).values() for v in model.trainable_variables]
    return [slot for values in pairs for slot in values]

assert jax.device_count() == DEVICES
out = {}
"""


OPTIMIZERS = {
    "lamb": "lamb_tf.LAMB(0.02, weight_decay=0.01, exclude_from_weight_decay=['bias'], "
    "global_clipnorm=1.0, use_ema=True, **options)",
    "lars": "lamb_tf.LARS(0.5, weight_decay=0.01, exclude_from_weight_decay=['bias'], "
    "trust_ratio_axes={'hidden/kernel': 0, 'between/kernel': 1}, **options)",
}
WHOLE_OR_DIVIDED = f"""
makers = {{{", ".join(f"{name!r}: lambda **options: {made}" for name, made in OPTIMIZERS.items())}}}
for name, make in makers.items():
    whole, divided = (
        trained(functools.partial(make, **options), keras.distribution.DataParallel())
        for options in ({{}}, {{"shard_state": "batch"}})
    )
    assert int(divided.optimizer.iterations.numpy()) == 20
    out[name] = {{
        "difference": difference(whole.weights, divided.weights),
        "of_slots": difference(slots(whole), slots(divided)),
        "bytes": [bytes_on_a_device(slots(model)) for model in (whole, divided)],
        "weights": bytes_on_a_device(divided.trainable_variables),
    }}
"""
DIVIDED_ALREADY = """
mesh = keras.distribution.DeviceMesh((4, 2), ("batch", "model"), jax.devices())
layouts = keras.distribution.LayoutMap(mesh)
layouts[".*hidden.kernel"] = (None, "model")
distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
models = [
    trained(lambda: lamb_tf.LAMB(0.02, shard_state=axis), distribution)
    for axis in (None, "batch", "model")
]
axes = [model.optimizer.slots(model.weights[0])["m"]._layout.axes for model in models]
differences = [difference(models[0].weights, model.weights) for model in models]
out["layouts"] = {"axes": axes, "difference": max(differences)}
"""
NO_SUCH_AXIS = """
from keras.distribution import DataParallel
for name, distribution in (("other", DataParallel()), ("batch", None)):
    try:
        trained(lambda: lamb_tf.LAMB(shard_state=name), distribution)
    except ValueError as error:
        out[name] = str(error)
model = trained(lambda: lamb_tf.LAMB(0.02, shard_state="batch"), DataParallel())
config = model.optimizer.get_config()
again = trained(lambda: lamb_tf.LAMB.from_config(config), None)
out["restored"] = {
    "axis": config["shard_state"], "difference": difference(model.weights, again.weights)
}
"""


@pytest.fixture(scope="module")
def found():
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8",
    }
    script = [TRAIN, WHOLE_OR_DIVIDED, DIVIDED_ALREADY, NO_SUCH_AXIS, "print(json.dumps(out))"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("name", "slots"), [("lamb", 2), ("lars", 1)])
def test_divided_state_gives_the_same_weights_after_20_updates_in_an_eighth(found, name, slots):
    result, parameters = found[name], 24 * 64 + 64 + 64 * 16 + 16 + 16 * 3 + 3
    assert result["difference"] < 1e-6
    assert result["of_slots"] < 1e-6
    assert result["weights"] == 4 * parameters
    assert result["bytes"][0] == 4 * slots * parameters
    # The three numbers of the last bias are all that eight devices cannot share.
    assert result["bytes"][1] == 4 * slots * ((parameters - 3) / 8 + 3)


def test_a_variable_that_is_divided_already_has_its_state_divided_further(found):
    assert found["layouts"]["axes"] == [[None, "model"], ["batch", "model"], [None, "model"]]
    assert found["layouts"]["difference"] < 1e-6


def test_an_axis_that_is_not_there_is_refused_and_a_saved_one_forgotten(found):
    assert "has only 'batch'" in found["other"]
    assert "there was no distribution" in found["batch"]
    assert "DataParallel" in found["batch"]
    assert found["restored"]["axis"] == "batch"
    assert found["restored"]["difference"] < 1e-5


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX can divide state")
def test_other_backends_refuse_it_when_the_optimizer_is_built():
    optimizer = lamb_tf.LAMB(shard_state="batch")
    with pytest.raises(ValueError, match=f"the backend {keras.backend.backend()} cannot"):
        optimizer.build([keras.Variable(np.zeros(3))])


@pytest.mark.parametrize("value", [True, 8, ""])
def test_what_is_no_name_is_refused(value):
    with pytest.raises(ValueError, match="`shard_state` must be a name, or None"):
        lamb_tf.LARS(shard_state=value)
