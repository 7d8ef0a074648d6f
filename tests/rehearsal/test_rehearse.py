"""Rehearsals: a small BERT's update, compiled by the real compilers of TPUs and GPUs."""

import contextlib
import dataclasses
import functools
import json
import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

import in_process
import peers
import pytest
import tensorflow as tf

from official_bert import rehearse, stages
from official_bert.model.config import BertConfig
from official_bert.rehearsal import gpu_compiler, programs, tpu_compiler
from official_bert.training import flops

peers.load("jax")
peers.load("libtpu")

ROOT = Path(__file__).parents[2]
SHAPE = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG = BertConfig(512, **SHAPE, intermediate_size=512, max_position_embeddings=64)
LENGTHS = {"max_seq_length": 64, "max_predictions_per_seq": 10}
STAGE = stages.Stage(steps=1_000, batch_size=128, **LENGTHS, learning_rate=1e-3)
RUN = stages.Run(
    config=CONFIG, stages=(STAGE,), optimizer=stages.Optimizer(), input_files=("x",), dtype="bf16"
)


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(CONFIG.to_json())
    return path


@pytest.mark.slow
def test_killed_it_leaves_no_process_that_compiles_on(config_file):
    command = [sys.executable, "-m", "official_bert.rehearse", "--topology=v5e:2x2"]
    command += [f"--bert_config_file={config_file}", "--max_seq_length=64"]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, text=True)
    try:
        child = wait_for(lambda: compiling_child(parent.pid))
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not is_running(child), seconds=2)  # the import alone takes longer


def wait_for(condition, seconds=120):
    """What the condition returns as soon as that is true; fails if it takes too long."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def compiling_child(parent):
    """The process that the parent compiles in, once TensorFlow is in it; None before."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_child = f"PPid:\t{parent}\n" in (process / "status").read_text()
            if is_child and "libtensorflow_framework" in (process / "maps").read_text():
                return int(process.name)
    return None


def is_running(process):
    with contextlib.suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    return False


@pytest.fixture(scope="module")
def lowered():
    """The update of one of 16 replicas, which all slices of 16 cores compile."""
    return tpu_compiler.lower_stage(RUN, STAGE, 16)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v3:2x4", "v4:2x2x2", "v5e:4x4", "v6e:2x2"])
def test_a_small_bert_compiles_for(name, lowered):
    topology = tpu_compiler.Topology(name)
    said = []
    how = {}  # one in processes of its own, as the command does
    if topology.num_cores == 16:
        how = {"compile_stage": lambda *_: tpu_compiler.compile_for(topology, lowered)}
    report = rehearse.rehearse(RUN, topology, 2.0, said.append, **how)
    (stage,) = report["stages"]
    assert report["fits"]
    # All gradients once, and the two sums of weights that normalize the losses.
    assert stage["reduced_bytes"] == flops.reduced_bytes(CONFIG, STAGE) + 8
    assert stage["reductions_in_loops"] == 0
    model_flops = flops.step_flops(CONFIG, STAGE) / topology.num_cores
    # Fewer than the model's, of whose last layer only the rows that the heads read are computed.
    assert 0.3 * model_flops < stage["compiled_flops_a_core"] < model_flops
    assert 0 < stage["memory_bytes"] < topology.chip.memory
    assert 0 < stage["estimated_share_of_peak"] < 1
    seconds = stage["estimated_computing_seconds"] + stage["estimated_reducing_seconds"]
    assert report["estimated_hours"] == pytest.approx(1_000 * seconds / 3600)
    cost = report["estimated_hours"] * topology.num_chips * 2.0
    assert report["estimated_cost"] == pytest.approx(cost)
    assert "estimate" in said[0]


@pytest.mark.slow
def test_the_jax_engine_s_program_compiles_and_sharded_state_takes_less_memory():
    topology = tpu_compiler.Topology("v5e:2x2")
    whole, sharded = (
        rehearse.rehearse(RUN, topology, log=lambda _: None, compile_stage=how)["stages"][0]
        for how in (functools.partial(rehearse.compiled_by_jax, s) for s in (False, True))
    )
    gradients = flops.reduced_bytes(CONFIG, STAGE)
    # All gradients once, the two sums of weights, the task's seven, and the requests to stop.
    assert whole["reduced_bytes"] == gradients + 4 * (2 + 7 + 1)
    assert whole["reductions_in_loops"] == 0
    model_flops = flops.step_flops(CONFIG, STAGE) / topology.num_cores
    assert 0.3 * model_flops < whole["compiled_flops_a_core"] < model_flops
    moments = 2 * gradients
    saved = whole["argument_bytes"] - sharded["argument_bytes"]
    assert 0.9 * moments * 3 / 4 < saved <= moments * 3 / 4
    # Gradients are summed once, if the compiler likes on all cores; weights are gathered once.
    assert gradients < sharded["reduced_bytes"] < 1.6 * gradients


GPU_COMPILER = Path(sys.prefix) / "gpu-compiler"  # where `make install` puts it: see docs/gpu.md


@pytest.fixture
def gpu_compiler_path():
    if not GPU_COMPILER.is_dir() and not os.environ.get("LAMB_TF_ALL_PEERS"):
        pytest.skip(f"JAX's CUDA plug-in is not in {GPU_COMPILER}, where make install puts it")
    return str(GPU_COMPILER)


@pytest.mark.slow
def test_the_jax_engine_s_program_compiles_for_gpus_without_one_or_tensorflow(
    tmp_path, config_file, gpu_compiler_path
):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['tensorflow'] = None")
    command = [
        *(sys.executable, "-m", "official_bert.rehearse", f"--bert_config_file={config_file}"),
        *("--engine=jax", "--topology=h100:2x8", "--host_network_gbits=400", "--dtype=bf16"),
        *("--train_batch_size=256", "--max_seq_length=64", "--max_predictions_per_seq=10"),
        *("--shard_optimizer", "--gradient_accumulation_steps=2"),
        f"--report_file={tmp_path}/report.json",
    ]
    path = os.pathsep.join([str(tmp_path), gpu_compiler_path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("h100:2x8: 16 GPUs of 79.1 GiB.")
    report = json.loads((tmp_path / "report.json").read_text())
    (stage,) = report["stages"]
    # All gradients are scattered once and the weights gathered; a sum in float32 beside that.
    gradients = flops.reduced_bytes(CONFIG, STAGE)
    assert gradients < stage["reduced_bytes"] < 1.01 * gradients
    assert stage["reductions_in_loops"] == 0
    weights, moments = gradients, 2 * gradients / 16
    assert weights + moments < stage["argument_bytes"] < 1.1 * (weights + moments)
    assert stage["memory_bytes"] > stage["argument_bytes"] + gradients
    assert stage["estimated_hours"] is report["estimated_hours"] is None
    at_peak = flops.step_flops(CONFIG, STAGE) * (256 / 128) / 16 / 989e12
    assert stage["computing_seconds_at_peak"] == pytest.approx(at_peak)
    reducing = 2 * 15 / 16 * stage["reduced_bytes"] / (400e9 / 8)
    assert stage["estimated_reducing_seconds"] == pytest.approx(reducing)


STEP = """
import jax, keras, lamb_tf
from lamb_tf.compile_target import compiling_for
from official_bert.rehearsal import gpu_compiler

device = gpu_compiler.Topology("h100:1x1").devices[0]
shapes = [(768, 256), (256,), (256, 768), (768,)] * 4
variables = [keras.Variable("zeros", shape) for shape in shapes]
optimizer = lamb_tf.LAMB(1e-3, weight_decay=0.01)
optimizer.build(variables)

def step(values, state, gradients):
    return optimizer.stateless_apply(state, gradients, values)

def described(variables):
    place = jax.sharding.SingleDeviceSharding(device)
    return [jax.ShapeDtypeStruct(v.shape, v.value.dtype, sharding=place) for v in variables]

with compiling_for("GPU"):
    given = map(described, (variables, optimizer.variables, variables))
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(*given).compile()
print(compiled.as_text().count(" copy("), compiled.memory_analysis().temp_size_in_bytes)
"""


@pytest.mark.slow
def test_a_step_of_lamb_on_a_gpu_overwrites_weights_and_moments_in_place(gpu_compiler_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), gpu_compiler_path])}
    environment |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", STEP], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    copies, temporary_bytes = map(int, done.stdout.split())
    assert copies == 0
    assert temporary_bytes < 10**5  # the norms; the weights have 3 MB


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ("f32[2,3]{1,0}", 24),
        ("(bf16[4]{0}, u8[16]{0}, pred[3]{0})", 27),
        ("s64[]", 8),
        ("f8e4m3fn[5]{0}", 5),
    ],
)
def test_bytes_of_the_types_of_xla(shapes, size):
    assert programs.size_of(shapes) == size


def test_a_program_too_large_is_told_with_the_memory_it_needs():
    topology = tpu_compiler.Topology("v5e:2x2")
    rows = tf.TensorSpec((2**16, 128))

    def needs_32_gib(x, y):
        products = tf.matmul(x, y, transpose_b=True)  # twice 2**16 × 2**16 numbers
        return tf.matmul(products, tf.sort(products), transpose_b=True)[0]

    with pytest.raises(programs.DoesNotFit) as caught:
        tpu_compiler.compile_for(topology, tpu_compiler.lower(needs_32_gib, rows, rows))
    assert 32 * 2**30 <= caught.value.needed < 33 * 2**30
    assert pickle.loads(pickle.dumps(caught.value)).needed == caught.value.needed


@pytest.mark.parametrize(
    ("parts", "needed_gib", "expected"),
    [
        (1, 20, 2),  # 20 GiB with 32 sequences: 10 with 16
        (1, 70, 8),  # 17.5 with 8, 8.75 with 4
        (2, 17, 4),
        (8, None, 16),
        (1, 600, 16),  # more than there is with 2 sequences, by this reckoning: they are tried
        (16, 20, None),
    ],
)
def test_the_next_micro_batch_to_try_is_the_largest_that_ought_to_fit(parts, needed_gib, expected):
    topology = tpu_compiler.Topology("v5e:4x4")
    batches = (32 * topology.num_cores, 48 * topology.num_cores)  # 16 divides both
    run = dataclasses.replace(
        RUN, stages=tuple(dataclasses.replace(STAGE, batch_size=batch) for batch in batches)
    )
    needed = needed_gib and needed_gib * 2**30
    assert rehearse._next_parts(run, 0, topology, parts, needed) == expected


def stages_of_documented_reports(page, reports):
    """(path, report, stage, text of the page) of each rehearsal that it links."""
    text = (ROOT / "docs" / page).read_text()
    for path in sorted((ROOT / "benchmarks" / "results").glob(reports)):
        assert f"](../benchmarks/results/{path.name})" in text
        report = json.loads(path.read_text())
        for stage in report["stages"]:
            assert f"| {stage['steps']:,} of {stage['batch_size']:,} ×" in text
            yield path, report, stage, text


def test_the_figures_of_tpus_are_those_of_the_reports():
    found = list(stages_of_documented_reports("tpu.md", "tpu_rehearsal_*.json"))
    assert len({path for path, *_ in found}) == 7
    for *_, stage, text in found:
        assert f"| {60 * stage['estimated_hours']:.1f} min |" in text
        assert f"| {stage['memory_bytes'] / 2**30:.2f} of " in text


def test_the_figures_of_gpus_are_those_of_the_report():
    found = list(stages_of_documented_reports("gpu.md", "gpu_rehearsal_*.json"))
    assert found
    for _, report, stage, text in found:
        memory = f"{stage['memory_bytes'] / 2**30:.2f} of {report['core_memory_bytes'] / 2**30:.1f}"
        reducing, at_peak = (
            f"{1e3 * stage[name]:.1f}"
            for name in ("estimated_reducing_seconds", "computing_seconds_at_peak")
        )
        assert f"| {memory} | {stage['reductions']}, " in text
        assert f"| {reducing} | {at_peak} |" in text


FOLDER = "--report_file must be in a folder that can be written to; got "


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--topology=v3:31x33", "such as .*; got 'v3:31x33'"),
        ("--topology=v9:2x2", "topology must be generation:chips, like one of v2:.*'v9:2x2'"),
        ("--topology=v3:0x0", "topology must be generation:chips, .*'v3:0x0'"),
        ("--train_batch_size=100", "train_batch_size must be a multiple .*_steps=1.*100"),
        ("--tpu_name=mine", "--tpu_name is called --tpu here"),
        ("--max_seq_length=0", "--max_seq_length must be at least 1; got 0."),
        ("--max_seq_length=1024", "max_seq_length of stage 1 must be at most .*; got 1024"),
        ("--report_file=no/such/folder.json", f"{FOLDER}no/such"),
        ("--report_file=/dev/null/report.json", f"{FOLDER}/dev/null"),
        ("--report_file=.", "report_file must be the path of a file to write; got '.'"),
        ("--topology=h100:1x8", "--engine must be jax for --topology=h100:1x8; got 'tensorflow'."),
        ("--topology=h100:2x8 --engine=jax", "--host_network_gbits is required .*"),
        ("--topology=h200:8 --engine=jax", "topology must be GPU:hostsxGPUs, .*'h200:8'."),
        (
            "--topology=h200:1x8 --engine=jax --train_batch_size=16 --max_seq_length=64",
            "The compiler for GPUs needs JAX's CUDA plug-in, .*pip install jax-cuda13-plugin.*",
        ),
    ],
)
def test_bad_flags_are_refused_in_a_line(flags, message, config_file, capsys, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.setattr(gpu_compiler, "_has_plugin", lambda: False)
    arguments = ["--topology=v3:2x2", f"--bert_config_file={config_file}", *flags.split()]
    assert in_process.call(rehearse, rehearse.Rehearse, arguments) == 2
    assert re.fullmatch(rf"rehearse: error: .*{message}.*\n", capsys.readouterr().err)


def test_an_import_that_fails_is_reported_in_a_line(config_file, capsys, monkeypatch):
    def without_compiler(topology):
        raise ImportError("The TPU compiler needs libtpu, not installed here.")

    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.setattr(rehearse, "compiler_for", without_compiler)
    arguments = ["--topology=v3:2x2", f"--bert_config_file={config_file}"]
    assert in_process.call(rehearse, rehearse.Rehearse, arguments) == 2
    assert "rehearse: error: The TPU compiler needs libtpu" in capsys.readouterr().err
