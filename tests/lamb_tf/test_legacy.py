"""LAMB and LARS for tf_keras compared with TensorFlow Addons, in one process and by its files."""

import doctest
import sys
import warnings

import keras
import numpy as np
import peers
import pytest
import reference
import tensorflow as tf
import tf_keras
import warm_python
from two_replicas import two_replicas

from lamb_tf import biases_and_norms, legacy

tfa = peers.addons()

pytestmark = [
    # Most tests decay the norms, to see a difference.
    pytest.mark.filterwarnings("ignore:.*scales of normalization layers:UserWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning"),
]
# tf_keras 2.15 cannot load a SavedModel with an optimizer that has slots, its own Adam's neither.
OLD = pytest.mark.skipif(tf_keras.__version__ < "2.16", reason="a SavedModel of tf_keras 2.15")
SAVED = [pytest.param(".h5", id="h5"), pytest.param("", id="SavedModel", marks=OLD)]
KERAS_3 = keras.__version__.startswith("3.")
SHAPES = {"dense/kernel": (7, 5), "dense/bias": (5,), "LayerNorm/gamma": (5,), "scalar": ()}


def variables(dtype="float32"):
    random = np.random.default_rng(0)
    return [
        tf.Variable(tf.cast(random.normal(size=shape), dtype), name=name)
        for name, shape in SHAPES.items()
    ]


def gradients(step, dtype="float32"):
    random = np.random.default_rng(1_000 + step)
    return [tf.constant(random.normal(size=s), dtype) for s in SHAPES.values()]


def step_of(optimizer, x, compiled=None):
    """A function of the gradients: eager, in a graph (False) or compiled by XLA (True)."""

    def apply(g):
        optimizer.apply_gradients(zip(g, x, strict=True))

    return apply if compiled is None else tf.function(apply, jit_compile=compiled)


def train(optimizer, x, steps, dtype="float32", start=0, compiled=None):
    apply = step_of(optimizer, x, compiled)
    for step in range(start, start + steps):
        apply(gradients(step, dtype))
    return [np.asarray(tf.cast(v, "float64")) for v in x]


def assert_same(ours, theirs, tolerance=2e-6):
    """Each tensor within `tolerance` of the other, relative to its norm."""
    for a, b in zip(ours, theirs, strict=True):
        assert np.linalg.norm(a - b) <= tolerance * max(np.linalg.norm(b), 1e-30)


OPTIONS = {
    "defaults": {},
    "decay": {"weight_decay": 0.1},
    "betas": {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3, "weight_decay": 0.01},
    "no-momentum": {"beta_1": 0.0, "beta_2": 0.0},
    "excluded": {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias", "LayerNorm"]},
    "excluded-apart": {
        "weight_decay": 0.1,
        "exclude_from_weight_decay": ["bias"],
        "exclude_from_layer_adaptation": ["LayerNorm", "scalar"],
    },
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.5},
    "global_clipnorm": {"global_clipnorm": 1.0, "weight_decay": 0.01},
    "inverse-time-decay": {"decay": 0.1},
    "schedule": {
        "learning_rate": tf_keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5),
        "weight_decay": 0.1,
    },
    "callable": {"learning_rate": lambda: 0.02},
}


@pytest.mark.parametrize(
    ("options", "mode"),
    [(options, "graph") for options in OPTIONS]
    + [("schedule", "eager"), ("excluded-apart", "xla")],
)
def test_lamb_is_addons_lamb_over_50_steps(options, mode):
    compiled = {"eager": None, "graph": False, "xla": True}[mode]
    options = {"learning_rate": 0.01, **OPTIONS[options]}
    ours = train(legacy.LAMB(**options), variables(), 50, compiled=compiled)
    theirs = train(tfa.optimizers.LAMB(**options), variables(), 50)
    assert_same(ours, theirs)


def test_the_rate_may_be_a_variable():
    rate = tf.Variable(0.01)
    optimizer, x = legacy.LAMB(rate), variables()
    train(optimizer, x, 2, compiled=False)
    rate.assign(0.0)
    before = [v.numpy() for v in x]
    assert_same(train(optimizer, x, 2, start=2), before, 0)


def sparse_gradients(step, dense=False):
    """Rows 1, 3 and 1 again of an embedding of 6."""
    random = np.random.default_rng(step)
    rows, indices = tf.constant(random.normal(size=(3, 4)), tf.float32), tf.constant([1, 3, 1])
    if dense:
        return tf.scatter_nd(indices[:, None], rows, (6, 4))
    return tf.IndexedSlices(rows, indices, tf.constant([6, 4]))


@pytest.mark.parametrize(
    ("make", "options", "compiled"),
    [
        (legacy.LAMB, {"learning_rate": 0.01, "weight_decay": 0.1}, False),
        (legacy.LAMB, {"learning_rate": 0.01, "weight_decay": 0.1}, True),
        (legacy.LARS, {"learning_rate": 0.5, "ratio": "after_momentum", "nesterov": True}, None),
    ],
    ids=["LAMB, graph", "LAMB, XLA", "LARS, eager"],
)
def test_repeated_sparse_indices_give_the_dense_result_and_that_of_addons(make, options, compiled):
    def trained(make, dense=False, compiled=compiled):
        x = tf.Variable(tf.reshape(tf.range(24.0), (6, 4)), name="embeddings")
        optimizer = make.from_config(make(**options).get_config())
        apply = step_of(optimizer, [x], compiled)
        for step in range(30):
            apply([sparse_gradients(step, dense)])
        return [x.numpy()]

    ours = trained(make)
    assert_same(ours, trained(make, dense=True), 1e-7)
    if make is legacy.LAMB:
        assert_same(ours, trained(tfa.optimizers.LAMB, compiled=None))


CHECKPOINTED = {
    "learning_rate": 0.01,
    "beta_1": 0.8,
    "weight_decay": 0.05,
    "exclude_from_weight_decay": ["bias", "LayerNorm"],
}


@pytest.mark.parametrize(
    ("saving", "reading", "steps_before"),
    [
        (tfa.optimizers.LAMB, legacy.LAMB, 0),
        (tfa.optimizers.LAMB, legacy.LAMB, 2),  # into existing slots
        (legacy.LAMB, tfa.optimizers.LAMB, 1),
    ],
)
def test_a_tf_checkpoint_of_addons_goes_on_as_addons_would_and_ours_there(
    tmp_path, saving, reading, steps_before
):
    x, optimizer = variables(), saving(**CHECKPOINTED)
    train(optimizer, x, 10)
    path = tf.train.Checkpoint(x=x, optimizer=optimizer).save(tmp_path / "checkpoint")
    expected = train(optimizer, x, 20, start=10)

    # The rates come with the checkpoint, as they do in Addons; only what it does not hold is given.
    x = [tf.Variable(tf.zeros_like(v), name=v.name.split(":")[0]) for v in x]
    optimizer = reading(exclude_from_weight_decay=["bias", "LayerNorm"])
    train(optimizer, x, steps_before)
    status = tf.train.Checkpoint(x=x, optimizer=optimizer).restore(path)
    found = train(optimizer, x, 20, start=10)
    status.assert_consumed()
    assert int(optimizer.iterations) == 30
    assert_same(found, expected)


def text_model():
    """An Embedding, so that sparse gradients take part."""
    tf_keras.utils.set_random_seed(0)
    return tf_keras.Sequential(
        [
            tf_keras.layers.Embedding(20, 8, input_length=6),
            tf_keras.layers.Flatten(),
            tf_keras.layers.Dense(16, activation="tanh"),
            tf_keras.layers.LayerNormalization(),
            tf_keras.layers.Dense(3),
        ]
    )


def fit(model, steps, start=0):
    random = np.random.default_rng(7)
    x, y = random.integers(0, 20, (40 * 8, 6)), random.normal(size=(40 * 8, 3))
    part = slice(start * 8, (start + steps) * 8)
    model.fit(x[part], y[part], batch_size=8, shuffle=False, verbose=0)
    return [w.astype("float64") for w in model.get_weights()]


@pytest.mark.parametrize("suffix", SAVED)
def test_a_model_saved_with_addons_goes_on_as_addons_would(tmp_path, suffix):
    model = text_model()
    options = {**CHECKPOINTED, "exclude_from_weight_decay": ["bias", "layer_normalization"]}
    model.compile(tfa.optimizers.LAMB(**options), "mse")
    fit(model, 10)
    model.save(tmp_path / f"model{suffix}")
    theirs = fit(model, 20, start=10)

    model = legacy.load_model(tmp_path / f"model{suffix}")
    assert type(model.optimizer) is legacy.LAMB
    assert model.optimizer.exclude_from_weight_decay == ["bias", "layer_normalization"]
    assert_same(fit(model, 20, start=10), theirs)
    assert int(model.optimizer.iterations) == 30


@pytest.mark.skipif(not KERAS_3, reason="lamb_tf.schedules are schedules of Keras 3")
def test_rate_and_decay_may_be_schedules_of_this_package():
    from lamb_tf.schedules import WarmupPolynomialDecay

    schedule = WarmupPolynomialDecay(0.05, 30, 10)
    x, optimizer = variables(), legacy.LAMB(schedule, weight_decay=schedule)
    by_hand, rate = variables(), tf.Variable(0.0)
    addons = tfa.optimizers.LAMB(rate, weight_decay=lambda: rate)
    for step in range(30):
        rate.assign(schedule(step))
        addons.apply_gradients(zip(gradients(step), by_hand, strict=True))
    assert_same(train(optimizer, x, 30, compiled=False), [v.numpy() for v in by_hand])


@pytest.mark.parametrize("suffix", SAVED)
def test_our_own_model_is_saved_with_its_schedule_and_biases_and_norms_by_name(tmp_path, suffix):
    rate = tf_keras.optimizers.schedules.PolynomialDecay(0.05, 30)
    if KERAS_3:
        from lamb_tf.schedules import WarmupPolynomialDecay

        rate = WarmupPolynomialDecay(0.05, 30, 10)
    models = []
    for no_decay in (["bias", "gamma", "beta"], biases_and_norms):
        exclusions = {
            "exclude_from_weight_decay": no_decay,
            "exclude_from_layer_adaptation": biases_and_norms,
        }
        models.append(text_model())
        models[-1].compile(legacy.LAMB(rate, weight_decay=0.1, **exclusions), "mse")
    expected, model = models
    assert_same(fit(model, 3), fit(expected, 3), 0)
    model.save(tmp_path / f"model{suffix}")
    again = legacy.load_model(tmp_path / f"model{suffix}")
    assert type(again.optimizer) is legacy.LAMB
    assert again.optimizer.get_config() == model.optimizer.get_config()
    assert again.optimizer.exclude_from_weight_decay == [biases_and_norms]
    assert_same(fit(again, 3, start=3), fit(expected, 3, start=3), 1e-7)


def test_two_replicas_give_the_result_of_one_also_with_clipping():
    options = {"global_clipnorm": 0.5, "weight_decay": 0.1, "exclude_from_weight_decay": ["bias$"]}
    one = train(legacy.LAMB(0.01, **options), variables(), 10)
    strategy = two_replicas()
    with strategy.scope():
        x, optimizer = variables(), legacy.LAMB(0.01, **options)

    @tf.function
    def step(grads):
        def on_replica(grads):
            # Halves that differ and sum to the gradient.
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            share = tf.where(tf.equal(replica, 0), 0.25, 0.75)
            optimizer.apply_gradients([(g * share, v) for g, v in zip(grads, x, strict=True)])

        strategy.run(on_replica, args=(grads,))

    for number in range(10):
        step(gradients(number))
    assert_same([v.numpy() for v in x], one)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 5e-3), ("float16", 6e-4)])
def test_low_precision_variables_follow_float64(dtype, tolerance):
    """400 × 400 ones have a squared norm of 160,000, beyond float16; and 0.999 is 1 in bfloat16."""
    trained = []
    for kind in (dtype, "float64"):
        optimizer, x = legacy.LAMB(0.1), tf.Variable(tf.ones((400, 400), kind), name="kernel")
        for step in range(3):
            gradient = tf.cast(np.random.default_rng(step).normal(size=(400, 400)), dtype)
            optimizer.apply_gradients([(tf.cast(gradient, kind), x)])
        trained.append(tf.cast(x, "float64").numpy())
    assert_same(*([each] for each in trained), tolerance)


def test_slots_of_low_precision_variables_are_float32_and_checkpointed(tmp_path):
    x, optimizer = variables("bfloat16"), legacy.LAMB(0.01)
    train(optimizer, x, 3, "bfloat16")
    assert {optimizer.get_slot(v, s).dtype for v in x for s in "mv"} == {tf.float32}
    path = tf.train.Checkpoint(x=x, optimizer=optimizer).save(tmp_path / "c")
    expected = train(optimizer, x, 3, "bfloat16", start=3)
    x, optimizer = variables("bfloat16"), legacy.LAMB(0.01)
    tf.train.Checkpoint(x=x, optimizer=optimizer).restore(path)
    assert_same(train(optimizer, x, 3, "bfloat16", start=3), expected, 0)


def test_epsilon_zero_is_zero_where_addons_raises():
    with pytest.raises(AttributeError):
        tfa.optimizers.LAMB(epsilon=0.0)
    x = [tf.Variable([1.0, 2.0, 2.0], name="kernel")]
    optimizer = legacy.LAMB(0.1, beta_1=0.0, beta_2=0.0, epsilon=0.0)
    optimizer.apply_gradients([(tf.constant([3.0, 0.0, -0.5]), x[0])])
    # The update is η‖x‖ sign(g)/‖sign(g)‖; a gradient of 0 moves nothing.
    step = 0.1 * 3 / np.sqrt(2)
    np.testing.assert_allclose(x[0], [1 - step, 2, 2 + step], rtol=1e-6)


def test_an_empty_list_is_nothing_where_addons_takes_it_for_none_and_a_pattern_may_be_anchored():
    addons = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"]}
    ours = {**addons, "exclude_from_weight_decay": ["bias$"]}
    none, some = {"exclude_from_layer_adaptation": []}, {"exclude_from_layer_adaptation": ["none"]}
    theirs = train(tfa.optimizers.LAMB(0.01, **addons, **none), variables(), 3)
    assert_same(theirs, train(tfa.optimizers.LAMB(0.01, **addons), variables(), 3), 0)
    assert_same(train(legacy.LAMB(0.01, **ours), variables(), 3), theirs)
    trained = train(legacy.LAMB(0.01, **ours, **none), variables(), 3)
    assert_same(trained, train(tfa.optimizers.LAMB(0.01, **addons, **some), variables(), 3))
    assert np.linalg.norm(trained[1] - theirs[1]) > 1e-3


def test_float64_variables_are_computed_in_float64():
    ours = train(legacy.LAMB(0.01, weight_decay=0.1), variables("float64"), 50, "float64")
    theirs = train(tfa.optimizers.LAMB(0.01, weight_decay=0.1), variables("float64"), 50, "float64")
    assert_same(ours, theirs, 1e-14)


@pytest.fixture
def mixed_float16():
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    tf_keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("optimizer_class", [legacy.LAMB, legacy.LARS, tfa.optimizers.LAMB])
def test_an_h5_file_of_mixed_float16_continues(tmp_path, mixed_float16, optimizer_class):
    model = text_model()
    optimizer = optimizer_class(0.01, weight_decay=0.1)
    # A fixed scale, as tf_keras does not save a dynamic one.
    scaled = tf_keras.mixed_precision.LossScaleOptimizer
    model.compile(scaled(optimizer, dynamic=False, initial_scale=64), "mse")
    fit(model, 5)
    model.save(tmp_path / "model.h5")
    before = dict(tf_keras.utils.get_custom_objects())
    again = legacy.load_model(tmp_path / "model.h5")
    assert tf_keras.utils.get_custom_objects() == before
    inner = again.optimizer.inner_optimizer
    assert type(inner) in (legacy.LAMB, legacy.LARS)
    assert int(inner.iterations) == 5
    assert_same(fit(again, 5, start=5), fit(model, 5, start=5), 1e-6)


def test_mixed_float16_trains_and_a_class_that_is_given_for_a_bare_name_is_used(
    tmp_path, mixed_float16
):
    class Mine(legacy.LAMB):
        pass

    model = text_model()
    model.compile(legacy.LAMB(0.01), "mse")
    assert all(np.isfinite(w).all() for w in fit(model, 20))
    assert {v.dtype for v in model.optimizer.inner_optimizer.weights[1:]} == {tf.float32}
    model.save(tmp_path / "model.h5")
    again = legacy.load_model(tmp_path / "model.h5", custom_objects={"LAMB": Mine})
    assert type(again.optimizer.inner_optimizer) is Mine


def test_biases_and_norms_are_those_of_each_replica():
    strategy = two_replicas()
    with strategy.scope():
        variable = tf.Variable(tf.ones(3), name="layer/bias")
    locals_ = strategy.experimental_local_results(variable)
    assert [biases_and_norms(local) for local in locals_] == [True, True]


def test_one_line_warns_of_norms_that_a_list_leaves_decayed():
    decayed = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"]}
    with pytest.warns(UserWarning, match="decayed: LayerNorm/gamma. .*biases_and_norms") as caught:
        train(legacy.LAMB(**decayed), variables(), 2)
    assert len(caught) == 1
    for quiet in (
        {**decayed, "weight_decay": 0.0},
        {"weight_decay": 0.1},
        {**decayed, "exclude_from_weight_decay": biases_and_norms},
        {**decayed, "exclude_from_weight_decay": ["bias", "LayerNorm"]},
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(legacy.LARS(**quiet), variables(), 1)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("ratio", ["before_momentum", "after_momentum"])
def test_lars_follows_its_papers_formulas(ratio, nesterov):
    options = {"momentum": 0.8, "trust_coefficient": 0.02, "nesterov": nesterov}
    optimizer = legacy.LARS(
        0.5, weight_decay=0.05, exclude_from_weight_decay=["bias"], ratio=ratio, **options
    )
    ours = train(optimizer, variables(), 30, compiled=False)
    steps = [[np.asarray(g, "float64") for g in gradients(step)] for step in range(30)]
    formula = getattr(reference, f"lars_{ratio}")
    for k, (name, x) in enumerate(zip(SHAPES, variables(), strict=True)):
        options["adapt"] = "bias" not in name
        options["weight_decay"] = 0.05 * options["adapt"]
        expected = formula(x.numpy(), [g[k] for g in steps], 0.5, **options)
        assert_same([ours[k]], [expected])


def test_the_trust_coefficient_follows_a_ratio_that_is_assigned():
    optimizer = legacy.LARS()
    assert optimizer.trust_coefficient == 0.001
    again = legacy.LARS.from_config(optimizer.get_config())
    for each in (optimizer, again):
        each.ratio = "after_momentum"
        assert each.trust_coefficient == 1.0
    assert legacy.LARS(trust_coefficient=0.5, ratio="after_momentum").trust_coefficient == 0.5


@pytest.mark.parametrize("dtype", ["complex64", "int32", "bool"])
def test_a_variable_that_is_not_of_real_floating_point_is_refused(dtype):
    odd = tf.Variable(tf.cast(tf.ones(3), dtype), name="odd")
    with pytest.raises(TypeError, match=f"must be of real floating point; got 'odd' of {dtype}"):
        legacy.LAMB().apply_gradients([(tf.cast(tf.ones(3), dtype), odd)])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("ratio", ["decayed_before_momentum", "after_momentum"])
def test_lars_is_that_of_tf_models_and_reads_its_checkpoint(tmp_path, ratio, nesterov):
    tf_models = peers.module_alone("official.modeling.optimization.lars")
    classic = {"classic_momentum": ratio != "after_momentum", "nesterov": nesterov}

    def make_theirs():
        return tf_models.LARS(0.5, eeta=0.02, weight_decay_rate=0.1, **classic)

    def make_ours():
        return legacy.LARS(
            0.5, weight_decay=0.1, trust_coefficient=0.02, ratio=ratio, nesterov=nesterov
        )

    assert_same(train(make_ours(), variables(), 30), train(make_theirs(), variables(), 30))
    if ratio == "after_momentum":
        return  # their momentum sums where ours averages: same weights, another slot

    x, theirs = variables(), make_theirs()
    train(theirs, x, 10)
    path = tf.train.Checkpoint(x=x, optimizer=theirs).save(tmp_path / "tf_models")
    expected = train(theirs, x, 20, start=10)
    x, ours = variables(), make_ours()
    tf.train.Checkpoint(x=x, optimizer=ours).restore(path)
    assert_same(train(ours, x, 20, start=10), expected)


FINITE = "must be at least 0, and finite"
EXCLUDED = "exclude_from_weight_decay"


@pytest.mark.parametrize(
    ("make", "argument", "value", "error", "message"),
    [
        (legacy.LAMB, "learning_rate", -0.1, ValueError, FINITE),
        (legacy.LAMB, "learning_rate", None, ValueError, "None"),
        (legacy.LAMB, "learning_rate", "0.1", ValueError, "must be a number; got '0.1'"),
        (legacy.LAMB, "weight_decay", np.inf, ValueError, FINITE),
        (legacy.LAMB, "weight_decay", np.float32(-1), ValueError, FINITE),
        (legacy.LAMB, "weight_decay", True, ValueError, "must be a number; got True"),
        (legacy.LAMB, "beta_1", 1.0, ValueError, r"must be in \[0, 1\); got 1.0"),
        (legacy.LAMB, "beta_2", -0.1, ValueError, ""),
        (legacy.LAMB, "epsilon", -1e-6, ValueError, "must be at least 0"),
        (legacy.LAMB, EXCLUDED, 5, TypeError, "must hold.*5 of type int"),
        (legacy.LAMB, EXCLUDED, [3], TypeError, "3 of type int"),
        (legacy.LAMB, EXCLUDED, ["("], ValueError, "must hold valid"),
        (legacy.LARS, "ratio", "sideways", ValueError, "got 'sideways'"),
        (legacy.LARS, "momentum", 1.0, ValueError, ""),
    ],
)
def test_bad_arguments_are_refused(make, argument, value, error, message):
    with pytest.raises(error, match=f"`{argument}`.*{message}"):
        make(**{argument: value})


def test_an_unknown_argument_an_assigned_exclusion_and_a_keras_file_are_refused():
    with pytest.raises(TypeError, match="no_such_argument"):
        legacy.LAMB(no_such_argument=1)
    with pytest.raises(AttributeError):
        legacy.LAMB(exclude_from_weight_decay=["bias"]).exclude_from_weight_decay = ["kernel"]
    with pytest.raises(ValueError, match=r"out of .keras files; got model.keras"):
        legacy.load_model("model.keras")


def test_old_names_are_taken_with_a_warning_as_by_addons():
    trained = []
    for make in (tfa.optimizers.LAMB, legacy.LAMB):
        with (
            pytest.warns(UserWarning, match="`lr` argument is deprecated"),
            pytest.warns(DeprecationWarning, match="weight_decay"),
        ):
            optimizer = make(lr=0.01, weight_decay_rate=0.1)
        trained.append(train(optimizer, variables(), 10))
    assert_same(*trained)
    with pytest.warns(DeprecationWarning, match=r"write `weight_decay=0.1`"):
        assert legacy.LARS(weight_decay_rate=0.1).get_config()["weight_decay"] == 0.1


@pytest.mark.parametrize(
    ("make", "compiled"),
    [
        (lambda: legacy.LAMB(0.1, weight_decay=0.1, global_clipnorm=1.0), False),
        (lambda: legacy.LAMB(0.1), True),
        (lambda: legacy.LARS(0.1), False),
        (lambda: legacy.LARS(0.1, ratio="after_momentum"), None),
    ],
    ids=["LAMB, graph", "LAMB, XLA", "LARS before, graph", "LARS after, eager"],
)
def test_a_step_with_a_gradient_that_is_not_finite_changes_nothing(make, compiled):
    def weights_after(spoilt):
        optimizer, x = make(), variables()
        step = step_of(optimizer, x, compiled)
        step(gradients(0))
        for value in spoilt:
            bad = gradients(1)
            bad[1] = tf.concat([bad[1][:-1], [value]], 0)
            step(bad)
        step(gradients(2))
        assert optimizer.iterations.numpy() == 2
        return [v.numpy() for v in x + optimizer.variables()]

    for ours, expected in zip(weights_after([np.nan, np.inf]), weights_after([]), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_gradient_that_is_not_finite_on_one_replica_or_sparse_changes_nothing():
    strategy = two_replicas()
    with strategy.scope():
        x = tf.Variable(tf.ones((6, 4)), name="embeddings")
        optimizer = legacy.LAMB(0.1)

    @tf.function
    def step(value):
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = tf.ones((3, 4)) * tf.where(replica == 1, value, 1.0)
            optimizer.apply_gradients(
                [(tf.IndexedSlices(rows, tf.constant([1, 3, 1]), tf.constant([6, 4])), x)]
            )

        strategy.run(on_replica)

    for number, value in enumerate((np.nan, 1.0)):
        step(tf.constant(value, tf.float32))
        assert optimizer.iterations.numpy() == number
        for local in strategy.experimental_local_results(x):
            assert np.isfinite(local.numpy()).all()
            assert (local.numpy() != 1.0).any() == bool(number)


@pytest.mark.filterwarnings("ignore:.* matches no variable:UserWarning")
def test_a_model_is_loaded_though_what_was_excluded_is_frozen(tmp_path):
    layers = [tf_keras.layers.Dense(3, input_shape=(2,)), tf_keras.layers.Dense(1, use_bias=False)]
    model = tf_keras.Sequential(layers)
    model.compile(legacy.LAMB(exclude_from_weight_decay=["bias"]), "mse")
    x = np.ones((4, 2), "float32")
    model.fit(x, x[:, :1], verbose=0)
    model.layers[0].trainable = False
    path = str(tmp_path / "model.h5")
    model.compile(model.optimizer, "mse")
    model.save(path)
    again = legacy.load_model(path)
    assert again.optimizer.get_config() == model.optimizer.get_config()
    again.fit(x, x[:, :1], verbose=0)


def test_exclusions_that_find_nothing_are_an_error_and_an_idle_one_a_warning():
    with pytest.raises(ValueError, match="dense/kernel"):
        train(legacy.LAMB(exclude_from_weight_decay=["layer_norm", "beta"]), variables(), 1)
    with pytest.warns(UserWarning, match="'beta' in `exclude_from_weight_decay`"):
        train(legacy.LAMB(exclude_from_weight_decay=["LayerNorm", "beta"]), variables(), 1)


A_SCHEDULE = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (legacy.LAMB, "epsilon", 1.0),
        (legacy.LAMB, "global_clipnorm", 0.1),
        (legacy.LAMB, "weight_decay", A_SCHEDULE),
        (legacy.LAMB, "lr", A_SCHEDULE),
        (legacy.LARS, "ratio", "after_momentum"),
    ],
)
def test_what_a_traced_step_would_not_see_cannot_be_assigned(make, name, value):
    optimizer = make(0.1)
    setattr(optimizer, name, value)
    train(optimizer, variables(), 1)
    with pytest.raises(AttributeError, match=rf"must stay as it is.*new {make.__name__}"):
        setattr(optimizer, name, value)


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0.02), ("weight_decay", 0.5), ("beta_1", 0.5)]
)
def test_a_number_of_a_variable_takes_effect_in_a_traced_step(name, value):
    def two_steps(new):
        kernel, optimizer = tf.Variable([1.0, 2.0], name="kernel"), legacy.LAMB(0.1)
        step = step_of(optimizer, [kernel], compiled=False)
        step([tf.constant([1.0, -3.0])])
        traced = step.experimental_get_tracing_count()
        if new is not None:
            setattr(optimizer, name, new)
        step([tf.constant([2.0, 1.0])])
        assert step.experimental_get_tracing_count() == traced
        return kernel.numpy()

    assert not np.allclose(two_steps(value), two_steps(None), rtol=1e-3)


def test_config_makes_the_same_optimizer_and_those_of_older_addons_and_tf_models_are_read():
    optimizer = legacy.LAMB(0.02, 0.8, 0.99, 1e-5, 0.1, ["bias"], ["scalar"], clipnorm=2.0)
    config = optimizer.get_config()
    again = legacy.LAMB.from_config(config)
    assert again.get_config() == config
    assert_same(train(again, variables(), 5), train(optimizer, variables(), 5), 0)
    renamed = {**config, "weight_decay_rate": config.pop("weight_decay")}
    assert legacy.LAMB.from_config(renamed).get_config()["weight_decay"] == 0.1
    assert legacy.LAMB(weight_decay=None).get_config()["weight_decay"] == 0.0


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(legacy).failed == 0


def test_keras_2_leaves_this_module_and_says_what_needs_keras_3():
    script = (
        "import keras; keras.__version__ = '2.15.0'; import lamb_tf.legacy as legacy;"
        "print(legacy.LAMB().get_config()['name']); from lamb_tf import LAMB"
    )
    done = warm_python.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split()[-1:] == ["LAMB"], done.stderr
    assert done.stderr.splitlines()[-1] == (
        "ImportError: lamb_tf.LAMB needs Keras 3 and this is Keras 2.15.0: "
        "`pip install --upgrade keras`, or use lamb_tf.legacy with tf_keras."
    )
