"""What `gpu.py` measures in its process with PyTorch: the peers.

Functions of a cell, as in `gpu_jax.py`.
"""

import functools
import importlib

import numpy as np
import optimizer_step
import torch
import turns
from gpu_page import ADAMW, PEER, TORCH_LAMB
from torch import nn
from torch.nn import functional

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
        batch = dict(arrays)
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
    import hugging_face
    import transformers

    config = transformers.BertConfig(
        hidden_size=cell["hidden"],
        num_hidden_layers=cell["layers"],
        num_attention_heads=cell["heads"],
        intermediate_size=4 * cell["hidden"],
        hidden_act="gelu_pytorch_tanh",  # our formula, in PyTorch's fused kernel
        attn_implementation="sdpa",
    )
    return transformers.BertForPreTraining(config), hugging_face.inputs(batch)


def _short(cell, batch):
    inputs = {name: torch.from_numpy(x.astype(np.int64)) for name, x in batch.items()}
    inputs["next_sentence_labels"] = inputs["next_sentence_labels"].reshape(-1)
    del inputs["example_weights"]
    return ShortBert(*(cell[name] for name in ("layers", "hidden", "heads", "length"))), inputs


def _repeated(call, cell):
    """A measurement of a turn's calls; the device's work is waited for."""

    def run():
        for _ in range(cell["updates"]):
            call()
        if cell["device"] == "cuda":
            torch.cuda.synchronize()

    return lambda: turns.timed(run, cell["updates"])


SECTIONS = {function.__name__: function for function in (device, optimizer, pretraining)}


# The peer where Hugging Face's library is not installed

gelu = functools.partial(functional.gelu, approximate="tanh")  # the formula of the official code


class ShortBert(nn.Module):
    """BERT with both pre-training heads; calling it gives the loss.

    Like ours, the masked-LM head computes the masked positions alone, and is tied to the word
    embeddings. Dropout 0.1, also on attention; its mask is that of padding.

    Args:
        layers, hidden, heads, length: The sizes; the feed-forward layers are 4 × `hidden` wide.
        vocab_size: Number of word pieces.
    """

    def __init__(self, layers, hidden, heads, length, vocab_size=30522):
        super().__init__()
        self.words = nn.Embedding(vocab_size, hidden)
        self.positions = nn.Parameter(0.02 * torch.randn(length, hidden))
        self.segments = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList([_layer(hidden, heads) for _ in range(layers)])
        self.pooler = nn.Linear(hidden, hidden)
        self.next_sentence = nn.Linear(hidden, 2)
        self.transform = nn.Linear(hidden, hidden)
        self.transform_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.output_bias = nn.Parameter(torch.zeros(vocab_size))
        for table in (self.words, self.segments):
            nn.init.normal_(table.weight, std=0.02)

    def forward(
        self,
        input_ids,  # (B, S)
        input_mask,
        segment_ids,
        masked_lm_positions,  # (B, P)
        masked_lm_ids,
        masked_lm_weights,
        next_sentence_labels,  # (B,)
    ):
        x = self.words(input_ids) + self.positions + self.segments(segment_ids)
        x = self.dropout(self.norm(x))
        padding = input_mask == 0
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        rows = torch.arange(len(x), device=x.device)[:, None]
        masked = self.transform_norm(gelu(self.transform(x[rows, masked_lm_positions])))
        logits = functional.linear(masked, self.words.weight, self.output_bias)  # (B, P, V)
        each = functional.cross_entropy(
            logits.flatten(0, 1).float(), masked_lm_ids.flatten(), reduction="none"
        )
        weights = masked_lm_weights.flatten().float()
        pooled = torch.tanh(self.pooler(x[:, 0]))
        of_pairs = functional.cross_entropy(
            self.next_sentence(pooled).float(), next_sentence_labels
        )
        return (each * weights).sum() / weights.sum() + of_pairs


def _layer(hidden, heads):
    layer = nn.TransformerEncoderLayer(
        hidden, heads, 4 * hidden, 0.1, gelu, layer_norm_eps=1e-12, batch_first=True
    )
    layer.dropout.p = 0.0  # after the activation, where BERT has none
    return layer
