"""The JAX process of `gpu.py`: our ways, and those of optax and of JAX itself.

Each function takes a cell, a dictionary of sizes, and returns `turns.offer` of its ways.
"""

import functools
import importlib.util
import pathlib
import statistics

import loops
import numpy as np
import optimizer_step
import turns
from gpu_page import (
    BOTH_WAYS,
    COPY,
    CUDNN,
    DROPPING,
    ENCODER,
    FORWARD,
    LAMB,
    LOOP,
    OPTAX,
    XLA,
    many_steps,
)


def device(_):
    """The device that JAX uses."""
    import jax

    found = jax.local_devices()[0]
    return {"device": lambda: {"platform": found.platform, "kind": found.device_kind}}


# The optimizer's step


def optimizer(cell):
    """Steps on the tensors of a BERT, and the copy that gives the bandwidth."""
    import jax
    import jax.numpy as jnp

    shapes = optimizer_step.tensor_shapes(cell["layers"], cell["hidden"])
    keys = jax.random.split(jax.random.key(0), 2 * len(shapes))
    # Two sets in turns: the compiler would compute the squares of a constant one only once
    gradients = [1e-3 * jax.random.normal(k, (2, *s)) for k, s in zip(keys[::2], shapes)]
    weights = [0.02 * jax.random.normal(k, s) for k, s in zip(keys[1::2], shapes)]
    makers, left_out = {LAMB: _lamb, OPTAX: _optax}, {}
    updates, ways = cell["updates"], {}
    for name, maker in makers.items():
        try:
            update, state = maker(weights)
        except ImportError:
            left_out[name] = f"{name.partition('.')[0]} is not installed"
            continue
        ways |= _steps(name, update, ([jnp.copy(x) for x in weights], state), gradients, updates)
    large = jax.random.normal(jax.random.key(1), (cell["copied_bytes"] // 4,))
    negated = jax.jit(jnp.negative)
    ways[COPY] = _repeated(lambda: negated(large), updates)
    return turns.offer(ways, left_out)


def _lamb(weights):
    import keras

    import lamb_tf

    variables = [keras.Variable(value) for value in weights]
    optimizer = lamb_tf.LAMB(1e-3, weight_decay=0.01)
    optimizer.build(variables)

    def update(trained, state, gradients):
        trained, state = optimizer.stateless_apply(state, gradients, trained)
        return list(trained), list(state)

    return update, [variable.value for variable in optimizer.variables]


def _optax(weights):
    import optax

    transformation = optax.lamb(1e-3, weight_decay=0.01)

    def update(trained, state, gradients):
        updates, state = transformation.update(gradients, state, trained)
        return optax.apply_updates(trained, updates), state

    return update, transformation.init(weights)


def _steps(name, update, values, gradients, updates):
    """Two ways: a call per step, and all steps of a turn in one program; both donate."""
    import jax

    def program(trained, state, gradients):
        def one(index, carry):
            return update(*carry, [gradient[index % 2] for gradient in gradients])

        return jax.lax.fori_loop(0, updates, one, (trained, state))

    one, many = (jax.jit(function, donate_argnums=(0, 1)) for function in (update, program))
    last = [gradient[1] for gradient in gradients]
    held = list(values)

    def step():
        held[:] = one(*held, last)
        return held

    def steps():
        held[:] = many(*held, gradients)
        jax.block_until_ready(held)

    return {
        name: _repeated(step, updates),
        many_steps(name, updates): lambda: turns.timed(steps, updates),
    }


# Pre-training


def records(cell):
    """Writes the records of one sequence length, from the text that comes with Python."""
    folder = pathlib.Path(cell["folder"])
    folder.mkdir()
    loops.make_records(folder, cell["length"], cell["predictions"], cell["documents"])
    return {}


def pretraining(cell):
    """The loop of `--engine=jax`; writes its first batch for the peer."""
    import jax

    from official_bert.engines.jax_mesh import JaxMesh
    from official_bert.training.flops import peak_of, step_flops

    sizes = cell["batch_size"], cell["length"], cell["predictions"]
    run = loops.make_run(_config(cell), f"{cell['folder']}/records", *sizes, dtype="bf16")
    (stage,) = run.stages
    given = run.input_files, stage.lengths, stage.batch_size, run.config
    np.savez(f"{cell['folder']}/batch.npz", **run.task.batches(*given, seed=0, shard=(0, 1))[0])
    engine = JaxMesh(devices=jax.local_devices()[:1])
    by_loop = loops.engine_loop(run, engine, cell["updates"])

    def after():
        known = jax.local_devices()[0].memory_stats() or {}  # a CPU has none
        return {
            LOOP: {
                "peak_bytes": known.get("peak_bytes_in_use"),
                "input_wait": statistics.median(by_loop.waits),
                "step_flops": step_flops(run.config, stage),
                "peak_flops": peak_of(engine, run.dtype),
            }
        }

    return turns.offer({LOOP: lambda: turns.timed(by_loop, cell["updates"])}, after=after)


def _config(cell):
    from official_bert.model.config import BertConfig

    return BertConfig(
        hidden_size=cell["hidden"],
        num_hidden_layers=cell["layers"],
        num_attention_heads=cell["heads"],
        intermediate_size=4 * cell["hidden"],
    )


# Attention


def attention(cell):
    """Scores, softmax and mixture, from queries, keys and values (B, S, N, D) to (B, S, N·D)."""
    import jax
    import jax.numpy as jnp

    batch, length, heads = cell["batch_size"], cell["length"], cell["heads"]
    shape = batch, length, heads, cell["hidden"] // heads
    keys = jax.random.split(jax.random.key(0), 5)
    query, key, value = (jax.random.normal(k, shape, "bfloat16") for k in keys[:3])
    upstream = jax.random.normal(keys[3], (batch, length, cell["hidden"]), "bfloat16")
    lengths = jax.random.randint(keys[4], (batch,), length // 2, length + 1)
    seeds = jnp.stack([jnp.arange(batch)] * 2, axis=1)

    def of_jax(implementation):
        def attend(query, key, value):
            mixed = jax.nn.dot_product_attention(
                query, key, value, key_value_seq_lengths=lengths, implementation=implementation
            )
            return jnp.reshape(mixed, (batch, length, -1))

        return attend

    functions = {
        ENCODER: _encoder_attention(cell, lengths, None),
        DROPPING: _encoder_attention(cell, lengths, seeds),
        XLA: of_jax("xla"),
    }
    left_out = {
        f"{name}, dropout 0.1": "this function of JAX has no dropout" for name in (XLA, CUDNN)
    }
    if cell["device"] == "cuda":
        functions[CUDNN] = of_jax("cudnn")
    else:
        left_out[CUDNN] = "cuDNN needs a GPU"
    ways, results = {}, {}
    for name, attend in functions.items():
        forward, both = jax.jit(attend), _forward_and_backward(attend)
        results[name] = functools.partial(both, query, key, value, upstream)
        calls = {FORWARD: functools.partial(forward, query, key, value), BOTH_WAYS: results[name]}
        for direction, call in calls.items():
            ways[f"{name}: {direction}"] = _repeated(call, cell["updates"])

    def after():
        single = [x.astype("float32") for x in (query, key, value, upstream)]
        with jax.default_matmul_precision("highest"):
            exact = jax.block_until_ready(_forward_and_backward(of_jax("xla"))(*single))
        return {
            name: {"differences": _differences(exact, compute)}
            for name, compute in results.items()
            if name != DROPPING
        }

    return turns.offer(ways, left_out, after)


def _encoder_attention(cell, lengths, seeds):
    """The attention of a layer of our encoder, dropped where there are seeds."""
    import jax.numpy as jnp
    import keras

    from official_bert.model.encoder import MASK_BIAS, EncoderLayer
    from official_bert.model.layers import Dropout, LayerFactory

    layer = EncoderLayer(LayerFactory(_config(cell), keras.DTypePolicy("mixed_bfloat16"), 0), 0)
    mask = jnp.arange(cell["length"])[None] < lengths[:, None]
    mask_bias = ((1 - mask) * MASK_BIAS).astype("bfloat16")[:, None, None, :]

    def attend(query, key, value):
        heads_first = [jnp.swapaxes(x, 1, 2) for x in (query, key, value)]  # (B, N, S, D)
        mixed = layer._attend(*heads_first, mask_bias, Dropout(seeds is not None, None, seeds))
        return jnp.reshape(mixed, (cell["batch_size"], cell["length"], -1))

    return attend


def _forward_and_backward(attend):
    """A program that returns the mixtures and the gradients of queries, keys and values."""
    import jax

    def both(query, key, value, upstream):
        mixed, backward = jax.vjp(attend, query, key, value)
        return mixed, *backward(upstream)

    return jax.jit(both)


def _differences(exact, compute):
    """‖computed − exact‖ / ‖exact‖ of the mixtures and of each gradient; None: it cannot run."""
    import jax.numpy as jnp

    try:
        computed = compute()
    except Exception:  # the table has the reason, from its timing
        return None
    pairs = [(x.astype("float32"), y) for x, y in zip(computed, exact, strict=True)]
    return [float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y)) for x, y in pairs]


# Shared


def _repeated(call, count):
    """Measures `count` calls in a row, with the wait for the last result."""
    import jax

    def run():
        for _ in range(count):
            result = call()
        jax.block_until_ready(result)

    return lambda: turns.timed(run, count)


SECTIONS = {
    function.__name__: function for function in (device, optimizer, records, pretraining, attention)
}
ENVIRONMENT = {
    "KERAS_BACKEND": "jax",
    # The other process needs memory of the same device.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    # Without a plug-in for a GPU, JAX would look for a TPU, and log it.
    **({} if importlib.util.find_spec("jax_plugins") else {"JAX_PLATFORMS": "cpu"}),
}
