"""What devices can do at their best, from the makers' data sheets."""

# FLOP/s with dense float16 or bfloat16 operands, by a part of the device's name. What JAX calls a
# TPU of one of these kinds is a core of v2 and v3, and a chip of the others.
_PEAKS = {
    "T4": 65e12,
    "V100": 125e12,
    "A100": 312e12,
    "H100": 989e12,
    "H200": 989e12,
    "TPU v2": 22.9e12,
    "TPU v3": 61.6e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}


def peak_flops(name: str) -> float | None:
    """FLOP/s of a device in dense 16-bit products; `None` if it is not known.

    Args:
        name: What its driver calls it, such as "NVIDIA A100-SXM4-40GB" or "TPU v6 lite".
    """
    return next((peak for part, peak in _PEAKS.items() if part in name), None)
