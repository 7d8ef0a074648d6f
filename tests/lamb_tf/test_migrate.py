"""Files of older LAMBs, read into Keras 3 models that then train as the old ones go on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import keras
import numpy as np
import peers
import pytest
import steps
import tensorflow as tf
import tf_keras

import lamb_tf
from lamb_tf import legacy, migrate

tfa = peers.addons()

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]

OPTIONS = {
    "learning_rate": 0.01,
    "beta_1": 0.8,
    "beta_2": 0.99,
    "epsilon": 1e-5,
    "weight_decay": 0.05,
    "exclude_from_weight_decay": ["bias", "norm"],
}


def model_of(layers, named=True):
    """The same small model in tf_keras or Keras 3, with sparse gradients and moving averages."""

    def name(text):
        return {"name": text} if named else {}

    return layers.Sequential(
        [
            layers.layers.Input((6,)),
            layers.layers.Embedding(20, 8, **name("embed")),
            layers.layers.Flatten(),
            layers.layers.BatchNormalization(**name("batch_norm")),
            layers.layers.Dense(16, activation="tanh", **name("hidden")),
            layers.layers.LayerNormalization(**name("layer_norm")),
            layers.layers.Dense(3, **name("head")),
        ]
    )


def fit(model, number, start=0):
    random = np.random.default_rng(7)
    x, y = random.integers(0, 20, (40 * 8, 6)), random.normal(size=(40 * 8, 3))
    part = slice(start * 8, (start + number) * 8)
    model.fit(x[part], y[part], batch_size=8, shuffle=False, verbose=0)
    return [np.asarray(w, "float64") for w in model.get_weights()]


def assert_same(ours, theirs, tolerance=5e-6):
    for a, b in zip(ours, theirs, strict=True):
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


def old_model(optimizer, named=True):
    tf_keras.utils.set_random_seed(0)
    model = model_of(tf_keras, named)
    model.compile(optimizer, "mse")
    fit(model, 10)
    return model


def new_model(named=True):
    keras.utils.set_random_seed(1)
    return model_of(keras, named)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Files of one model that `legacy.LAMB` has trained, by their form."""
    old, folder = old_model(legacy.LAMB(0.01)), tmp_path_factory.mktemp("saved")
    return {form: save(old, form, folder) for form in ("checkpoint", "h5")}


def save(model, form, folder):
    if form == "checkpoint":
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        return checkpoint.save(folder / "checkpoint")
    if form == "weights":
        model.save_weights(folder / "weights")
        return folder / "weights"
    path = folder / {"h5": "model.h5", "SavedModel": "model"}[form]
    model.save(path)
    return path


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("addons", "checkpoint"),
        ("addons", "h5"),
        pytest.param("addons", "weights", marks=pytest.mark.slow),
        pytest.param("addons", "SavedModel", marks=pytest.mark.slow),
        ("legacy", "h5"),
        ("tf-models", "checkpoint"),
        ("tf-models", "h5"),
    ],
)
def test_training_goes_on_as_the_old_one_would(tmp_path, source, form):
    options = dict(OPTIONS)
    if source == "tf-models":
        options["weight_decay_rate"] = options.pop("weight_decay")
        make = peers.module_alone("official.modeling.optimization.lamb").LAMB
    else:
        make = {"addons": tfa.optimizers.LAMB, "legacy": legacy.LAMB}[source]
    old = old_model(make(**options))
    path = save(old, form, tmp_path)
    trained = [
        [value.numpy() for value in (x, *(old.optimizer.get_slot(x, name) for name in "mv"))]
        for x in old.trainable_variables
    ]
    expected = fit(old, 20, start=10)

    model, optimizer = new_model(), lamb_tf.LAMB(**OPTIONS)
    hyperparameters = migrate.from_tf_keras(path, model, optimizer)
    for weight, copy in zip(trained, model.trainable_variables, strict=True):
        slots = optimizer.slots(copy)
        steps.assert_equal(weight, steps.values([copy, slots["m"], slots["v"]]))
    assert hyperparameters["beta_1"] == pytest.approx(0.8)
    assert hyperparameters["learning_rate"] == pytest.approx(0.01)
    assert int(optimizer.iterations) == 10
    model.compile(optimizer, "mse")
    assert_same(fit(model, 20, start=10), expected)
    assert int(optimizer.iterations) == 30


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_training_goes_on_with_another_backend_too(tmp_path, backend):
    old = old_model(tfa.optimizers.LAMB(**OPTIONS))
    paths = [str(save(old, form, tmp_path)) for form in ("h5", "checkpoint")]
    expected = fit(old, 20, start=10)
    script = (
        "import numpy as np, lamb_tf, test_migrate as t\n"
        f"assert t.keras.backend.backend() == {backend!r}\n"
        f"for path in {paths!r}:\n"
        "    model, optimizer = t.new_model(), lamb_tf.LAMB(**t.OPTIONS)\n"
        "    t.migrate.from_tf_keras(path, model, optimizer)\n"
        "    model.compile(optimizer, 'mse')\n"
        "    np.savez(path + '.npz', *t.fit(model, 20, start=10))\n"
    )
    root = Path(__file__).parents[2]
    folders = [str(root / folder) for folder in (".", "tests/support", "tests/lamb_tf")]
    environment = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    command = [sys.executable, "-c", script]
    subprocess.run(command, env=os.environ | environment, cwd=tmp_path, check=True)
    for path in paths:
        with np.load(f"{path}.npz") as weights:
            assert_same([weights[f"arr_{k}"] for k in range(len(expected))], expected)


@pytest.mark.parametrize("form", ["checkpoint", "h5"])
def test_layers_that_are_called_otherwise_are_paired_in_order_or_by_hand(tmp_path, form):
    old = old_model(legacy.LAMB(0.01), named=False)
    path = save(old, form, tmp_path)
    model, optimizer = new_model(), lamb_tf.LAMB(0.01)
    with pytest.raises(ValueError, match="must have one weight for"):
        migrate.from_tf_keras(path, model, optimizer)

    by_hand = dict(zip([v.path for v in model.weights], [v.name for v in old.weights], strict=True))
    migrate.from_tf_keras(path, model, optimizer, match=by_hand)
    assert_same(model.get_weights(), old.get_weights(), 0)

    # In order: only the moving averages, which no optimizer updates, still go by name.
    model, optimizer = new_model(), lamb_tf.LAMB(0.01)
    with pytest.raises(ValueError, match="batch_norm/moving_mean"):
        migrate.from_tf_keras(path, model, optimizer, match="order")


def test_order_pairs_models_without_other_weights(tmp_path):
    def small(layers, names):
        return layers.Sequential(
            [layers.layers.Input((6,)), *(layers.layers.Dense(3, name=name) for name in names)]
        )

    tf_keras.utils.set_random_seed(0)
    old = small(tf_keras, ["a", "b"])
    old.compile(legacy.LAMB(0.01), "mse")
    fit(old, 10)
    for form in ("checkpoint", "h5"):
        model, optimizer = small(keras, ["c", "d"]), lamb_tf.LAMB(0.01)
        migrate.from_tf_keras(save(old, form, tmp_path), model, optimizer, match="order")
        assert_same(model.get_weights(), old.get_weights(), 0)
        with pytest.raises(ValueError, match=r"optimizer in .* updated, 4; got 2"):
            migrate.from_tf_keras(
                save(old, form, tmp_path), small(keras, ["c"]), lamb_tf.LAMB(), match="order"
            )


def test_mixed_precision_state_is_found_inside_the_loss_scale_optimizer(tmp_path):
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        old = old_model(tfa.optimizers.LAMB(0.01))
        paths = [save(old, form, tmp_path) for form in ("checkpoint", "h5")]
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    for path in paths:
        model, optimizer = new_model(), lamb_tf.LAMB(0.01)
        migrate.from_tf_keras(path, model, optimizer)
        assert int(optimizer.iterations) == 10
        assert_same(model.get_weights(), old.get_weights(), 0)
        slots = optimizer.slots(model.trainable_variables[0])
        inner = old.optimizer.inner_optimizer
        m = inner.get_slot(old.trainable_variables[0], "m")
        np.testing.assert_array_equal(slots["m"].numpy(), m.numpy())


@pytest.mark.parametrize("form", ["checkpoint", "h5"])
@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"hidden": 16, "head": 3}, r"hidden/kernel \(6, 16\).*\(48, 16\)"),
        ({"hidden": 16, "top": 3}, "must have one weight for '.*top/kernel'"),
        ({"embed": None}, "in the file must have one counterpart in the model; got 0"),
    ],
)
def test_models_that_do_not_fit_are_refused_and_left_alone(saved, form, layers, message):
    layers = [
        keras.layers.Dense(n, name=name) if n else keras.layers.Embedding(20, 8, name=name)
        for name, n in layers.items()
    ]
    model = keras.Sequential([keras.layers.Input((6,)), *layers])
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        migrate.from_tf_keras(saved[form], model, lamb_tf.LAMB())
    steps.assert_equal(model.get_weights(), before)


def test_what_cannot_be_followed_is_refused_before_a_weight_is_written(saved):
    path, model = saved["h5"], new_model()
    before = model.get_weights()
    for match, message in (
        ("Order", 'must be "name", "order" or a dictionary; got \'Order\''),
        ({"hiden/kernel": "hidden/kernel"}, "must have paths of the model"),
    ):
        with pytest.raises(ValueError, match=message):
            migrate.from_tf_keras(path, model, lamb_tf.LAMB(), match)
    with pytest.raises(TypeError, match="got None"):
        migrate.from_tf_keras(path, model, lamb_tf.LAMB(), None)
    used = lamb_tf.LAMB()
    used.build(new_model().trainable_variables)
    with pytest.raises(ValueError, match="`optimizer` must be new or built for this model; got"):
        migrate.from_tf_keras(path, model, used)
    with pytest.raises(TypeError, match=r"`optimizer` must be a lamb_tf\.LAMB; got LARS"):
        migrate.from_tf_keras(path, model, lamb_tf.LARS())
    steps.assert_equal(model.get_weights(), before)


def test_files_without_the_state_are_refused(tmp_path):
    model = new_model()
    old = old_model(tf_keras.optimizers.legacy.SGD(0.01))
    with pytest.raises(ValueError, match="no slots `m` and `v`"):
        migrate.from_tf_keras(save(old, "checkpoint", tmp_path), model, lamb_tf.LAMB())
    old.save_weights(tmp_path / "weights.h5")
    with pytest.raises(ValueError, match="must hold the optimizer.s state"):
        migrate.from_tf_keras(tmp_path / "weights.h5", model, lamb_tf.LAMB())
    with pytest.raises(ValueError, match=r"out of .keras files"):
        migrate.from_tf_keras(tmp_path / "model.keras", model, lamb_tf.LAMB())
    for missing in ("none.h5", "none", ""):
        with pytest.raises(FileNotFoundError):
            migrate.from_tf_keras(tmp_path / "nowhere" / missing, model, lamb_tf.LAMB())
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="the folder .*empty without one"):
        migrate.from_tf_keras(tmp_path / "empty", model, lamb_tf.LAMB())
    with pytest.raises(ValueError, match="must be built"):
        migrate.from_tf_keras(
            tmp_path / "weights.h5", keras.Sequential([keras.layers.Dense(1)]), lamb_tf.LAMB()
        )


def test_hdf5_files_that_cannot_be_read_are_refused_by_their_path(saved, tmp_path):
    whole = saved["h5"].read_bytes()
    files = {
        "empty": b"",
        "text": b"no HDF5",
        "cut": whole[: len(whole) // 2],
        "cut_at_the_end": whole[:-1],
        "overwritten": whole[:1000] + bytes(2000) + whole[3000:],
    }
    for name, content in files.items():
        (tmp_path / f"{name}.h5").write_bytes(content)
    with h5py.File(tmp_path / "without_weights.h5", "w") as file:
        file.create_group("optimizer_weights")
    (tmp_path / "folder.h5").mkdir()
    for name in [*files, "without_weights", "folder"]:
        with pytest.raises(ValueError, match=rf"{name}\.h5 must be an HDF5 file .*save or copy"):
            migrate.from_tf_keras(tmp_path / f"{name}.h5", new_model(), lamb_tf.LAMB())


def test_a_file_of_keras_3_is_refused_with_the_way_that_reads_it(tmp_path):
    model = new_model()
    model.compile(keras.optimizers.Lamb(0.01), "mse")
    fit(model, 2)
    model.save(tmp_path / "lamb.keras")  # first: Keras' .h5 takes the optimizer from its config
    model.save(tmp_path / "lamb.h5")
    with pytest.raises(ValueError, match=r"lamb.h5 must be .* Keras 3.*load_model.*from_keras"):
        migrate.from_tf_keras(tmp_path / "lamb.h5", new_model(), lamb_tf.LAMB())
    model.save_weights(tmp_path / "lamb.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    for other in (
        tmp_path / "lamb.keras",
        tmp_path / "lamb.weights.h5",
        checkpoint.save(tmp_path / "checkpoint"),
    ):
        with pytest.raises(ValueError, match="from_keras"):
            migrate.from_tf_keras(other, new_model(), lamb_tf.LAMB())
    optimizer = lamb_tf.LAMB(epsilon=1e-7)  # that way
    migrate.from_keras(keras.models.load_model(tmp_path / "lamb.keras").optimizer, optimizer)
    assert int(optimizer.iterations) == 2


def test_a_tf1_checkpoint_and_one_of_two_optimizers_are_refused(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("kernel", initializer=tf.ones(3))
        session.run(tf.compat.v1.global_variables_initializer())
        names_only = tf.compat.v1.train.Saver().save(session, str(tmp_path / "v1"))
    with pytest.raises(ValueError, match="checkpoint of TensorFlow 1"):
        migrate.from_tf_keras(names_only, new_model(), lamb_tf.LAMB())

    x = tf.Variable([1.0], name="kernel")
    pair = [legacy.LAMB(), legacy.LAMB()]
    for optimizer in pair:
        optimizer.apply_gradients([(tf.ones(1), x)])
    path = tf.train.Checkpoint(x=x, a=pair[0], b=pair[1]).save(tmp_path / "two")
    with pytest.raises(ValueError, match="must hold one optimizer .* got 2"):
        migrate.from_tf_keras(path, new_model(), lamb_tf.LAMB())


def test_a_keras_model_goes_on_as_keras_lamb_would(tmp_path):
    """Without an Embedding, in which Keras' LAMB takes repeated indices for less than they are."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), *(keras.layers.Dense(n) for n in (16, 8, 3))])
    model.compile(keras.optimizers.Lamb(0.01), "mse")
    fit(model, 10)
    model.save(tmp_path / "model.keras")
    expected = fit(model, 20, start=10)

    model = keras.models.load_model(tmp_path / "model.keras")
    optimizer = lamb_tf.LAMB(0.01, epsilon=1e-7)
    migrate.from_keras(model.optimizer, optimizer)
    model.compile(optimizer, "mse")
    assert_same(fit(model, 20, start=10), expected)
    assert int(optimizer.iterations) == 30


def test_averages_begin_with_what_was_migrated(saved):
    path = saved["h5"]
    model, plain = new_model(), new_model()
    optimizer, other = lamb_tf.LAMB(0.01, use_ema=True, ema_momentum=0.9), lamb_tf.LAMB(0.01)
    for each, its in ((model, optimizer), (plain, other)):
        migrate.from_tf_keras(path, each, its)
        each.compile(its, "mse")
        fit(each, 1)
    optimizer.finalize_variable_values(model.trainable_variables)
    for one, two in zip(model.get_weights(), plain.get_weights(), strict=True):
        assert np.abs(one - two).max() < 0.01


def test_optimizers_wrapped_for_float16_continue_and_others_are_refused(saved):
    model = new_model()
    wrapped = keras.optimizers.LossScaleOptimizer(lamb_tf.LAMB(0.1))
    migrate.from_tf_keras(saved["h5"], model, wrapped)
    assert int(wrapped.inner_optimizer.iterations) == 10

    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.Lamb(0.01))
    model.compile(theirs, "mse")
    fit(model, 3)
    optimizer = lamb_tf.LAMB(0.01)
    migrate.from_keras(theirs, optimizer)
    assert int(optimizer.iterations) == 3
    with pytest.raises(TypeError, match="must be a lamb_tf.LAMB; got Adam"):
        migrate.from_keras(theirs, keras.optimizers.Adam())
    with pytest.raises(TypeError, match=r"keras.optimizers.Lamb; got Adam"):
        migrate.from_keras(keras.optimizers.Adam(), lamb_tf.LAMB())
    with pytest.raises(ValueError, match="no state"):
        migrate.from_keras(keras.optimizers.Lamb(), lamb_tf.LAMB())


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(block, "docs/migration.md", "exec"), names)
    assert int(names["optimizer"].iterations) == 2 + 2  # under Keras' LAMB, then under ours
