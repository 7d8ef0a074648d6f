"""Grows a model from stage to stage, and freezes parts of it: MSLT, Gong's doubling, positions.

MSLT (multi-stage layerwise training, arXiv 2011.13635) starts with few encoder layers. Each stage
adds layers on top and trains only them and the output head; the layers below run forward only:
no gradients, no optimizer slots, no part in the all-reduce. A last stage trains everything.
Progressive stacking (Gong et al., ICML 2019) doubles the encoder by a copy of the whole stack, and
all layers train.

The tied output matrix: the masked-LM head scores with the word embeddings. After the first stage
they are frozen, in both of their roles; training them as an output matrix would shift the inputs
of the frozen layers. The head still trains its transform, its LayerNorm and its bias.

Everything here is a function of variable paths and layer numbers; the training loop acts on it.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from official_bert.model.config import BertConfig
    from official_bert.stages import Stage

Value = TypeVar("Value")

GROWTH = ("copy_top", "copy_stack", "fresh")

_LAYER = re.compile(r"^bert/encoder/layer_(\d+)/")
_EMBEDDINGS = "bert/embeddings/"  # the tables and their LayerNorm
POSITIONS = f"{_EMBEDDINGS}position_embeddings"


def sources(old_depth: int, new_depth: int, how: str) -> dict[int, int]:
    """Which layer each new layer is a copy of.

    With k = `new_depth` - `old_depth` new layers, layer i ≥ `old_depth` copies

        copy_top:    layer i - k, so that the current top k layers follow once more, in order
                     (where there are fewer than k, the whole stack follows until k are reached)
        copy_stack:  layer i mod `old_depth`: the whole stack from the bottom up, as in Gong et al.
        fresh:       none; the model's initialiser decides

    Doubling is the same by both copies.

    Returns:
        Dictionary from new layer to the layer it copies; empty for `"fresh"`.

    Raises:
        ValueError: if the encoder would shrink, or `how` is not a rule.

    Example:

    >>> sources(6, 9, "copy_top")
    {6: 3, 7: 4, 8: 5}
    >>> sources(6, 9, "copy_stack")
    {6: 0, 7: 1, 8: 2}
    """
    if how not in GROWTH:
        raise ValueError(f"growth must be one of {', '.join(GROWTH)}; got {how!r}.")
    if not 1 <= old_depth <= new_depth:
        raise ValueError(
            f"depth must be at least that of the stage before, {old_depth}; got {new_depth}."
        )
    new = new_depth - old_depth
    if how == "fresh" or not new:
        return {}
    copied = old_depth if how == "copy_stack" else min(new, old_depth)
    return {old_depth + i: old_depth - copied + i % copied for i in range(new)}


def grow(
    weights: Mapping[str, Value], old_depth: int, new_depth: int, how: str
) -> dict[str, Value]:
    """The weights of an encoder of `new_depth` layers from those of `old_depth`.

    Args:
        weights: Dictionary from variable path to array; an optimizer's slots are copied, too.
        old_depth: Encoder layers that `weights` has.
        new_depth: Encoder layers wanted.
        how: `"copy_top"`, `"copy_stack"` or `"fresh"`; see `sources`.

    Returns:
        `weights` and, under their paths, those of the copied layers; the arrays are shared.

    Raises:
        ValueError: as `sources`.
    """
    grown = dict(weights)
    for new, old in sources(old_depth, new_depth, how).items():
        for path, value in weights.items():
            copied = re.sub(rf"^(optimizer/)?(bert/encoder/layer_){old}/", rf"\1\g<2>{new}/", path)
            if copied != path:
                grown[copied] = value
    return grown


def known_positions(stages: Sequence["Stage"]) -> int:
    """Number of positions that the stages train: those of their longest sequences."""
    lengths = [stage.max_seq_length for stage in stages if stage.train_embeddings]
    return max(lengths, default=0)


def repeat_positions(table: np.ndarray, known: int, length: int) -> np.ndarray:
    """The table of positions for longer sequences, from that of a model that knows short ones.

    Row j ≥ `known` gets row j mod `known` added. A token at a new position then sees its neighbours
    as one at a known position does; what the rows held before keeps the blocks apart. So the model
    does not return to the plateau of word frequencies (`docs/recipes.md`). Beltagy et al. copy
    positions in this way to lengthen RoBERTa's 512 to Longformer's 4,096 (arXiv 2004.05150).

    Args:
        table: One row per position.
        known: Positions that are trained.
        length: Positions of the sequences to come.
    """
    repeated = table.copy()
    repeated[known:length] += table[np.arange(known, length) % known]
    return repeated


def trained(path: str, stage: "Stage") -> bool:
    """Whether the variable at `path` trains in this stage.

    Encoder layers by `stage.trained_layers`, the embeddings (tables and LayerNorm, hence the tied
    output matrix) by `stage.train_embeddings`; pooler and heads always do.
    """
    layer = _LAYER.match(path)
    if layer:
        return stage.trained_layers is None or int(layer[1]) in stage.trained_layers
    return stage.train_embeddings or not path.startswith(_EMBEDDINGS)


def check(config: "BertConfig", stages: Sequence["Stage"]) -> None:
    """Refuses stages that `config`'s encoder cannot go through, before any of them is trained.

    Raises:
        ValueError: if the encoder would shrink, does not end at `config`'s depth, trains layers
            that it does not have, grows by no rule, or has fewer positions than a sequence.
    """
    longest = config.max_position_embeddings
    depth = 1
    for number, stage in enumerate(stages, 1):
        if stage.max_seq_length > longest:
            raise ValueError(
                f"max_seq_length of stage {number} must be at most {longest}, the model's "
                f"max_position_embeddings; got {stage.max_seq_length}. Shorten the records, or "
                "enlarge the position table in bert_config.json."
            )
        before = depth
        depth = config.num_hidden_layers if stage.depth is None else stage.depth
        try:
            sources(before, depth, stage.growth)
        except ValueError as error:
            raise ValueError(f"stage {number}: {error}") from None
        missing = set(stage.trained_layers or ()) - set(range(depth))
        if missing:
            raise ValueError(
                f"trained_layers of stage {number} must be among its encoder layers, 0 to "
                f"{depth - 1}; got {sorted(missing)}."
            )
    if depth != config.num_hidden_layers:
        raise ValueError(
            f"The last stage must have {config.num_hidden_layers} encoder layers, as "
            f"num_hidden_layers in the configuration; got {depth}. Make them equal."
        )


def mslt(
    stages: Sequence["Stage"],
    depths: Sequence[int],
    last_share: float = 0.2,
    growth: str = "copy_top",
    first_share: float | None = None,
) -> tuple["Stage", ...]:
    """The stages of a run by MSLT: the same updates and batches, with layers added on the way.

    The partial stages are cut from the run's first stage and make up all but the last `last_share`
    of the run's updates, in equal parts if not for `first_share`. The rest of the run trains all
    layers.

    A first stage that ends on the plateau of word frequencies (`docs/recipes.md`) freezes
    embeddings and layers that know nothing else. A run of few updates needs a longer one.

    Args:
        stages: Tuple of `Stage`, the run from scratch.
        depths: Encoder layers of the partial stages; BERT-Base: (3, 6, 9, 12), BERT-Large:
            (6, 12, 18, 24).
        last_share: Share of the updates that train everything.
        growth: How new layers start; see `sources`.
        first_share: Share of the updates of the first stage; `None`, that of the other partial
            stages.

    Returns:
        Tuple of `Stage`.

    Raises:
        ValueError: if the depths do not grow, the shares leave a partial stage without updates, or
            the run's first stage is too short.
    """
    *partial, whole = mslt_plan(depths)
    if first_share is None:
        first_share = (1 - last_share) / len(partial)
    others = (1 - last_share - first_share) / max(1, len(partial) - 1)
    total = sum(stage.steps for stage in stages)
    steps = [round(share * total) for share in (first_share, *[others] * (len(partial) - 1))]
    if min(steps) < 1:
        raise ValueError(
            f"first_share and last_share must leave steps for each of the {len(partial)} partial "
            f"stages; got {first_share:g} and {last_share:g} of {total:,} steps, which leaves "
            f"{steps}."
        )
    return _cut(stages, steps, [{**p, "growth": growth} for p in partial], whole)


def doubling(
    stages: Sequence["Stage"], depths: Sequence[int], shares: Sequence[float] = (0.125, 0.175)
) -> tuple["Stage", ...]:
    """The stages of a run by Gong et al.'s progressive stacking: the whole stack is copied.

    All layers train, and the optimizer starts again at each doubling. Their BERT-Base, 3 → 6 → 12
    layers, took 50,000, 70,000 and 280,000 updates (recalled), which gives the shares.

    Args:
        stages: Tuple of `Stage`, the run from scratch.
        depths: Encoder layers of the stages.
        shares: Shares of the run's updates that the stages but the last one take.

    Returns:
        Tuple of `Stage`.

    Raises:
        ValueError: if the first stage is too short.
    """
    total = sum(stage.steps for stage in stages)
    *partial, whole = [{"depth": depth, "growth": "copy_stack"} for depth in depths]
    return _cut(stages, [round(share * total) for share in shares], partial, whole)


def mslt_plan(depths: Sequence[int]) -> tuple[dict[str, object], ...]:
    """The trained layers of each stage of MSLT, for encoders of `depths` layers in turn.

    Args:
        depths: Encoder layers of the partial stages, growing.

    Returns:
        Tuple of dictionaries with the `Stage` fields `depth`, `trained_layers` and
        `train_embeddings`: one for each partial stage, and one for the last, which trains all.

    Raises:
        ValueError: if the depths do not grow.

    Examples:
        >>> [fields["trained_layers"] for fields in mslt_plan((3, 6))]
        [(0, 1, 2), (3, 4, 5), None]
    """
    steps = tuple(itertools.pairwise((0, *depths)))
    if not steps or any(below >= depth for below, depth in steps):
        raise ValueError(f"depths must be positive and increasing for MSLT; got {tuple(depths)}.")
    partial = tuple(
        {
            "depth": depth,
            "trained_layers": tuple(range(below, depth)),
            "train_embeddings": below == 0,
        }
        for below, depth in steps
    )
    return (*partial, {"depth": depths[-1], "trained_layers": None, "train_embeddings": True})


def _cut(stages, steps, partial, whole):
    """Cuts partial stages of `steps` updates from the first stage; the rest is of the whole model.

    Each piece of the first stage has its rate, its decay, and the same share of warm-up; and since
    most trained variables are new, it starts with new moments.
    """
    first, *later = stages
    left = first.steps - sum(steps)
    if left < 1:
        raise ValueError(
            "The partial stages must take fewer steps than the first stage of the run from "
            f"scratch, which is {first.steps}; got {sum(steps)}. Give them smaller shares."
        )
    pieces = [
        dataclasses.replace(
            first,
            steps=count,
            warmup_steps=round(first.warmup_steps * count / first.steps),
            carry_moments=False,
            **model,
        )
        for count, model in zip([*steps, left], [*partial, whole], strict=True)
    ]
    return (*pieces, *(dataclasses.replace(stage, **whole) for stage in later))
