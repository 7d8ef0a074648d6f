"""Variables of 16 bits follow the float32 run, on the Keras backend that is set."""

import keras
import ml_dtypes
import numpy as np
import pytest
import steps

import lamb_tf
from lamb_tf import _kernels, _master_weights

NUMBERS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def rounded(values, dtype):
    return np.array(values, np.float32).astype(NUMBERS[dtype]).astype("float64")


def narrow_and_wide(make, dtype, number_of_steps=30, prepare=lambda variables: None):
    """Variables and optimizers after the same steps with variables of 16 and of 32 bits."""
    weights, gradients = steps.weights_and_gradients(steps=number_of_steps)
    narrow = steps.make_variables(weights, dtype)
    wide = steps.make_variables([w.astype("float32") for w in steps.values(narrow)])
    results = []
    for variables in (narrow, wide):
        optimizer = make()
        prepare(variables)
        steps.take_steps(optimizer, variables, gradients)
        results.append((variables, optimizer))
    return results


def assert_rounded(narrow, wide, dtype):
    for one, two in zip(steps.values(narrow), steps.values(wide)):
        expected = rounded(two, dtype)
        # The wide values differ in the last digits, which decide where one lies half-way.
        np.testing.assert_allclose(one, expected, rtol=2.0 ** -(7 if dtype == "bfloat16" else 10))
        assert np.mean(one == expected) > 0.9


def test_a_bfloat16_variable_moves_at_a_rate_below_its_resolution():
    for dtype in NUMBERS:
        variable = keras.Variable(np.ones(8, "float32"), dtype=dtype)
        steps.take_steps(lamb_tf.LAMB(1e-3), [variable], [[np.ones(8, "float32")]] * 100)
        np.testing.assert_array_equal(steps.values([variable])[0], rounded([0.999**100] * 8, dtype))


LAMB = lambda **options: lambda: lamb_tf.LAMB(1e-3, **options)  # noqa: E731


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (LAMB(weight_decay=0.1), "bfloat16"),
        (LAMB(weight_decay=0.1), "float16"),
        (LAMB(nesterov="both", global_clipnorm=1.0), "bfloat16"),
        (LAMB(gradient_accumulation_steps=2), "bfloat16"),
        (LAMB(learning_rate_multipliers={"embedding": 0.25, "bias$": 0.0}), "bfloat16"),
        (LAMB(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=7), "bfloat16"),
        (lambda: lamb_tf.LARS(1.0, weight_decay=0.1), "float16"),
        (lambda: lamb_tf.LARS(1e-3, ratio="after_momentum"), "bfloat16"),
    ],
    ids=["LAMB", "16", "nesterov", "accumulated", "factors", "averaged", "before", "after"],
)
def test_weights_are_those_of_the_float32_run_rounded(make, dtype):
    (narrow, optimizer), (wide, other) = narrow_and_wide(make, dtype)
    assert_rounded(narrow, wide, dtype)
    masters = steps.values([optimizer.slots(v)["master"] for v in narrow])
    steps.assert_close(masters, steps.values(wide), rtol=1e-5, atol=1e-7)
    assert "master" not in other.slots(wide[0])
    slots = [slot for variable in narrow for slot in optimizer.slots(variable).values()]
    assert {keras.backend.standardize_dtype(slot.dtype) for slot in slots} == {"float32"}
    assert len(optimizer.variables) == len(other.variables) + len(narrow)


def test_constraints_act_on_the_master_copy_and_telemetry_gives_the_norms_of_the_float32_run():
    def recording():
        optimizer = lamb_tf.LAMB(1e-3)
        lamb_tf.telemetry.record(optimizer)
        return optimizer

    def constrain(variables):
        variables[1].constraint = keras.constraints.UnitNorm()

    (narrow, optimizer), (wide, other) = narrow_and_wide(recording, "bfloat16", 30, constrain)
    assert_rounded(narrow, wide, "bfloat16")
    figures = [lamb_tf.telemetry.read(each).values() for each in (optimizer, other)]
    for one, two in zip(*figures):
        assert one == pytest.approx(two, rel=1e-5)


def test_what_is_assigned_to_a_variable_takes_the_place_of_its_master_copy_there():
    weights, gradients = steps.weights_and_gradients(steps=40)
    variables = steps.make_variables(weights, "bfloat16")
    optimizer = lamb_tf.LAMB(1e-3)
    steps.take_steps(optimizer, variables, gradients[:20])
    kernel = variables[1]
    before = steps.values([optimizer.slots(kernel)["master"]])[0]
    assigned = steps.values([kernel])[0].astype("float32")
    assigned[:3] *= 1 + 2.0**-7  # one unit of the last place or two
    assigned[3] = 0.25
    kernel.assign(assigned)
    expected = np.where(np.arange(7)[:, None] < 4, steps.values([kernel])[0], before)

    wide = steps.make_variables(steps.values(variables))
    wide[1].assign(expected)
    other = lamb_tf.LAMB(1e-3)
    other.build(wide)
    for one, two in zip(variables, wide):
        for name in "mv":
            other.slots(two)[name].assign(optimizer.slots(one)[name])
    other.iterations.assign(optimizer.iterations)
    steps.take_steps(optimizer, variables, gradients[20:])
    steps.take_steps(other, wide, gradients[20:])
    master = steps.values([optimizer.slots(kernel)["master"]])[0]
    np.testing.assert_allclose(master, steps.values(wide)[1], rtol=1e-5, atol=1e-7)


def narrow_model(**arguments):
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(8, activation="tanh", dtype="bfloat16"),
        keras.layers.Dense(1, dtype="float32"),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(lamb_tf.LAMB(1e-3, **arguments), loss="mse")
    return model


def fit(model, epochs):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 4)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return [np.array(w, np.float64) for w in model.get_weights()]


@pytest.mark.parametrize(
    ("kind", "keeps_master"), [("keras", True), ("keras", False), ("weights.h5", True)]
)
def test_a_run_restored_from_a_file_goes_on_to_the_same_bits(tmp_path, kind, keeps_master):
    model = narrow_model(master_weights=keeps_master)
    fit(model, 2)
    path = str(tmp_path / f"model.{kind}")
    if kind == "keras":
        model.save(path)
        again = keras.models.load_model(path)
        assert again.optimizer.master_weights is keeps_master
    else:
        model.save_weights(path)
        again = narrow_model(master_weights=keeps_master)
        again.optimizer.build(again.trainable_variables)
        again.load_weights(path)
    steps.assert_equal(fit(model, 1), fit(again, 1))
    kernel = again.trainable_variables[0]
    assert ("master" in again.optimizer.slots(kernel)) is keeps_master


@pytest.mark.parametrize("had_master", [True, False])
def test_state_saved_with_or_without_master_copies_is_read_by_the_other(tmp_path, had_master):
    model = narrow_model(master_weights=had_master)
    fit(model, 2)
    model.save_weights(tmp_path / "model.weights.h5")
    again = narrow_model(master_weights=not had_master)
    again.optimizer.build(again.trainable_variables)
    again.load_weights(tmp_path / "model.weights.h5")
    assert again.optimizer.iterations == 16
    for one, two in zip(model.trainable_variables, again.trainable_variables):
        slots, others = model.optimizer.slots(one), again.optimizer.slots(two)
        for name in "mv":
            np.testing.assert_array_equal(*steps.values([slots[name], others[name]]))
    again.optimizer.learning_rate = 1e-30
    before = steps.values(again.trainable_variables)
    fit(again, 1)
    steps.assert_equal(before, steps.values(again.trainable_variables))


@pytest.mark.skipif(
    steps.BACKEND != "tensorflow", reason="where state is made while a step is traced"
)
def test_fit_compiled_by_xla_makes_the_state_in_its_first_step():
    results = []
    for is_built in (False, True):
        model = narrow_model(use_ema=True)
        model.compile(model.optimizer, loss="mse", jit_compile=True)
        if is_built:
            model.optimizer.build(model.trainable_variables)
        results.append(fit(model, 2))
    steps.assert_equal(*results)


@pytest.mark.skipif(steps.BACKEND != "tensorflow", reason="the callback has another way elsewhere")
def test_averages_of_narrow_variables_are_not_swapped_but_written_into_a_bare_variable():
    import tensorflow as tf

    model = narrow_model(use_ema=True)
    fit(model, 1)
    with pytest.raises(ValueError, match="as their averages are.*mixed_bfloat16"):
        _ = model.optimizer._model_variables_moving_average  # read by keras' SwapEMAWeights

    variable, optimizer = tf.Variable(tf.ones(3, tf.bfloat16)), lamb_tf.LAMB(0.1, use_ema=True)
    optimizer.build([variable])
    optimizer.apply([tf.ones(3)], [variable])
    variable.assign(tf.zeros(3, tf.bfloat16))
    optimizer.finalize_variable_values([variable])
    found = variable.numpy().astype("float32")
    np.testing.assert_array_equal(found, rounded([0.9] * 3, "bfloat16"))


# Stochastic rounding.


def neighbours(x, dtype):
    """The numbers of a type at and below x, and above it."""
    numbers = np.arange(2**16, dtype=np.uint16).view(NUMBERS[dtype])
    with np.errstate(invalid="ignore"):
        numbers = numbers.astype(np.float32).astype(np.float64)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    i = np.searchsorted(numbers, x, side="right")
    return numbers[i - 1], numbers[i]


def rounded_once(x, dtype, seed):
    x, seed = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(seed, "int32")
    result = _master_weights.round_stochastically(x, dtype, _kernels.uniform(x.shape, seed))
    return keras.ops.convert_to_numpy(keras.ops.cast(result, "float32")).astype("float64")


@pytest.mark.parametrize("dtype", NUMBERS)
def test_stochastic_rounding_gives_one_of_the_two_neighbours_and_x_on_average(dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=500) * 10.0 ** rng.uniform(-4, 4, 500)
    x = np.concatenate([x, 2.0 ** np.arange(-10, 10), [0.0, -1.0, 1e-5]]).astype("float32")
    below, above = neighbours(x, dtype)
    results = np.array([rounded_once(x, dtype, [step, 7]) for step in range(200)])
    assert ((results == below) | (results == above)).all()
    share = ((results - below) / (above - below)).mean(axis=0)
    wanted = (x - below) / (above - below)
    spread = np.sqrt(wanted * (1 - wanted) / 200)
    assert np.all(np.abs(share - wanted) <= 5 * spread)
    assert abs(np.mean(share - wanted)) < 0.01


def test_stochastic_rounding_leaves_what_is_no_number_or_has_no_digits_to_lose():
    for dtype in NUMBERS:
        x = np.array([np.inf, -np.inf, np.nan, 0.0, 1.5, -255.0], "float32")
        np.testing.assert_array_equal(rounded_once(x, dtype, [1, 2]), x)


@pytest.mark.parametrize(
    ("make", "rate", "dtype", "error"),
    [(lamb_tf.LAMB, 1e-3, "bfloat16", 2e-3), (lamb_tf.LARS, 1.0, "float16", 2e-4)],
)
def test_rounded_stochastically_a_variable_follows_float32_on_average(make, rate, dtype, error):
    start = np.ones((50, 40), "float32")
    narrow, wide = keras.Variable(start, dtype=dtype), keras.Variable(start)
    for variable in (narrow, wide):
        optimizer = make(rate, master_weights=False)
        steps.take_steps(optimizer, [variable], [[start]] * 100)
        assert "master" not in optimizer.slots(variable)
    one, two = steps.values([narrow, wide])
    assert one.mean() == pytest.approx(two.mean(), abs=error)


def test_rounded_stochastically_a_large_variable_moves():
    variable = keras.Variable(np.ones((600, 500), "float32"), dtype="bfloat16")
    gradient = np.ones((600, 500), "float32")
    steps.take_steps(lamb_tf.LARS(10.0, master_weights=False), [variable], [[gradient]])
    assert steps.values([variable])[0].mean() == pytest.approx(0.99, abs=1e-4)


def test_rounded_stochastically_two_runs_agree_in_all_bits_and_float32_variables_are_not_touched():
    weights, gradients = steps.weights_and_gradients(steps=5)

    def trained(dtype, **arguments):
        variable = keras.Variable(weights[1], dtype=dtype)
        optimizer = lamb_tf.LAMB(1e-3, **arguments)
        steps.take_steps(optimizer, [variable], [grads[1:2] for grads in gradients])
        return steps.values([variable])[0]

    once, again = (trained("bfloat16", master_weights=False) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(
        trained("float32", master_weights=False), trained("float32", master_weights=True)
    )
