"""The PyTorch process of `gpu.py`: the peers. Functions of a cell, as in `gpu_jax.py`."""

import importlib

import numpy as np
import optimizer_step
import torch
import turns
from gpu_page import ADAMW, PEER, TORCH_LAMB

# Packaged LAMBs: module, class and arguments. timm's clipping by the global norm is turned off; the
# clipping of FusedLAMB and pytorch_optimizer, on by default too, is timed with them.
LAMBS = {
    "apex.optimizers": ("FusedLAMB", {}),
    "torch_optimizer": ("Lamb", {}),
    "pytorch_optimizer": ("Lamb", {}),
    "timm.optim": ("Lamb", {"max_grad_norm": None}),
}
NO_LAMB = f"none is installed (looked for: {', '.join(LAMBS)})"


def device(_):
    """Whether PyTorch sees a GPU."""
    return {"device": lambda: {"gpu": torch.cuda.is_available()}}


def optimizer(cell):
    """Steps of AdamW, and of a LAMB if one is installed, on the tensors of a BERT."""
    shapes = optimizer_step.tensor_shapes(cell["layers"], cell["hidden"])
    ways, left_out, after = {}, {}, {}

    def add(name, make):
        parameters = [_parameter(shape, cell["device"]) for shape in shapes]
        step = make(parameters, lr=1e-3, weight_decay=0.01).step
        ways[name] = _repeated(step, cell)

    add(ADAMW, lambda *arguments, **named: torch.optim.AdamW(*arguments, fused=True, **named))
    found = packaged_lamb()
    if found:
        add(TORCH_LAMB, found[1])
        after[TORCH_LAMB] = {"name": found[0]}
    else:
        left_out[TORCH_LAMB] = NO_LAMB
    return turns.offer(ways, left_out, lambda: after)


def packaged_lamb():
    """Name and maker of the first LAMB for PyTorch that is installed and works, or None."""
    for module, (name, arguments) in LAMBS.items():
        try:
            found = getattr(importlib.import_module(module), name)
            found([torch.nn.Parameter(torch.zeros(1))], lr=1e-3, **arguments)
        except (ImportError, RuntimeError):  # apex may be there without its kernels
            continue
        return f"{module}.{name}", lambda *a, found=found, more=arguments, **b: found(
            *a, **b, **more
        )
    return None


def _parameter(shape, place):
    parameter = torch.nn.Parameter(0.02 * torch.randn(shape, device=place))
    parameter.grad = 1e-3 * torch.randn(shape, device=place)
    return parameter


def pretraining(cell):
    """Forward pass, backward pass and update on our first batch, again and again."""
    try:
        import hugging_face
    except ImportError:
        return turns.offer({}, {PEER: "transformers is not installed"})
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # as JAX multiplies float32 on a GPU
    with np.load(f"{cell['folder']}/batch.npz") as arrays:
        inputs = hugging_face.inputs(arrays)
    model = hugging_face.fast_model(
        "BertForPreTraining",
        hidden_size=cell["hidden"],
        num_hidden_layers=cell["layers"],
        num_attention_heads=cell["heads"],
        intermediate_size=4 * cell["hidden"],
    ).to(cell["device"])
    inputs = {name: values.to(cell["device"]) for name, values in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    on_gpu = cell["device"] == "cuda"
    # Without a GPU nothing is compared, and Inductor would compile C++ for most of a minute.
    compiled = torch.compile(model, backend="inductor" if on_gpu else "eager")

    def update():
        with torch.autocast(cell["device"], torch.bfloat16):
            loss = compiled(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def after():
        return {PEER: {"peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None}}

    return turns.offer({PEER: _repeated(update, cell)}, after=after)


def _repeated(call, cell):
    """Measures a turn's calls, with the wait for the device."""

    def run():
        for _ in range(cell["updates"]):
            call()
        if cell["device"] == "cuda":
            torch.cuda.synchronize()

    return lambda: turns.timed(run, cell["updates"])


SECTIONS = {function.__name__: function for function in (device, optimizer, pretraining)}
