"""A short BERT in PyTorch's own layers: the peer where Hugging Face's library is not installed."""

import functools

import torch
from torch import nn
from torch.nn import functional

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
