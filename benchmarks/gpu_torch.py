"""What `gpu.py` measures in its process with PyTorch: the peers.

Functions of a cell, as in `gpu_jax.py`.
"""

import importlib

import numpy as np
import optimizer_step
import torch
import turns
from gpu_page import ADAMW, PEER, TORCH_LAMB

# Packaged LAMBs: module, class and arguments. timm's clipping by the global norm is left out; that
# of FusedLAMB and pytorch_optimizer, on by default too, is part of what they are timed with.
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
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # as JAX does products of float32 on a GPU
    with np.load(f"{cell['folder']}/batch.npz") as arrays:
        batch = {name: torch.from_numpy(x.astype(np.int64)) for name, x in arrays.items()}
    del batch["example_weights"]
    batch["next_sentence_labels"] = batch["next_sentence_labels"].reshape(-1)
    model, inputs = {"transformers": _hugging_face, "torch": _short}[cell["peer"]](cell, batch)
    model = model.to(cell["device"]).train()
    inputs = {name: values.to(cell["device"]) for name, values in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    compiled = torch.compile(model)

    def update():
        with torch.autocast(cell["device"], torch.bfloat16):
            output = compiled(**inputs)
        loss = output if torch.is_tensor(output) else output.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def after():
        on_gpu = cell["device"] == "cuda"
        return {PEER: {"peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None}}

    return turns.offer({PEER: _repeated(update, cell)}, after=after)


def _hugging_face(cell, batch):
    import transformers

    config = transformers.BertConfig(
        hidden_size=cell["hidden"],
        num_hidden_layers=cell["layers"],
        num_attention_heads=cell["heads"],
        intermediate_size=4 * cell["hidden"],
        hidden_act="gelu_pytorch_tanh",  # our formula, in PyTorch's fused kernel
        attn_implementation="sdpa",
    )
    labels = torch.full_like(batch["input_ids"], -100)
    rows, columns = torch.nonzero(batch["masked_lm_weights"], as_tuple=True)
    positions = batch["masked_lm_positions"][rows, columns]
    labels[rows, positions] = batch["masked_lm_ids"][rows, columns]
    return transformers.BertForPreTraining(config), {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["input_mask"],
        "token_type_ids": batch["segment_ids"],
        "labels": labels,
        "next_sentence_label": batch["next_sentence_labels"],
    }


def _short(cell, batch):
    import torch_bert

    sizes = (cell[name] for name in ("layers", "hidden", "heads", "length"))
    return torch_bert.ShortBert(*sizes), batch


def _repeated(call, cell):
    """A measurement of a turn's calls; the device's work is waited for."""

    def run():
        for _ in range(cell["updates"]):
            call()
        if cell["device"] == "cuda":
            torch.cuda.synchronize()

    return lambda: turns.timed(run, cell["updates"])


SECTIONS = {function.__name__: function for function in (device, optimizer, pretraining)}
