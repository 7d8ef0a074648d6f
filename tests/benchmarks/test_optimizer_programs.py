"""Programs of an optimizer step, compiled for a TPU; and the bytes that a program moves."""

import os
import subprocess
import sys
from pathlib import Path

import optimizer_programs
import peers
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """HloModule step

%keep (arg: (f32[100])) -> (f32[100]) {
  %arg = (f32[100]{0}) parameter(0)
  %kept = f32[100]{0} get-tuple-element(%arg), index=0
  ROOT %same = (f32[100]{0}) tuple(%kept)
}

%double (arg.1: (f32[100])) -> (f32[100]) {
  %arg.1 = (f32[100]{0}) parameter(0)
  %given = f32[100]{0} get-tuple-element(%arg.1), index=0
  %sum = f32[100]{0} add(%given, %given)
  ROOT %doubled = (f32[100]{0}) tuple(%sum)
}

ENTRY %main (x: f32[100], on: pred[]) -> (f32[100]) {
  %x = f32[100]{0:T(128)} parameter(0)
  %on = pred[]{:S(6)} parameter(1)
  %start = (f32[100]{0:T(128)S(1)}, f32[100]{0:T(128)}, u32[]{:S(2)}) copy-start(%x)
  %near = f32[100]{0:T(128)S(1)} copy-done(%start)
  %square = f32[100]{0:T(128)} multiply(%near, %near), metadata={op_name="of(%x)"}
  %given.1 = (f32[100]{0:T(128)}) tuple(%square)
  ROOT %end = (f32[100]{0}) conditional(%on, %given.1, %given.1), branch_computations={BRANCHES}
}
""".replace("BRANCHES", "%keep, %double")


def test_an_array_counts_once_and_a_conditional_as_its_dearest_branch():
    instructions, moved = optimizer_programs.traffic(PROGRAM)
    assert instructions == 3  # copy, product, sum
    assert moved == 4 * 100 * (1 + 1 + 2)  # x near, the square, the sum with its argument


@pytest.mark.slow
def test_lamb_s_program_for_a_tpu_moves_at_most_11_numbers_per_parameter():
    peers.load("libtpu")
    peers.load("optax")
    command = [sys.executable, "benchmarks/optimizer_programs.py", "--topologies=v5e:2x2"]
    command += ["--tensors=4", f"--ways=lamb_tf.LAMB;{optimizer_programs.OPTAX}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    lamb, optax = rows[-2:]
    assert lamb[0] == "| lamb_tf.LAMB"
    assert optax[0] == f"| {optimizer_programs.OPTAX}"
    # Three passes: is g finite; x, m, v and g in, m and v out; x, m and v in, x out.
    assert 4 * 7 <= float(lamb[2]) <= 4 * 11
    assert int(lamb[1]) < int(optax[1])
