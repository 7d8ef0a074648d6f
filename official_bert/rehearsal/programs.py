"""Memory, time and communication of a compiled XLA program, per device."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any


class DoesNotFit(Exception):
    """The program needs more memory than a device has: `needed` bytes, or `None` if unknown."""

    def __init__(self, message: str, needed: int | None):
        super().__init__(message, needed)  # both, for pickle
        self.needed = needed

    def __str__(self):
        return self.args[0]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's figures for the program of one device: a core of a TPU, or a GPU.

    Attributes:
        memory: Bytes of device memory: arguments (weights, moments, batch), results not in place of
            an argument, temporaries, and the program.
        argument_bytes: Bytes of the arguments.
        flops: Floating-point operations, with one iteration per loop; `None` if not counted.
        seconds: The compiler's estimate of the time outside loops, without communication,
            asynchronous copies and `unestimated` kernels; `None` without estimates.
        loop_seconds: The same for one iteration of the loops.
        unestimated: Number of kernels without an estimate: gathers, scatters, random bits, sorts.
        reduced_bytes: Bytes of all-reduces. A reduce-scatter or an all-gather counts as half an
            all-reduce.
        reductions: Number of all-reduces, reduce-scatters and all-gathers.
        reductions_in_loops: The number of these inside loops, counted once.
        bytes_accessed: Bytes that all instructions read and write, on-chip memory included, with
            one iteration per loop; `None` if not counted.
        hlo: The text of the program.
    """

    memory: int
    argument_bytes: int
    flops: float | None
    seconds: float | None
    loop_seconds: float | None
    unestimated: int
    reduced_bytes: int
    reductions: int
    reductions_in_loops: int
    bytes_accessed: float | None
    hlo: str = dataclasses.field(repr=False)


def summary(
    memory: Any,
    costs: dict[str, float] | None,
    hlo: str,
    seconds_of: Callable[[str], float | None] | None,
    devices: int,
) -> Compiled:
    """Reads the figures of a compiled program.

    Args:
        memory: XLA's `CompiledMemoryStats`.
        costs: XLA's cost analysis, or `None`.
        hlo: The text of the compiled module.
        seconds_of: Function of an instruction's line in `hlo`: the compiler's time estimate or
            `None`. Itself `None` if the compiler estimates nothing.
        devices: Number of devices that the program runs on.
    """
    seconds, unestimated, reductions = {False: 0.0, True: 0.0}, 0, []
    for line, in_loop in _instructions(hlo):
        estimate = seconds_of(line) if seconds_of else None
        if estimate is not None:
            seconds[in_loop] += estimate
        elif re.search(r" (fusion|rng-bit-generator|gather|scatter|sort)\(", line):
            unestimated += 1
        size = _reduced_bytes(line, devices)
        if size is not None:
            reductions.append((size, in_loop))
    return Compiled(
        memory=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        flops=(costs or {}).get("flops"),
        seconds=seconds[False] if seconds_of else None,
        loop_seconds=seconds[True] if seconds_of else None,
        unestimated=unestimated,
        reduced_bytes=sum(size for size, _ in reductions),
        reductions=len(reductions),
        reductions_in_loops=sum(in_loop for _, in_loop in reductions),
        bytes_accessed=(costs or {}).get("bytes accessed"),
        hlo=hlo,
    )


def _instructions(hlo):
    """Yields (line, whether in a loop) of each instruction, once per call; all branches count."""
    lines, entry = computations(hlo)

    def walk(computation, in_loop):
        for line in lines[computation]:
            yield line, in_loop
            kind, names = called(line)
            for name in names:
                yield from walk(name, in_loop or kind == "while")

    return walk(entry, False)


def computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation by its name; and the entry's name."""
    lines: dict[str, list[str]] = {}
    entry = ""
    for line in hlo.splitlines():
        start = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if start:
            computation = lines[start[2]] = []
            entry = start[2] if start[1] else entry
        elif line.startswith("  "):
            computation.append(line)
    return lines, entry


def called(line: str) -> tuple[str | None, list[str]]:
    """An instruction's kind if it is a loop, call or conditional, with the names of its bodies."""
    kind = re.search(r" (while|call|conditional)\(", line)
    if kind is None:
        return None, []
    body = r"\b(?:body|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
    branches = re.findall(r"\bbranch_computations=\{(.*?)\}", line)
    return kind[1], re.findall(body, line) + re.findall(r"%([\w.\-]+)", "".join(branches))


def _reduced_bytes(line, devices):
    """Bytes of all-reduces that an instruction amounts to; `None` if it is not a reduction."""
    match = re.search(r"= (.*?) (all-reduce|reduce-scatter|all-gather)(-start)?\(", line)
    if match is None:
        return None
    size = size_of(match[1])
    if match[2] == "all-reduce":
        return size
    if match[3]:  # its result is the whole array and one shard
        size = size * devices / (devices + 1)
    elif match[2] == "reduce-scatter":
        size *= devices
    return int(size / 2)


def size_of(shapes: str) -> int:
    """Bytes of "f32[2,3]{1,0}" or of a tuple of such."""
    return sum(
        _bits(kind) * math.prod(int(n) for n in shape.split(",") if n) // 8
        for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    )


def _bits(kind):
    """Bits of a number of an XLA type: s64, bf16, f8e4m3fn, u4."""
    bits = re.match(r"[a-z]+(\d+)", kind)
    return int(bits[1]) if bits else 8  # pred
