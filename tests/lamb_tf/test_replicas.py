"""The order of a step under tf.distribute: N replicas give the weights that one gives."""

import contextlib
import functools
import warnings

import keras
import named_tpus
import numpy as np
import pytest
import reference
import steps
import tensorflow as tf
from two_replicas import shares, train_on_replicas, two_replicas

import lamb_tf
from lamb_tf import _replicas, compile_target

RULES = {"embedding": 0.25, "bias$": 0.0, "dense": 1.7}


def on_replicas(variable):
    """The values of a variable on each replica, as NumPy arrays."""
    locals_ = two_replicas().experimental_local_results(_replicas.native(variable))
    return [local.numpy() for local in locals_]


def sparse(values, rows, shape=None):
    return tf.IndexedSlices(*map(tf.constant, (values, rows)), shape)


def assert_on_replicas(variable, expected):
    """Each replica has all digits of the expected values."""
    for local in on_replicas(variable):
        np.testing.assert_array_equal(local, expected)


@pytest.mark.parametrize(
    ("make", "arguments", "error"),
    [
        *(
            (lamb_tf.LAMB, arguments, 2e-6)
            for arguments in (
                {},
                {"clipvalue": 0.3},  # by norms: test_defects.py
                {"loss_scale_factor": 8.0, "global_clipnorm": 0.5},
                {"nesterov": "both", "learning_rate_multipliers": RULES},
                {"use_ema": True},
                {"gradient_accumulation_steps": 2, "global_clipnorm": 0.5},
                {"global_clipnorm": 0.5, "reduced": True},  # by the caller: not summed again
            )
        ),
        (lamb_tf.LARS, {"global_clipnorm": 0.5, "learning_rate_multipliers": RULES}, 2e-6),
        (lamb_tf.LARS, {"ratio": "after_momentum", "trust_ratio_axes": {"kernel": 1}}, 2e-6),
        (lamb_tf.OrScale, {}, 1e-4),  # five steps of its iteration magnify round-off
    ],
    ids=str,
)
def test_two_replicas_give_the_weights_of_one(make, arguments, error):
    arguments = {"weight_decay": 0.01, **arguments}
    reduced = arguments.pop("reduced", False)
    weights, gradients = steps.weights_and_gradients(steps=4)
    one = steps.train(make(0.1, **arguments), weights, gradients)
    variables, _ = train_on_replicas(
        lambda: make(0.1, **arguments), weights, shares(gradients), reduced=reduced
    )
    for variable, expected in zip(variables, one):
        for local in on_replicas(variable):
            np.testing.assert_allclose(local, expected, rtol=error, atol=error / 10)


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_optimizer_is_built_after_the_scope_of_its_variables_has_been_left(wrapped):
    with two_replicas().scope():
        variable, optimizer = keras.Variable(np.ones(3), dtype="bfloat16"), lamb_tf.LAMB(0.1)
    if wrapped:
        optimizer = lamb_tf.LossScaleOptimizer(optimizer)
    optimizer.build([variable])
    step = lambda: optimizer.apply([tf.ones(3)], [variable])  # noqa: E731
    tf.function(lambda: two_replicas().run(step), autograph=False)()
    for local in on_replicas(variable):
        np.testing.assert_allclose(local.astype("float32"), [0.9] * 3, rtol=2**-8)


@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 2}, {"use_ema": True}])
@pytest.mark.parametrize("comes", [True, False])
def test_a_checkpoint_of_tensorflow_is_restored_where_an_option_comes_or_goes(
    tmp_path, options, comes
):
    def trained(options):
        variable, optimizer = keras.Variable(np.ones(3), dtype="bfloat16"), lamb_tf.LAMB(**options)
        optimizer.build([variable])
        optimizer.apply([tf.ones(3)])
        optimizer.apply([tf.ones(3)])
        return variable, optimizer

    old, new = (trained({}), trained(options)) if comes else (trained(options), trained({}))
    path = tf.train.Checkpoint(variable=old[0], optimizer=old[1]).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(variable=new[0], optimizer=new[1]).restore(path).expect_partial()
    assert new[1].iterations == old[1].iterations
    for name in ("m", "v", "master"):
        pair = steps.values([optimizer.slots(variable)[name] for variable, optimizer in (old, new)])
        np.testing.assert_array_equal(*pair)


AVERAGES = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
WITH_SUMS = functools.partial(lamb_tf.LAMB, 0.1, **AVERAGES, gradient_accumulation_steps=2)
DECAYED = functools.partial(lamb_tf.LAMB, weight_decay=0.1)


@pytest.mark.parametrize(
    ("make", "dtype", "comes_first", "make_again"),
    [
        (WITH_SUMS, "float32", "checkpoint", WITH_SUMS),
        (WITH_SUMS, "bfloat16", "build", WITH_SUMS),
        (lambda: lamb_tf.OrScale(0.1, **AVERAGES), "float32", "checkpoint", None),
        # The choice of variables and the rate are those of the checkpoint.
        (lambda: DECAYED(0.1, exclude_from_weight_decay=["bias$"]), "float32", "build", DECAYED),
    ],
    ids=["averages, sums", "and master copies", "OrScale", "a choice"],
)
def test_a_run_goes_on_from_a_checkpoint_of_tensorflow(
    tmp_path, make, dtype, comes_first, make_again
):
    weights, gradients = steps.weights_and_gradients(steps=7)

    def begun(make, weights):
        variables, optimizer = steps.make_variables(weights, dtype), make()
        return variables, optimizer, tf.train.Checkpoint(variables=variables, optimizer=optimizer)

    whole, optimizer, checkpoint = begun(make, weights)
    steps.take_steps(optimizer, whole, gradients[:3])
    path = checkpoint.save(tmp_path / "checkpoint")
    steps.take_steps(optimizer, whole, gradients[3:])
    resumed, other, checkpoint = begun(make_again or make, [0 * w for w in weights])
    if comes_first == "build":
        other.build(resumed)
    status = checkpoint.restore(path)
    steps.take_steps(other, resumed, gradients[3:])
    status.assert_consumed()
    for one, two in zip(whole + optimizer.variables, resumed + other.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_averages_that_come_to_a_checkpoint_without_them_begin_with_the_next_update(tmp_path):
    variable, optimizer = keras.Variable([5.0] * 3), lamb_tf.LAMB(0.1)
    optimizer.build([variable])
    optimizer.apply([tf.ones(3)], [variable])
    path = tf.train.Checkpoint(variable=variable, optimizer=optimizer).save(tmp_path / "checkpoint")
    again, other = keras.Variable([-100.0] * 3), lamb_tf.LAMB(0.1, use_ema=True, ema_momentum=0.9)
    other.build([again])
    tf.train.Checkpoint(variable=again, optimizer=other).restore(path).expect_partial()
    for one, variables in ((optimizer, [variable]), (other, [again])):
        one.apply([tf.ones(3)], variables)
    other.finalize_variable_values([again])
    np.testing.assert_array_equal(again.numpy(), variable.numpy())


def test_a_step_that_would_move_one_replica_or_one_variable_twice_is_refused():
    with two_replicas().scope():
        inside, optimizer = keras.Variable([1.0] * 3), lamb_tf.LAMB(0.1)
        optimizer.build([inside])
    with pytest.raises(ValueError, match="made in the scope of a Mirrored.*called in none"):
        optimizer.apply([tf.ones(3)], [inside])
    outside = keras.Variable([1.0] * 3, name="prompt")
    with two_replicas().scope():
        optimizer = lamb_tf.LAMB(0.1)
        optimizer.build([inside, outside])
    with pytest.raises(
        ValueError, match="'prompt' must be made .* made in no strategy's scope.* anot"
    ):
        two_replicas().run(lambda: optimizer.apply([tf.ones(3)] * 2, [inside, outside]))
    assert_on_replicas(inside, [1.0] * 3)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("dense", "eager"), ("dense", "graph"), ("sparse", "graph"), ("sum", "graph")],
)
def test_one_tensor_object_may_be_the_gradient_of_all_replicas(kind, mode):
    weights, gradients = steps.weights_and_gradients(steps=1)
    with two_replicas().scope():
        table, optimizer = keras.Variable(weights[0]), lamb_tf.LAMB(0.1)
        optimizer.build([table])
    gradient = tf.constant(gradients[0][0])
    if kind == "sparse":
        gradient = tf.IndexedSlices(gradient, tf.range(13), tf.constant([13, 7]))

    def step():
        two_replicas().run(
            lambda: optimizer.apply([gradient], [table], skip_gradients_aggregation=kind == "sum")
        )

    (tf.function(step, autograph=False) if mode == "graph" else step)()
    expected = 0.1 * gradients[0][0] * (1 if kind == "sum" else 2)
    for local in on_replicas(optimizer.slots(table)["m"]):
        np.testing.assert_allclose(local, expected, rtol=1e-6)


def test_two_replicas_with_float64_weights_follow_the_formula_in_float64():
    weights, gradients = steps.weights_and_gradients(steps=4, dtype="float64")
    both = [[[0.25 * g for g in grads], [0.75 * g for g in grads]] for grads in gradients]
    variables, _ = train_on_replicas(lambda: lamb_tf.LAMB(0.125), weights, both, dtype="float64")
    for i, x in enumerate(weights):
        expected = reference.lamb(x, [g[i] for g in gradients], 0.125)
        np.testing.assert_allclose(variables[i].numpy(), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("accumulation", [None, 2])
def test_a_scale_of_float8_is_the_largest_that_any_replica_has(accumulation):
    def optimizer_for_a_scale():
        optimizer = lamb_tf.LAMB(0.1, gradient_accumulation_steps=accumulation)
        build = optimizer.build

        def build_after_marking(variables):
            variables[0].overwrite_with_gradient = True
            build(variables)

        optimizer.build = build_after_marking
        return optimizer

    weights = [np.zeros(2, "float32"), np.ones(2, "float32")]
    ones = np.ones(2, "float32")
    history = [[[1.0, 5.0], [3.0, 2.0]], [[4.0, 0.0], [1.0, 1.0]]]
    both = [[[np.float32(h), ones] for h in replicas] for replicas in history]
    (scale, _), _ = train_on_replicas(optimizer_for_a_scale, weights, both)
    expected = [4.0, 5.0] if accumulation else [4.0, 1.0]
    assert_on_replicas(scale, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: lamb_tf.LAMB(0.1, weight_decay=0.1, global_clipnorm=0.5),
        lambda: lamb_tf.LAMB(0.1, nesterov="both", use_ema=True, ema_overwrite_frequency=2),
        lambda: lamb_tf.LARS(0.1),
    ],
    ids=["clipped", "nesterov, averaged", "LARS"],
)
def test_an_update_skipped_in_the_middle_is_as_if_it_had_not_been(make):
    weights, gradients = steps.weights_and_gradients(steps=3)
    bad = shares(gradients)
    bad[1][1][1][0, 0] = np.nan  # on the second replica alone
    good = [bad[0], bad[2]]
    (variables, optimizer), (expected, other) = (
        train_on_replicas(make, weights, both) for both in (bad, good)
    )
    assert optimizer.skipped_updates.value.numpy() == 1
    ours, wanted = variables + optimizer.variables, expected + other.variables
    for one, two in zip(ours, wanted, strict=True):
        if one is not optimizer.skipped_updates:
            steps.assert_equal(on_replicas(one), on_replicas(two))


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_averages_of_variables_without_gradient_go_on_on_every_replica(mode):
    with two_replicas().scope():
        variable, other = keras.Variable(1.0), keras.Variable(1.0, dtype="bfloat16")
        optimizer = lamb_tf.LAMB(0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
        optimizer.build([variable, other])

    def step(gradient):
        two_replicas().run(lambda: optimizer.apply([tf.ones(()), gradient], [variable, other]))

    run = tf.function(step, autograph=False) if mode == "graph" else step
    with warnings.catch_warnings(action="ignore"):  # of the gradient that is not there
        run(tf.ones(()))
        other.assign(2.5)
        for _ in range(2):
            run(None)
    # 0.5 after the first update, as is its average; then 1.5, and 2, which is written into it.
    for each in (optimizer.slots(other)["master"], optimizer._slots["average"][1], other):
        for local in on_replicas(each):
            assert float(local) == pytest.approx(2.0, rel=4e-3)
    other.assign(1.5)
    with warnings.catch_warnings(action="ignore"):
        for _ in range(2):
            run(None)
    averages = on_replicas(optimizer._slots["average"][1])
    average = 0.25 * 2.0 + 0.25 * 1.5 + 0.5 * 1.5
    assert [float(each) for each in averages] == pytest.approx([average] * 2, rel=4e-3)


def test_bfloat16_gradients_of_replicas_are_summed_in_float32():
    weights = [np.zeros((), "float32")]
    both = [[[np.float32(256.0)], [np.float32(1.0)]]]  # 257 is not a number of bfloat16
    both = [[[tf.cast(g, tf.bfloat16) for g in grads] for grads in step] for step in both]
    variables, optimizer = train_on_replicas(lambda: lamb_tf.LAMB(0.1), weights, both)
    np.testing.assert_allclose(optimizer.slots(variables[0])["m"].value.numpy(), 25.7, rtol=1e-6)


@pytest.mark.parametrize("accumulation", [None, 2])
def test_sparse_gradients_with_repeated_indices_give_the_dense_result(accumulation):
    weights, _ = steps.weights_and_gradients()
    values = np.random.default_rng(0).normal(size=(2, 4, 7)).astype("float32")
    indices = np.array([[1, 1, 5, 12], [5, 0, 1, 5]])
    dense = np.zeros((2, 13, 7), "float32")
    for replica in range(2):
        np.add.at(dense[replica], indices[replica], values[replica])
    slices = [sparse(*each, tf.constant([13, 7], tf.int64)) for each in zip(values, indices)]
    found, expected = (
        train_on_replicas(
            lambda: lamb_tf.LAMB(0.1, gradient_accumulation_steps=accumulation),
            weights[:1],
            [[[gradient] for gradient in of_replicas]] * 4,
        )[0]
        for of_replicas in (slices, dense)
    )
    steps.assert_close(steps.values(found), steps.values(expected), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("keeps_master", [True, False])
def test_variables_of_bfloat16_are_equal_in_all_bits_on_both_replicas_and_follow_one(keeps_master):
    weights, gradients = steps.weights_and_gradients(steps=5)

    def optimizer():
        return lamb_tf.LAMB(1e-3, global_clipnorm=0.5, master_weights=keeps_master)

    variables, trained = train_on_replicas(optimizer, weights, shares(gradients), "bfloat16")
    one = steps.make_variables(weights, "bfloat16")
    other = optimizer()
    steps.take_steps(other, one, gradients)
    for variable in variables + trained.variables:
        np.testing.assert_array_equal(*on_replicas(variable))
    for variable, expected in zip(variables, one):
        if keeps_master:
            variable, expected = (
                o.slots(v)["master"] for o, v in ((trained, variable), (other, expected))
            )
        tolerance = 1e-6 if keeps_master else 2.0**-7
        np.testing.assert_allclose(*steps.values([variable, expected]), rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "XLA"])
def test_a_step_is_the_same_in_a_graph_and_in_xla_and_eagerly(compiled):
    weights, gradients = steps.weights_and_gradients(steps=3)
    gradients[1][0][0, 0] = np.nan
    variables, eager = steps.make_variables(weights), steps.make_variables(weights)
    optimizer, other = lamb_tf.LAMB(0.1, weight_decay=0.1), lamb_tf.LAMB(0.1, weight_decay=0.1)
    steps.take_steps(optimizer, variables, gradients, xla=compiled)
    for grads in gradients:
        steps.apply(other, eager, grads)
    steps.assert_close(steps.values(variables), steps.values(eager), rtol=1e-6, atol=1e-7)
    assert optimizer.skipped_updates.numpy() == other.skipped_updates.numpy() == 1


@pytest.mark.parametrize("make", [lamb_tf.LAMB, lamb_tf.OrScale])
def test_xla_keeps_float64(make):
    weights, gradients = steps.weights_and_gradients(steps=3, dtype="float64")
    expected = steps.train(make(0.125), weights, gradients, "float64")
    variables = steps.make_variables(weights, "float64")
    steps.take_steps(make(0.125), variables, gradients, xla=True)
    steps.assert_close(steps.values(variables), expected, rtol=1e-12, atol=1e-13)


# Several devices without a strategy.


@pytest.mark.parametrize(
    ("make", "mode"),
    [
        (lambda: lamb_tf.LAMB(0.1, weight_decay=0.1, global_clipnorm=0.5), "eager"),
        (lambda: lamb_tf.LAMB(0.1, weight_decay=0.1, global_clipnorm=0.5), "graph"),
        (
            lambda: lamb_tf.LAMB(0.1, nesterov="both", use_ema=True, gradient_accumulation_steps=2),
            "graph",
        ),
        (lambda: lamb_tf.LARS(0.1), "graph"),
    ],
    ids=["kernel, eager", "kernel", "equations", "LARS"],
)
def test_all_state_lies_on_the_device_of_its_variable(make, mode):
    weights, gradients = steps.weights_and_gradients(steps=2)
    devices = [tf.constant(0.0).device.replace("CPU:0", f"CPU:{i}") for i in (1, 0, 1, 1, 0)]

    def trained(devices):
        variables = []
        for path, value, device in zip(steps.SHAPES, weights, devices):
            with tf.device(device):
                variables.append(keras.Variable(value, name=path.replace("/", "_")))
        optimizer = make()
        lamb_tf.telemetry.record(optimizer)
        optimizer.build(variables)
        step = lambda grads: optimizer.apply(grads, variables)  # noqa: E731
        if mode == "graph":
            step = tf.function(step, autograph=False)
        for grads in gradients:
            step([tf.constant(g) for g in grads])
        return variables, optimizer

    (variables, optimizer), (expected, other) = trained(devices), trained(5 * devices[1:2])
    for variable, device in zip(variables, devices):
        parts = optimizer._state(variable).values()
        assert {_replicas.native(part).device for part in parts} == {device}
    figures = [_replicas.to_numpy(lamb_tf.telemetry.tensors(o)[0]) for o in (optimizer, other)]
    steps.assert_close(
        [*steps.values(variables), figures[0]],
        [*steps.values(expected), figures[1]],
        rtol=1e-6,
        atol=1e-7,
    )


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: lamb_tf.LAMB(0.1), "bfloat16"),
        (lambda: lamb_tf.LAMB(0.1, use_ema=True), "float32"),
        (lambda: lamb_tf.LAMB(0.1, gradient_accumulation_steps=2), "float32"),
        (lambda: lamb_tf.LARS(0.1), "bfloat16"),
        (lambda: lamb_tf.OrScale(0.1), "float32"),
    ],
    ids=["LAMB", "LAMB, averages", "LAMB, accumulation", "LARS", "OrScale"],
)
def test_a_program_for_tpus_moves_each_variable_of_a_shape_with_its_own_state(make, dtype):
    with tf.Graph().as_default(), compile_target.compiling_for("TPU"):
        strategy = named_tpus.strategy(1, 2)
        with strategy.scope():
            variables = [
                keras.Variable(np.ones((4, 3)), dtype=dtype, name=name) for name in ("a", "b", "c")
            ]
            optimizer = make()
            optimizer.build(variables)
        gradients = [np.ones((4, 3), dtype)] * 3

        @tf.function(autograph=False)
        def step():
            strategy.run(lambda: optimizer.apply([tf.constant(g) for g in gradients], variables))

        graph = step.get_concrete_function().graph
        found, raw = named_tpus.assigned(graph), named_tpus.captured_raw(graph)
        parts = [part for v in variables for part in (v, *optimizer.slots(v).values())]
        handles = [
            part.handle.name.split(":")[0]
            for of_all in parts
            for part in strategy.experimental_local_results(_replicas.native(of_all))
        ]
    assert len(set(handles)) == 2 * len(parts)
    # What is not replicated input would be one replica's on all cores.
    assert not raw
    if not optimizer.gradient_accumulation_steps:  # in a branch of the graph otherwise
        assert found >= set(handles)


# Loss scaling.


@pytest.mark.parametrize(
    ("wrapper", "bad_replica"),
    [
        (keras.optimizers.LossScaleOptimizer, 1),
        (lamb_tf.LossScaleOptimizer, 0),
        (lamb_tf.LossScaleOptimizer, 1),
    ],
)
def test_an_overflow_on_either_replica_changes_nothing_under_a_loss_scale(wrapper, bad_replica):
    weights, gradients = steps.weights_and_gradients(steps=1)
    both = shares(gradients)
    both[0][bad_replica][1][0, 0] = np.inf
    variables, optimizer = train_on_replicas(
        lambda: wrapper(lamb_tf.LAMB(0.1), initial_scale=8.0), weights, both
    )
    inner = optimizer.inner_optimizer
    everything = variables + [slot for v in variables for slot in inner.slots(v).values()]
    before = [*weights] + [np.zeros_like(w) for w in weights for _ in "mv"]
    for variable, old in zip(everything, before):
        assert_on_replicas(variable, old)
    assert inner.iterations.value.numpy() == 0
    if wrapper is lamb_tf.LossScaleOptimizer:
        assert optimizer.dynamic_scale.numpy() == 4.0
        assert optimizer.inner_optimizer.skipped_updates.numpy() == 1


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("mixed_float16", 1e-3)])
def test_fit_on_two_replicas_gives_the_weights_and_the_loss_scale_of_one(dtype, error):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 4)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
    if dtype == "mixed_float16":
        x[7] *= 1e4  # of the second replica's half of a batch of 8: beyond float16

    def fitted():
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(8, dtype=dtype), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        optimizer = inner = lamb_tf.LAMB(0.01, weight_decay=0.01, global_clipnorm=0.1)
        if dtype == "mixed_float16":
            optimizer = lamb_tf.LossScaleOptimizer(inner, 2.0**14)
        model.compile(optimizer, loss="mse")
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        counts = [inner.skipped_updates, getattr(optimizer, "dynamic_scale", inner.iterations)]
        return [*map(float, steps.values(counts))], model.get_weights()

    counts, one = fitted()
    assert counts == ([2, 2.0**12] if dtype == "mixed_float16" else [0, 16])
    with two_replicas().scope():
        counts_of_two, two = fitted()
    assert counts_of_two == counts
    steps.assert_close(one, two, rtol=error, atol=error)


# Telemetry.


def expected_figures(weights, gradients):
    """‖x‖, ‖u‖ and their ratio of a first step, in which u = g / (|g| + ε)."""
    rows = []
    for x, g in zip(weights, gradients):
        norm_x, norm_u = np.linalg.norm(x), np.linalg.norm(g / (np.abs(g) + 1e-6))
        rows.append([norm_x, norm_u, norm_x / norm_u if norm_x > 0 else 1.0])
    return rows


@pytest.mark.parametrize("mode", ["eager", "XLA", "two replicas"])
def test_telemetry_tells_the_same_inside_a_step_and_after_it(mode):
    weights, gradients = steps.weights_and_gradients(steps=1)
    with two_replicas().scope() if mode == "two replicas" else contextlib.nullcontext():
        variables, optimizer = steps.make_variables(weights), lamb_tf.LAMB(0.1)
        lamb_tf.telemetry.record(optimizer)
        optimizer.build(variables)

    def step(pairs):
        def apply():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            grads = [tf.gather(tf.stack(pair), replica) for pair in pairs]
            optimizer.apply(grads, variables)

        two_replicas().run(apply) if mode == "two replicas" else apply()
        layers, norm = lamb_tf.telemetry.tensors(optimizer)
        return layers + 0.0, norm + 0.0

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "XLA", autograph=False)
    (both,) = shares(gradients) if mode == "two replicas" else [[gradients[0]]]
    layers, norm = step([*zip(*both)])
    np.testing.assert_allclose(layers, expected_figures(weights, gradients[0]), rtol=1e-5)
    expected = np.sqrt(sum(np.sum(np.square(g)) for g in gradients[0]))
    assert float(norm) == pytest.approx(expected, rel=1e-5)
    figures = lamb_tf.telemetry.read(optimizer)
    rows = [[row[name] for name in lamb_tf.telemetry.METRICS] for row in figures.values()]
    np.testing.assert_array_equal(rows, layers)
    assert lamb_tf.telemetry.gradient_norm(optimizer) == float(norm)


# The gradient noise scale.


def noise_recording(micro_steps=None):
    optimizer = lamb_tf.LAMB(0.01, gradient_accumulation_steps=micro_steps)
    lamb_tf.telemetry.record(optimizer, noise_scale=True)
    return optimizer


def expected_noise_scale(micro_batches, count):
    """Of gradients whose mean, over `count` micro-batches, a step applies."""
    rows = np.array([np.concatenate([np.ravel(g) for g in grads]) for grads in micro_batches])
    averages = reference.noise_averages(rows.reshape(-1, count, rows.shape[1]))
    return averages[1] / averages[0]


@pytest.mark.parametrize("micro_steps", [None, 2])
@pytest.mark.parametrize("reduced", [False, True])
def test_the_noise_scale_counts_the_micro_batches_of_all_replicas(micro_steps, reduced):
    weights, gradients = steps.weights_and_gradients(steps=6)
    gradients = [[g + np.float32(1) for g in grads] for grads in gradients]  # more than noise
    both = shares(gradients)
    if reduced and not micro_steps:
        with pytest.raises(ValueError, match="noise_scale must be off"):
            train_on_replicas(noise_recording, weights, both[:1], reduced=True)
        return
    _, optimizer = train_on_replicas(
        lambda: noise_recording(micro_steps), weights, both, reduced=reduced
    )
    micro = gradients if reduced else [grads for pair in both for grads in pair]
    count = (1 if reduced else 2) * (micro_steps or 1)
    scale = lamb_tf.telemetry.noise_scale(optimizer)
    assert scale == pytest.approx(expected_noise_scale(micro, count), rel=1e-4)
    in_examples = lamb_tf.telemetry.noise_scale(optimizer, batch_size=12 * count)
    assert in_examples == pytest.approx(12 * scale)


@pytest.mark.parametrize("replicas", [1, 2])
def test_sparse_gradients_with_repeated_rows_count_as_the_dense_ones(replicas):
    rng = np.random.default_rng(0)
    values = rng.normal(1, 1, (4, 3, 5)).astype("float32")
    rows = np.array([[1, 1, 6], [0, 6, 6], [2, 2, 2], [6, 1, 1]], "int32")
    gradients = [[sparse(*each)] for each in zip(values, rows)]
    ones = np.ones((7, 5), "float32")
    if replicas == 2:
        both = [gradients[:2], gradients[2:]]
        _, optimizer = train_on_replicas(noise_recording, [ones], both)
    else:
        variables, optimizer = [keras.Variable(ones)], noise_recording(2)
        optimizer.build(variables)
        step = tf.function(lambda grads: optimizer.apply(grads, variables), autograph=False)
        for grads in gradients:
            step(grads)
    dense = np.zeros((4, 1, 7, 5))
    for gradient, value, row in zip(dense, values, rows):
        np.add.at(gradient[0], row, value)
    scale = lamb_tf.telemetry.noise_scale(optimizer)
    assert scale == pytest.approx(expected_noise_scale(dense, 2), rel=1e-4)


@pytest.mark.parametrize("recorded", ["when saving", "when restoring"])
def test_a_checkpoint_is_the_same_whether_telemetry_is_recorded_or_not(tmp_path, recorded):
    weights, gradients = steps.weights_and_gradients(steps=2)

    def stepped(records, grads):
        variables, optimizer = steps.make_variables(weights), lamb_tf.LAMB(0.1)
        if records:
            lamb_tf.telemetry.record(optimizer)
        steps.take_steps(optimizer, variables, grads)
        return optimizer

    old = stepped(recorded == "when saving", gradients)
    path = tf.train.Checkpoint(optimizer=old).save(str(tmp_path / "checkpoint"))
    names = [name for name, _ in tf.train.list_variables(path)]
    new = stepped(recorded == "when restoring", gradients[:1])
    restored = tf.train.Checkpoint(optimizer=new)
    restored.restore(path).assert_consumed().assert_existing_objects_matched()
    steps.assert_equal(steps.values(old.variables), steps.values(new.variables))
    again = restored.save(str(tmp_path / "again"))
    assert [name for name, _ in tf.train.list_variables(again)] == names


def test_c_of_orscale_waits_for_sparse_gradients_of_many_rows_on_two_replicas():
    rng = np.random.default_rng(0)
    x, *gradients = rng.normal(size=(6, 32, 32)).astype("float32")
    both, dense = [], []
    for g, index in zip(gradients, [[3, 3], [3], *[np.arange(32)] * 3]):
        both.append([[sparse(g[: len(index)], index)]] * 2)
        dense.append(np.zeros_like(g))
        np.add.at(dense[-1], index, 2 * g[: len(index)])
    (table,), _ = train_on_replicas(
        lambda: lamb_tf.OrScale(0.01, weight_decay=0.01, adam_paths=None), [0.1 * x], both
    )
    expected = reference.orscale(0.1 * x, dense, 0.01, weight_decay=0.01)
    for local in on_replicas(table):
        np.testing.assert_allclose(local, expected, rtol=1e-3, atol=5e-5)
