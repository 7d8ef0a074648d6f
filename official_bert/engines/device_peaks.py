"""What devices can do at their best, from the makers' data sheets."""

import re

# FLOP/s with dense float16 or bfloat16 operands, by the whole of the device's name: an RTX A1000 is
# no A100, an H100 on PCI Express runs slower than one with HBM3, a part of a GPU (MIG) has a part
# of it. What JAX calls a TPU of one of these kinds is a core of v2 and v3, a chip of the others.
_PEAKS = (
    (r"T4", 65e12),
    (r"V100-SXM[23]-(16|32)GB", 125e12),
    (r"V100-PCIE-(16|32)GB", 112e12),
    (r"V100S-PCIE-32GB", 130e12),
    (r"A100-(SXM4|PCIE)-[48]0GB|A100 80GB PCIe", 312e12),
    (r"H100 80GB HBM3|H200", 989e12),
    (r"H100 PCIe", 756e12),
    (r"(H100|H200) NVL", 835e12),
    (r"TPU v2", 22.9e12),
    (r"TPU v3", 61.6e12),
    (r"TPU v4", 275e12),
    (r"TPU v5 lite", 197e12),
    (r"TPU v5p?", 459e12),
    (r"TPU v6 lite", 918e12),
)
_MAKER = re.compile(r"^(NVIDIA|Tesla) ")


def peak_flops(name: str) -> float | None:
    """FLOP/s of a device in dense 16-bit products; `None` if it is not known.

    Args:
        name: What its driver calls it, such as "NVIDIA A100-SXM4-40GB" or "TPU v6 lite".
    """
    name = _MAKER.sub("", name)
    return next((peak for pattern, peak in _PEAKS if re.fullmatch(pattern, name)), None)
