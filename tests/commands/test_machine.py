"""What the commands that train find out about the machine."""

import pytest

from official_bert.commands import machine


@pytest.mark.parametrize(
    ("flags", "engine", "dtype"),
    [
        ("fma avx2 avx512_bf16", "tensorflow", "bf16"),
        ("amx_bf16 avx512f", "tensorflow", "bf16"),
        ("avx2 avx512f", "tensorflow", "fp32"),
        ("avx512_bf16", "jax", "fp32"),
    ],
)
def test_bfloat16_is_for_processors_that_have_it(tmp_path, flags, engine, dtype):
    processor = tmp_path / "cpuinfo"
    processor.write_text(f"processor\t: 0\nmodel name\t: a model\nflags\t\t: fpu {flags} sse\n\n")
    assert machine.fastest_dtype(engine, str(processor)) == dtype
    assert machine.fastest_dtype(engine, str(tmp_path / "nothing")) == "fp32"
