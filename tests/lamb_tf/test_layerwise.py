"""What LAMB and LARS share: exclusions and their persistence, the order of a step, accumulation.

Runs on the Keras backend that is set; what needs tf.distribute is in test_replicas.py.
"""

import inspect
import re
import sys
import warnings

import keras
import numpy as np
import pytest
import reference
import steps

import lamb_tf
from lamb_tf import _kernels, _state

BACKEND = keras.backend.backend()


def built(**arguments):
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    optimizer = lamb_tf.LAMB(0.01, **arguments)
    optimizer.build(variables)
    return optimizer, variables


def small_model(**arguments):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 4))
    model.compile(lamb_tf.LAMB(0.02, weight_decay=0.1, **arguments), loss="mse")
    return model


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(32, 4)).astype("float32"), rng.normal(size=(32, 1)).astype("float32")


# Exclusions.


def test_a_pattern_a_variable_and_a_predicate_exclude_the_same():
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    tables = []
    for exclusion in (r"dense/bias$", variables[2], lambda v: v.path.endswith("bias")):
        optimizer = lamb_tf.LAMB(exclude_from_weight_decay=[exclusion])
        optimizer.build(variables)
        tables.append(steps.summary(optimizer))
    assert tables[0] == tables[1] == tables[2]
    assert tables[0]["dense/bias"] == ("-", "-")
    assert tables[0]["dense/kernel"] == ("yes", "yes")


def test_none_follows_the_first_list_and_an_empty_list_is_nothing():
    follows, _ = built(exclude_from_weight_decay=["bias"])
    nothing, _ = built(exclude_from_weight_decay=["bias"], exclude_from_layer_adaptation=[])
    assert steps.summary(follows)["dense/bias"] == ("-", "-")
    assert steps.summary(nothing)["dense/bias"] == ("-", "yes")


def test_a_list_that_names_no_variable_raises_and_one_idle_pattern_among_others_warns():
    with pytest.raises(ValueError, match=r"(?s)LayerNorm.*dense/kernel\n"):
        built(exclude_from_weight_decay=["LayerNorm", "gamma"])
    with pytest.warns(UserWarning, match="'LayerNorm' in `exclude_from_weight_decay`"):
        built(exclude_from_weight_decay=["LayerNorm", "bias"])


@pytest.mark.parametrize("value", [b"bias", np.array(0.5)])
def test_exclusions_that_are_one_value_of_another_type_are_refused_as_given(value):
    with pytest.raises(TypeError, match=f"must hold .* got {re.escape(repr(value))} of type"):
        lamb_tf.LAMB(exclude_from_weight_decay=value)


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (keras.layers.Dense(1), "Dense"),
        (keras.layers.Dense, "type"),
        (str, "type"),
        (3.5, "float"),
        (True, "bool"),
    ],
)
@pytest.mark.parametrize("argument", ["exclude_from_weight_decay", "exclude_from_layer_adaptation"])
def test_an_exclusion_of_another_type_a_malformed_one_and_assignment_are_refused(
    argument, item, kind
):
    with pytest.raises(TypeError, match=f"`{argument}` must hold .* of type {kind}"):
        lamb_tf.LAMB(**{argument: [item]})
    with pytest.raises(ValueError, match=rf"`{argument}` must hold valid .*'\(bias': .*missing \)"):
        lamb_tf.LAMB(**{argument: ["(bias"]})
    with pytest.raises(AttributeError, match="to the constructor of LAMB"):
        setattr(lamb_tf.LAMB(), argument, ["bias"])


def test_state_for_variables_of_other_shapes_is_not_read_and_told(tmp_path):
    optimizer, store = lamb_tf.LAMB(), {}
    optimizer.build([keras.Variable(np.ones(3))])
    optimizer.iterations.assign(5)
    optimizer.save_own_variables(store)
    other = lamb_tf.LAMB()
    other.build([keras.Variable(np.ones(4))])
    with pytest.warns(
        UserWarning, match=r"not loaded and .*: in the file .*_m has shape \(3,\), expected \(4,\)"
    ):
        other.load_own_variables(store)
    assert other.iterations == 0


def test_state_for_an_optimizer_that_is_not_built_is_not_read_and_the_cure_is_told(tmp_path):
    model = small_model()
    model.fit(*data(), verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    again = small_model()
    with pytest.warns(UserWarning, match=r"not built: call `optimizer.build\(model.trainable_var"):
        again.load_weights(tmp_path / "model.weights.h5")
    again.optimizer.build(again.trainable_variables)  # the cure
    again.load_weights(tmp_path / "model.weights.h5")
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations) > 0


def test_the_choice_survives_a_weights_file_and_another_one_in_code_is_told(tmp_path):
    model = small_model(exclude_from_weight_decay=["bias$"])
    model.fit(*data(), verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    again = small_model()
    again.optimizer.build(again.trainable_variables)
    with pytest.warns(UserWarning, match="the loaded choice is used"):
        again.load_weights(tmp_path / "model.weights.h5")
    choices = [[*steps.summary(each.optimizer).values()] for each in (model, again)]
    assert choices[0] == choices[1]
    model.fit(*data(), epochs=2, verbose=0, shuffle=False)
    again.fit(*data(), epochs=2, verbose=0, shuffle=False)
    steps.assert_equal(model.get_weights(), again.get_weights())


def test_what_refuses_to_be_built_refuses_again_and_can_be_mended():
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    optimizer = lamb_tf.LAMB(0.01, exclude_from_weight_decay=["LayerNorm"])
    wrapper = lamb_tf.LossScaleOptimizer(optimizer)
    for build in (optimizer.build, wrapper.build) * 2:
        with pytest.raises(ValueError, match="`exclude_from_weight_decay` must match a variable"):
            build(variables)
    optimizer.exclude_from_weight_decay("bias")
    wrapper.build(variables)
    paths = [variable.path for variable in wrapper.variables]
    assert len(set(paths)) == len(paths)  # nothing was made twice
    assert steps.summary(optimizer)["dense/bias"] == ("-", "-")


@pytest.mark.parametrize(
    "arguments",
    [{"learning_rate_multipliers": {"LayerNorm": 2.0}}, {"shard_state": "no such axis"}],
    ids=str,
)
def test_what_is_refused_leaves_nothing_built(arguments):
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    optimizer = lamb_tf.LAMB(0.01, **arguments)
    for _ in range(2):
        with pytest.raises(ValueError, match="must match a variable|must be an axis of the mesh"):
            optimizer.build(variables)
    assert not optimizer.built
    assert len(optimizer.variables) == len(lamb_tf.LAMB(0.01).variables)


def test_the_method_of_keras_optimizers_takes_what_the_argument_does_until_it_is_built():
    variables = steps.make_variables(steps.weights_and_gradients()[0])
    several = ((name for name in ["bias"]), {"bias": 1}.keys(), frozenset(["bias"]))
    for exclusions in (("bias",), (None, "bias"), (variables[2],), *((each,) for each in several)):
        optimizer = lamb_tf.LAMB(0.01)
        optimizer.exclude_from_weight_decay(*exclusions)
        optimizer.build(variables)
        rows = steps.summary(optimizer)
        assert [path for path, (decayed, _) in rows.items() if decayed == "-"] == ["dense/bias"]
        with pytest.raises(ValueError, match="must be called before the optimizer is built"):
            optimizer.exclude_from_weight_decay(var_names=["kernel"])


# Hyperparameters.

REASSIGNED = {
    lamb_tf.LAMB: {
        "beta_1": 0.5,
        "beta_2": 0.9,
        "epsilon": 1e-3,
        "bias_correction": False,
        "nesterov": "both",
        "weight_decay": 0.1,
        "weight_norm_bounds": (0.0, 0.2),
        "trust_ratio_bounds": (0.0, 0.02),
        "trust_ratio_axes": (("kernel", (0,)),),
        "clipnorm": 0.1,
        "clipvalue": 0.1,
        "global_clipnorm": 0.1,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
        "loss_scale_factor": 8.0,
        "gradient_accumulation_steps": 2,
    },
    lamb_tf.LARS: {
        "momentum": 0.5,
        "ratio": "after_momentum",
        "trust_coefficient": 0.5,
        "epsilon": 1e-3,
        "nesterov": True,
    },
}
REASSIGNED = [(make, *row) for make, values in REASSIGNED.items() for row in values.items()]


@pytest.mark.parametrize(("make", "name", "value"), REASSIGNED, ids=str)
def test_a_value_assigned_before_the_build_is_that_of_the_constructor_and_fixed_after(
    make, name, value
):
    assigned = make()
    setattr(assigned, name, value)
    assert assigned.get_config() == {**make(name=assigned.name).get_config(), name: value}
    optimizer = make()
    optimizer.build([keras.Variable(np.ones(3))])
    before = getattr(optimizer, name)
    with pytest.raises(AttributeError, match=f"`{name}` must stay .*; got .*new {make.__name__}"):
        setattr(optimizer, name, value)
    setattr(optimizer, name, before)
    assert getattr(optimizer, name) == before


def test_a_rate_that_is_a_number_can_be_assigned_and_becomes_no_schedule_after_a_step():
    weights, gradients = steps.weights_and_gradients(steps=2)
    variables = steps.make_variables(weights)
    optimizer = lamb_tf.LAMB(0.5)
    optimizer.learning_rate = 0.1
    steps.take_steps(optimizer, variables, gradients)
    expected = reference.lamb(weights[1], [g[1] for g in gradients], 0.1)
    np.testing.assert_allclose(steps.values(variables)[1], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(AttributeError, match="before the first step"):
        optimizer.learning_rate = keras.optimizers.schedules.CosineDecay(0.1, 10)


@pytest.mark.parametrize(
    ("make", "change", "depends", "values"),
    [
        (lamb_tf.OrScale, {"calibrated": False}, "trust_ratio_bounds", [(0.1, 5.0), (0.5, 1.5)]),
        (lamb_tf.LARS, {"ratio": "after_momentum"}, "trust_coefficient", [0.001, 1.0]),
    ],
)
def test_what_depends_on_an_argument_is_settled_when_the_optimizer_is_built(
    make, change, depends, values
):
    ((argument, value),) = change.items()
    copies = []
    for optimizer in (make(), make.from_config(make().get_config())):
        assert getattr(optimizer, depends) == values[0]
        setattr(optimizer, argument, value)
        copies += [optimizer, make.from_config(optimizer.get_config())]
    for optimizer in (make(**change), *copies):
        assert getattr(optimizer, depends) == values[1]
        optimizer.build(steps.make_variables(steps.weights_and_gradients()[0]))
        assert getattr(optimizer, depends) == values[1]
        with pytest.raises(AttributeError, match=f"`{depends}` must stay as it is"):
            setattr(optimizer, depends, values[0])
    given = make(**{depends: values[0]})
    setattr(given, argument, value)
    assert getattr(given, depends) == values[0]


@pytest.mark.parametrize(
    ("assigned", "message"),
    [
        ({"clipnorm": 1.0, "global_clipnorm": 1.0}, "Only one of .* got clipnorm, global_clipnorm"),
        ({"use_ema": True, "ema_momentum": 99}, r"`ema_momentum` must be in \[0, 1\]; got 99"),
        ({"use_ema": True, "ema_overwrite_frequency": -1}, "ema_overwrite_frequency"),
    ],
    ids=str,
)
def test_arguments_that_contradict_are_refused_when_assigned_one_by_one(assigned, message):
    optimizer = lamb_tf.LAMB()
    for name, value in assigned.items():
        setattr(optimizer, name, value)
    with pytest.raises(ValueError, match=message):
        optimizer.build([keras.Variable(np.ones(3))])


OF_DERIVATIVES = {
    "LAMB": lambda: lamb_tf.LAMB(0.1, weight_decay=0.1, global_clipnorm=1.0),
    "LAMB, no epsilon": lambda: lamb_tf.LAMB(0.1, epsilon=0.0, nesterov="both", clipnorm=1.0),
    "LARS": lambda: lamb_tf.LARS(0.1),
    "LARS, after": lambda: lamb_tf.LARS(0.1, ratio="after_momentum", weight_decay=0.1),
    "OrScale": lambda: lamb_tf.OrScale(0.1),
    "OrScale, no epsilon": lambda: lamb_tf.OrScale(
        0.1, calibrated=False, epsilon=0.0, adam_epsilon=0.0
    ),
}
ZEROS = [(0, 0), (0, 1), (1, 0), (1, 1)]  # of weights and gradients: whether they are 0
of_derivatives = pytest.mark.parametrize("make", OF_DERIVATIVES.values(), ids=OF_DERIVATIVES)


@pytest.mark.skipif(BACKEND != "jax", reason="a step assigns, which only JAX can differentiate")
@of_derivatives
def test_two_steps_have_finite_derivatives_at_zeros(make):
    import jax

    arrays = [np.arange(12, dtype="float32").reshape(4, 3), np.ones(3, "float32")]
    variables, optimizer = [keras.Variable(array) for array in arrays], make()
    optimizer.build(variables)

    def loss(values, gradients):
        state = [v.value for v in optimizer.variables]
        for _ in range(2):
            values, state = optimizer.stateless_apply(state, gradients, values)
        return sum(keras.ops.sum(value) for value in values)

    gradient = jax.jit(jax.grad(loss, (0, 1)))
    for x, g in ZEROS:
        found = gradient([x * a for a in arrays], [g * a for a in arrays])
        assert all(np.isfinite(each).all() for each in jax.tree.leaves(found)), (x, g)


@pytest.mark.skipif(BACKEND == "jax", reason="whole steps are differentiated there")
@of_derivatives
def test_direction_and_ratio_have_finite_derivatives_at_zeros(make):
    variable, optimizer = keras.Variable(np.ones((4, 3), "float32")), make()
    optimizer.build([variable])
    one = keras.ops.ones(())
    slots = {n: v + 0.0 for n, v in optimizer.slots(variable).items() if v is not None}

    def movement(x, g):
        moved = {**slots, **optimizer.moments(x, g, slots, 0.1 * one)}
        u = optimizer.direction(x, g, moved, 0.1 * one, optimizer.coefficients(one, None))
        norms = [_kernels.square_root(keras.ops.sum(t * t)) for t in (x, u)]
        return keras.ops.sum(optimizer.trust_ratio(*norms, 0.1 * one) * u)

    for zeros in ZEROS:
        for found in derivatives(movement, [np.full((4, 3), c, "float32") for c in zeros]):
            assert np.isfinite(found).all(), zeros


def derivatives(function, arrays):
    """Those of a scalar, by TensorFlow or PyTorch."""
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    if BACKEND == "torch":
        import torch

        tensors = [t.requires_grad_() for t in tensors]
        found = torch.autograd.grad(function(*tensors), tensors, allow_unused=True)
        return [keras.ops.convert_to_numpy(t) for t in found if t is not None]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = function(*tensors)
    return [t.numpy() for t in tape.gradient(value, tensors) if t is not None]


# The order of a step.


@pytest.mark.parametrize(
    "options", [{}, {"nesterov": "both"}, {"trust_ratio_bounds": (np.inf, np.inf)}], ids=str
)
def test_a_skipped_update_leaves_weights_alone_whose_norm_overflows(options):
    weights, gradients = steps.weights_and_gradients(steps=1)
    weights[1][0, 0] = 1e20
    gradients[0][1] = np.full_like(weights[1], np.nan)
    trained = steps.train(lamb_tf.LAMB(0.1, weight_decay=0.1, **options), weights, gradients)
    for one, before in zip(trained, weights):
        np.testing.assert_array_equal(one, before.astype("float64"))


@pytest.mark.parametrize("factor", [np.nan, 1e25])
def test_a_gradient_whose_square_is_not_finite_is_skipped_and_no_constraint_applied(factor):
    weights, gradients = steps.weights_and_gradients(steps=1)
    gradients[0][1] = gradients[0][1] * np.float32(factor)
    variables = steps.make_variables(weights)
    variables[0].constraint = keras.constraints.NonNeg()
    steps.take_steps(lamb_tf.LAMB(0.1), variables, gradients)
    steps.assert_equal(steps.values(variables), [w.astype("float64") for w in weights])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_few_frames_lie_between_apply_and_the_equation(monkeypatch, compiled):
    def watched(equation):
        def watched_equation(*args):
            frame, frames = sys._getframe(1), []
            while frame.f_code is not apply:
                if "/jax/" not in frame.f_code.co_filename:  # a traceback leaves those out, too
                    frames.append(frame.f_code.co_qualname)
                frame = frame.f_back
            lists.append(frames)
            return equation(*args)

        return watched_equation

    # On TensorFlow `apply` is wrapped, so that autograph leaves it alone.
    apply, lists = inspect.unwrap(lamb_tf.LAMB.apply).__code__, []
    owner, name = lamb_tf.LAMB, "direction"
    if BACKEND == "tensorflow":  # its kernel stands for the equation: see test_kernels.py
        owner, name = _kernels.AdamDirection, "__call__"
    elif BACKEND == "torch":
        owner, name = _kernels.AdamDirectionOnTorch, "of_all"
    monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    weights, gradients = steps.weights_and_gradients(steps=1)
    variables, optimizer = steps.make_variables(weights), lamb_tf.LAMB()
    if compiled:
        steps.take_steps(optimizer, variables, gradients)
    else:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients[0]], variables)
    # On JAX, two variables of one shape are traced once; on torch, all five are moved together.
    assert len(lists) == {"tensorflow": 5, "jax": 4 if compiled else 5, "torch": 1}[BACKEND]
    for frames in lists:
        assert len(frames) <= 10, frames


CLIPPED = {
    "global_clipnorm": lambda grads: reference.clip_by_global_norm(grads, 0.5),
    "clipnorm": lambda grads: [reference.clip_by_global_norm([g], 0.5)[0] for g in grads],
    "clipvalue": lambda grads: [np.clip(g, -0.5, 0.5) for g in grads],
}


@pytest.mark.parametrize("clip", CLIPPED)
def test_gradients_are_clipped_by(clip):
    weights, gradients = steps.weights_and_gradients(steps=4)
    trained = steps.train(lamb_tf.LAMB(0.1, **{clip: 0.5}), weights, gradients)
    clipped = [CLIPPED[clip](grads) for grads in gradients]
    steps.assert_follows(reference.lamb, trained, weights, clipped, 0.1)


def test_accumulation_equals_the_mean_gradient_and_schedules_count_updates():
    weights, gradients = steps.weights_and_gradients(steps=6)
    rate = keras.optimizers.schedules.PolynomialDecay(0.1, 2, 0.01)
    optimizer = lamb_tf.LAMB(rate, gradient_accumulation_steps=3, global_clipnorm=1.0)
    variables = steps.make_variables(weights)
    steps.take_steps(optimizer, variables, gradients)
    means = [
        [np.mean([g[i] for g in gradients[k : k + 3]], axis=0) for i in range(len(weights))]
        for k in (0, 3)
    ]
    means = [reference.clip_by_global_norm(g, 1.0) for g in means]
    steps.assert_follows(
        reference.lamb, steps.values(variables), weights, means, lambda step: [0.1, 0.055][step]
    )
    assert int(steps.values([optimizer.iterations])[0]) == 2


def test_a_non_finite_micro_step_skips_its_update_and_the_next_starts_afresh():
    weights, gradients = steps.weights_and_gradients(steps=4)
    bad = [[g * np.float32(np.nan) for g in gradients[0]], gradients[1]]
    optimizer = lamb_tf.LAMB(0.1, gradient_accumulation_steps=2)
    variables = steps.make_variables(weights)
    steps.take_steps(optimizer, variables, bad + gradients[2:])
    means = [[(a + b) / 2 for a, b in zip(*gradients[2:])]]
    steps.assert_follows(reference.lamb, steps.values(variables), weights, means, 0.1)
    assert int(steps.values([optimizer.skipped_updates])[0]) == 1


def test_variables_without_gradient_stay_as_they_are():
    weights, gradients = steps.weights_and_gradients(steps=1)
    variables = steps.make_variables(weights)
    optimizer = lamb_tf.LAMB(0.1)
    optimizer.build(variables)
    grads = [keras.ops.convert_to_tensor(g) for g in gradients[0]]
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([grads[0], None, None, *grads[3:]], variables)
    after = steps.values(variables)
    np.testing.assert_array_equal(after[1], weights[1].astype("float64"))
    np.testing.assert_allclose(after[0], reference.lamb(weights[0], [gradients[0][0]], 0.1), 1e-5)


def test_a_model_with_averages_is_fitted_again_and_averages_are_apart_from_weights():
    model = small_model(use_ema=True)
    for _ in range(2):
        model.fit(*data(), verbose=0)
    averages = [model.optimizer._slots["average"][i] for i in range(4)]
    steps.assert_equal(steps.values(averages), model.get_weights())
    model.trainable_variables[0].assign_add(keras.ops.ones((4, 8)))
    assert not np.array_equal(steps.values(averages)[0], model.get_weights()[0])


def test_finalizing_keeps_variables_that_never_got_a_gradient():
    weights, gradients = steps.weights_and_gradients(steps=3)
    variables = steps.make_variables(weights)
    optimizer = lamb_tf.LAMB(0.1, use_ema=True, ema_momentum=0.5)
    optimizer.build(variables)
    variables[1].assign(2 * weights[1])  # as weights that are loaded after the build
    for first, *others in gradients:
        grads = [keras.ops.convert_to_tensor(first), *[None] * len(others)]
        with pytest.warns(UserWarning, match="Gradients do not exist"):
            optimizer.apply(grads, variables)
    optimizer.finalize_variable_values(variables)
    after = steps.values(variables)
    np.testing.assert_array_equal(after[1], 2 * weights[1].astype("float64"))
    np.testing.assert_array_equal(after[3], weights[3].astype("float64"))
    assert (after[0] != weights[0]).any()


@pytest.mark.parametrize("frequency", [None, 4])
def test_averages_and_constraints_are_those_of_keras_also_without_gradients(frequency):
    weights, gradients = steps.weights_and_gradients(steps=7)
    options = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": frequency}
    ends = []
    for make in (lamb_tf.LAMB, keras.optimizers.Lamb):
        variables, optimizer = steps.make_variables(weights), make(0.1, epsilon=1e-7, **options)
        variables[4].constraint = keras.constraints.NonNeg()
        optimizer.build(variables)
        for number, grads in enumerate(gradients):
            idle = (None, None) if number in (0, 1, 5, 6) else tuple(grads[:2])
            with warnings.catch_warnings(action="ignore"):  # of the gradients that there are not
                steps.apply(optimizer, variables, [*idle, *grads[2:]])
            if number == 2:
                variables[3].assign(5.0)
        assert steps.values(variables)[4].min() >= 0
        optimizer.finalize_variable_values(variables)
        ends.append(steps.values(variables))
    steps.assert_close(*ends, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("accumulation", [None, 2])
def test_averages_of_idle_variables_go_on_with_accumulation_and_what_was_assigned(accumulation):
    variable, other = keras.Variable(1.0, name="a"), keras.Variable(3.0, name="b")
    optimizer = lamb_tf.LAMB(
        0.5,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
        gradient_accumulation_steps=accumulation,
    )
    optimizer.build([variable, other])
    one, ends = keras.ops.ones(()), []
    with warnings.catch_warnings(action="ignore"):
        for _ in range(4):
            for _ in range(accumulation or 1):
                optimizer.apply([one, None], [variable, other])
            ends += steps.values([other])
            if len(ends) == 1:
                other.assign(4.0)
    average = 0.5 * 3.0 + 0.5 * 4.0
    assert ends == pytest.approx([3.0, average, average, average])


def test_without_a_momentum_an_average_is_the_value():
    variable, other = keras.Variable(1.0), keras.Variable(1e9)
    optimizer = lamb_tf.LAMB(0.5, use_ema=True, ema_momentum=0.0)
    optimizer.build([variable, other])
    one = keras.ops.ones(())
    with warnings.catch_warnings(action="ignore"):
        optimizer.apply([one, None], [variable, other])
        other.assign(1.5)
        optimizer.apply([one, None], [variable, other])
    optimizer.finalize_variable_values([variable, other])
    assert steps.values([other]) == [1.5]


def test_averages_of_variables_without_gradient_are_written_into_them_when_due():
    variable, other = keras.Variable(1.0), keras.Variable(1.0, dtype="bfloat16")
    optimizer = lamb_tf.LAMB(0.5, use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=3)
    optimizer.build([variable, other])
    one = keras.ops.ones(())
    for gradient in (None, keras.ops.ones((), "bfloat16"), None):
        with warnings.catch_warnings(action="ignore"):
            optimizer.apply([one, gradient], [variable, other])
    average = 0.75 * (0.75 * 1.0 + 0.25 * 0.5) + 0.25 * 0.5
    assert steps.values([other]) == [pytest.approx(average, rel=4e-3)]
    assert steps.values([optimizer.slots(other)["master"]]) == [pytest.approx(average, rel=1e-5)]


def test_averages_may_be_swapped_in_before_the_first_update():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(lamb_tf.LAMB(0.1, use_ema=True), "mse")
    model.optimizer.build(model.trainable_variables)
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    before, loss = model.get_weights(), model.evaluate(x, x[:, :2], verbose=0)
    swap = keras.callbacks.SwapEMAWeights()
    assert model.evaluate(x, x[:, :2], verbose=0, callbacks=[swap]) == pytest.approx(loss)
    steps.assert_equal(before, model.get_weights())


def test_a_gradient_that_is_missing_in_the_last_micro_step_is_not_lost():
    weights, gradients = steps.weights_and_gradients(steps=3)
    variables = steps.make_variables(weights)
    optimizer = lamb_tf.LAMB(0.1, gradient_accumulation_steps=2)
    optimizer.build(variables)
    tensors = [[keras.ops.convert_to_tensor(g) for g in grads] for grads in gradients]
    with warnings.catch_warnings(action="ignore"):
        optimizer.apply(tensors[0], variables)
        optimizer.apply([*tensors[1][:-1], None], variables)
    after = steps.values(variables)
    np.testing.assert_array_equal(after[-1], weights[-1].astype("float64"))
    mean = (gradients[0][0] + gradients[1][0]) / 2
    np.testing.assert_allclose(after[0], reference.lamb(weights[0], [mean], 0.1), 1e-5, 1e-6)
    for grads in (tensors[2], tensors[2]):
        optimizer.apply(grads, variables)
    # In the next update that it takes part in the last variable has the sum of all three; by
    # then t is 2, but its moments are those of one gradient.
    slots = optimizer.slots(variables[-1])
    total = (gradients[0][-1] + 2 * gradients[2][-1]) / 2
    np.testing.assert_allclose(steps.values([slots["m"]])[0], 0.1 * total, 1e-5, 1e-6)


def test_a_variable_that_is_given_twice_is_refused():
    variable = keras.Variable([1.0, 2.0])
    optimizer = lamb_tf.LAMB(0.1)
    optimizer.build([variable])
    gradient = keras.ops.ones((2,))
    with pytest.raises(ValueError, match="must name each variable once"):
        optimizer.apply([gradient, gradient], [variable, variable])


def test_finalizing_changes_nothing_where_every_update_was_skipped():
    weights, gradients = steps.weights_and_gradients(steps=2)
    variables = steps.make_variables([0 * w for w in weights])
    optimizer = lamb_tf.LAMB(0.1, use_ema=True)
    optimizer.build(variables)
    for variable, value in zip(variables, weights):
        variable.assign(value)
    steps.take_steps(optimizer, variables, [[g * np.float32(np.nan) for g in gradients[0]]])
    optimizer.finalize_variable_values(variables)
    for value, wanted in zip(steps.values(variables), weights):
        np.testing.assert_array_equal(value, wanted.astype("float64"))


def test_before_the_build_nothing_is_finalized_and_other_variables_have_no_slots():
    variable = keras.Variable(1.0)
    lamb_tf.LAMB(use_ema=True).finalize_variable_values([variable])
    assert variable.numpy() == 1.0
    with pytest.raises(ValueError, match="Unknown variable"):
        built()[0].slots(variable)


def test_slots_are_float32_and_named_after_their_variable():
    optimizer, variables = built()
    slots = optimizer.slots(variables[1])
    assert list(slots) == ["m", "v"]
    assert slots["m"].path.endswith("dense_kernel_m")
    assert slots["v"].path.endswith("dense_kernel_v")


def test_the_first_call_needs_the_variables_and_as_many_gradients():
    with pytest.raises(ValueError, match="must be given in the first call"):
        lamb_tf.LAMB().apply([np.ones(3)])
    optimizer, variables = built()
    with pytest.raises(ValueError, match="got 1 for 5 variables"):
        optimizer.apply([np.ones(3)], variables)


def test_keras_still_has_the_private_hooks():
    optimizer, variable = keras.optimizers.Lamb(use_ema=True), keras.Variable(1.0)
    optimizer.build([variable])
    if steps.BACKEND == "jax":  # the only one that shards variables
        assert hasattr(variable, "_layout")
    if steps.BACKEND == "tensorflow":  # the only one with checkpoints of its own
        assert hasattr(optimizer, "_delete_tracking")
        assert hasattr(optimizer, "_trackable_children")
    of_one_backend = {"_layout", "_delete_tracking", "_trackable_children"}
    for hook in set(_state.PRIVATE_HOOKS) - of_one_backend:
        assert hasattr(optimizer, hook), hook


@pytest.mark.skipif(BACKEND != "jax", reason="JAX compiles a program for all variables")
@pytest.mark.parametrize("make", [lamb_tf.LAMB, lamb_tf.LARS, lamb_tf.OrScale])
def test_the_equations_of_small_variables_are_compiled_once_for_each_shape(make):
    import jax

    def equations(count):
        shapes = [[(4, 3), (3,), (5, 2), (2,)][i % 4] for i in range(count)]
        variables = [keras.Variable(np.ones(s), name=f"v{i}") for i, s in enumerate(shapes)]
        optimizer = make(0.1)
        optimizer.build(variables)
        values = [v.value for v in variables]
        state = [v.value for v in optimizer.variables]
        program = jax.jit(optimizer.stateless_apply).lower(state, values, values).as_text()
        return [program.count(f"stablehlo.{name} ") for name in ("divide", "sqrt", "dot_general")]

    assert equations(60) == equations(12)
