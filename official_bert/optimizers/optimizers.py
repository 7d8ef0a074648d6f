"""The optimizers of a run: five by name, every other Keras optimizer by its import path.

`Optimizer` holds the settings; its `make` constructs one. The engines call it once per update with
the final gradient: dense, summed over replicas and micro-batches, without the loss scale.
`lamb_tf`'s optimizers check and clip it themselves; for any other class `in_loop` does.
"""

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from official_bert.optimizers.in_loop import InLoop, in_loop
from official_bert.system import settings
from official_bert.system.settings import setting

if TYPE_CHECKING:
    import keras


def _moved_by_adam(paths: Sequence[str]) -> list[str]:
    """OrScale's `adam_paths`: embeddings and the outputs of heads, if they are trained."""
    found = [p for p in ("embedding", "output_weights") if any(re.search(p, at) for at in paths)]
    return found or ["embedding"]


class Named(NamedTuple):
    """A class, and how the settings of `stages.Optimizer` become its arguments.

    Attributes:
        path: MODULE:CLASS.
        arguments: Arguments that differ from the class's defaults; a function gets the paths of the
            variables that train.
        fields: Arguments set by a field of the settings, if they are not called as the field.
        missing: What to say where the module lacks the class.
    """

    path: str
    arguments: Mapping[str, Any] = {}
    fields: Mapping[str, tuple[str, ...]] = {}
    missing: str = ""


NAMES = {
    "lamb": Named("lamb_tf:LAMB"),
    "adamw": Named("lamb_tf:LAMB", {"exclude_from_layer_adaptation": [""]}),  # matches every path
    "lars": Named(
        "lamb_tf:LARS", {"ratio": "after_momentum"}, {"beta_1": ("momentum",), "beta_2": ()}
    ),
    "orscale": Named(
        "lamb_tf:OrScale", {"adam_paths": _moved_by_adam}, {"epsilon": ("adam_epsilon",)}
    ),
    "muon": Named(
        "keras.optimizers:Muon",
        {"exclude_layers": ["output_weights"]},
        {
            "beta_1": ("adam_beta_1",),
            "beta_2": ("adam_beta_2",),
            "weight_decay": ("weight_decay", "adam_weight_decay"),
        },
        "It needs Keras 3.10 or newer.",
    ),
}
_FIELDS = (  # of the settings, those with the names of arguments
    "beta_1",
    "beta_2",
    "epsilon",
    "weight_decay",
    "exclude_from_weight_decay",
    "exclude_from_layer_adaptation",
    "global_clipnorm",
)
_OF_THE_RUN = {  # arguments of every Keras optimizer that are not the run's to pass on
    "learning_rate": "the stages set the rate",
    "name": "state is saved without it",
    "global_clipnorm": "it has a flag of its own",
    "loss_scale_factor": "the training loop scales the loss (--dtype=fp16)",
    "gradient_accumulation_steps": "it has a flag of its own",
    "shard_state": "--shard_optimizer does this",
    **dict.fromkeys(
        ("use_ema", "ema_momentum", "ema_overwrite_frequency"),
        "averages of the weights are neither evaluated nor exported",
    ),
}


@settings.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer of a run; the defaults are those of the LAMB paper for BERT.

    `"adamw"` is the same update with every trust ratio 1, which is Adam with decoupled decay.
    `"lars"` is the LARS of the LAMB paper: momentum averages, with `beta_1`, and there is no second
    moment, so no `beta_2`. `"muon"` is Keras' class; it and `"orscale"` move embeddings, biases,
    LayerNorms and the outputs of heads by Adam. Any other Keras optimizer is `"MODULE:CLASS"`. The
    fields apply to all of them; one that a class does not take has to keep its default.
    `layer_decay` follows BEiT: the embeddings of a model with L layers have the rate of the head ×
    `layer_decay` to the power L + 1. What `freeze` matches has no gradient and no moments.
    """

    type: str = setting(
        "Optimizer: lamb, adamw, lars, orscale, muon, or any other Keras optimizer as "
        "MODULE:CLASS, such as keras.optimizers:Nadam.",
        "lamb",
    )
    settings: Mapping[str, Any] = setting(
        "Further arguments of the optimizer's class, as JSON: "
        """--optimizer_settings='{"momentum": 0.98}'. They replace its defaults.""",
        default_factory=dict,
        hash=False,
    )
    beta_1: float = setting(
        "Decay rate of the first moment, or LARS' momentum.", 0.9, minimum=0, below=1
    )
    beta_2: float = setting(
        "Decay rate of the second moment; LARS has none.", 0.999, minimum=0, below=1
    )
    epsilon: float = setting(
        "Constant added to the square root of the second moment; with lars, to the norm of the "
        "update.",
        1e-6,
        minimum=0,
    )
    weight_decay: float = setting("Weight decay, without LayerNorms and biases.", 0.01, minimum=0)
    exclude_from_weight_decay: tuple[str, ...] = setting(
        "Regular expressions, found in the paths of variables without weight decay.",
        ("LayerNorm", "bias"),
    )
    exclude_from_layer_adaptation: tuple[str, ...] | None = setting(
        "Regular expressions, found in the paths of variables without a trust ratio, for LAMB and "
        "LARS. None: the variables without decay, as in the authors' BERT code; (): no variable, "
        "as in NVIDIA's.",
        None,
    )
    global_clipnorm: float = setting(
        "Maximum global norm of the gradient; a larger gradient is scaled down. 0: no clipping.",
        1.0,
        minimum=0,
        hint="0 is for no clipping.",
    )
    layer_decay: float = setting(
        "Factor on the learning rate from each layer to the one below, starting with "
        "--learning_rate at the head and pooler and ending with the embeddings. 1: the same rate "
        "for all.",
        1.0,
        above=0,
        maximum=1,
        hint="1 trains all layers at one rate; to leave layers as they are, freeze them.",
    )
    freeze: tuple[str, ...] = setting(
        "Variables that are not trained: comma-separated regular expressions, found in their "
        "paths. The embeddings and the first six layers: --freeze='embeddings/,layer_[0-5]/'.",
        (),
    )

    def __post_init__(self):
        for name in ("freeze", "exclude_from_weight_decay", "exclude_from_layer_adaptation"):
            if isinstance(getattr(self, name), str):
                raise ValueError(
                    f"{name} must be a sequence of regular expressions; got the text "
                    f"{getattr(self, name)!r}. Put it into a tuple."
                )
        object.__setattr__(self, "freeze", tuple(self.freeze))
        if not is_known(self.type):
            raise ValueError(
                f"optimizer_type must be {', '.join(NAMES)} or MODULE:CLASS, such as "
                f"keras.optimizers:Adam; got {self.type!r}."
            )
        object.__setattr__(self, "settings", _as_arguments(self.settings))
        settings.check(self)
        if "" in self.freeze:
            raise ValueError(
                "freeze must contain no empty expression, which would match every path; got ''. "
                "Is there a comma too many?"
            )
        _require_expressions("freeze", self.freeze)
        _require_expressions("exclude_from_weight_decay", self.exclude_from_weight_decay)
        not_adapted = self.exclude_from_layer_adaptation or ()
        _require_expressions("exclude_from_layer_adaptation", not_adapted)

    def differs(self, field: str) -> bool:
        """Whether a field has another value than by default."""
        return getattr(self, field) != type(self).__dataclass_fields__[field].default

    def make(
        self,
        variables: "Sequence[keras.Variable]" = (),
        learning_rate_multipliers: "Sequence[tuple[keras.Variable, float]] | None" = None,
    ) -> "keras.optimizers.Optimizer":
        """The optimizer at rate 0, to be built on `variables`: the loop sets the rate of each step.

        Args:
            variables: Those that train.
            learning_rate_multipliers: Factors on the rate by variable, as of `lamb_tf.LAMB`;
                `training.stage_model` derives them from `layer_decay`.

        Raises:
            ValueError: if there is no such class, it is not a Keras optimizer, or it does not take
                the settings.
        """
        row, cls = NAMES.get(self.type) or Named(self.type), find(self.type)
        cls = cls if has_trust_ratios(cls) else in_loop(cls)
        arguments = _arguments(self, row, cls, [variable.path for variable in variables])
        if learning_rate_multipliers is not None:
            if "learning_rate_multipliers" in self.settings:
                raise ValueError(
                    "layer_decay must be left out with learning_rate_multipliers in "
                    f"optimizer_settings; got {self.layer_decay:g}. Give one of the two."
                )
            arguments["learning_rate_multipliers"] = learning_rate_multipliers
        try:
            optimizer = cls(**arguments)
        except Exception as error:  # of whatever the class does
            raise ValueError(
                f"optimizer_settings must be arguments of {_signature(row, cls)}; got "
                f"{self.settings}: {error}"
            ) from None
        if isinstance(optimizer, InLoop):
            self._require_rate_and_decay(optimizer, arguments)
            optimizer.prepare(self.exclude_from_weight_decay, self.global_clipnorm)
        return optimizer

    def _require_rate_and_decay(self, optimizer, arguments):
        """Refuses a class that ignores the rate of the stages, or decays what is excluded."""
        import keras

        if not isinstance(optimizer._learning_rate, keras.Variable):
            raise ValueError(
                "optimizer_type must be a class that takes its learning_rate, which the stages "
                f"set; got {self.type}, with a schedule of its own. Pass the argument on."
            )
        decays = arguments.get("weight_decay") and optimizer.weight_decay is None
        if decays and self.exclude_from_weight_decay:
            raise ValueError(
                f"exclude_from_weight_decay must be empty with optimizer_type={self.type}, which "
                f"decays all variables by itself; got {self.exclude_from_weight_decay}. Let the "
                "class pass weight_decay on to Keras' Optimizer, or set it to 0."
            )


def _as_arguments(given):
    """The settings of an optimizer, given as a mapping or its JSON, as a plain dictionary."""
    try:
        text = given if isinstance(given, str) else json.dumps(dict(given), allow_nan=False)
        found = settings.strict_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"optimizer_settings must be JSON; got {given!r}: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError(
            f"""optimizer_settings must be a JSON object, such as '{{"beta_2": 0.98}}'; got """
            f"{given!r}."
        )
    return found


def _require_expressions(name, patterns):
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{name} must contain regular expressions; got {pattern!r} ({error})."
            ) from None


def is_known(kind: str) -> bool:
    """Whether this is one of the names, or has the form MODULE:CLASS."""
    return kind in NAMES or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", kind) is not None


def ignores(kind: str, field: str) -> bool:
    """Whether an optimizer has no use for a field of the settings, whatever its value."""
    return kind in NAMES and NAMES[kind].fields.get(field) == ()


def find(kind: str) -> type:
    """The class of a name or an import path.

    Raises:
        ValueError: if it cannot be imported, or is not a Keras optimizer.
    """
    import keras

    row = NAMES.get(kind) or Named(kind)
    module, _, name = row.path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # of whatever the module does
        raise ValueError(
            f"optimizer_type must be a class that can be imported; got {kind!r}: {error}. Install "
            "its package, or add its folder to PYTHONPATH."
        ) from None
    if not (isinstance(found, type) and issubclass(found, keras.optimizers.Optimizer)):
        there = "is no Keras optimizer" if found else f"is not in {module}"
        raise ValueError(
            f"optimizer_type must be a Keras optimizer; got {kind!r}: {name} {there} (Keras "
            f"{keras.__version__}). {row.missing}".rstrip()
        )
    if "inner_optimizer" in _parameters(found):
        raise ValueError(
            f"optimizer_type must not wrap another optimizer; got {kind!r}. Name the inner one: "
            "the training loop scales the loss itself (--dtype=fp16)."
        )
    lacks_step = getattr(found, "update_step", None) is keras.optimizers.Optimizer.update_step
    if lacks_step and not has_trust_ratios(found):
        raise ValueError(
            f"optimizer_type must be a Keras optimizer with an update_step; got {kind!r}, which "
            "lacks it. Define it, or name a class derived from this one."
        )
    return found


def has_trust_ratios(optimizer: "keras.optimizers.Optimizer") -> bool:
    """Whether `lamb_tf.telemetry` can record the optimizer: it is one of lamb_tf's."""
    return hasattr(optimizer, "record_telemetry")


def other_state(optimizer: "keras.optimizers.Optimizer") -> "dict[str, keras.Variable]":
    """State that belongs to no variable, but for the counters that every optimizer has, by name."""
    return optimizer.other_state() if isinstance(optimizer, InLoop) else {}


def follow_weights(optimizer: "keras.optimizers.Optimizer", but: Collection[Any] = ()) -> None:
    """Sets slots that start as copies of the weights, after others were assigned to these.

    Args:
        optimizer: The optimizer, built.
        but: Slots that keep their values.
    """
    for slot, variable in getattr(optimizer, "copies", ()):
        if not any(slot is other for other in but):
            slot.assign(variable)


def _arguments(given, row, cls, paths):
    """The arguments of a class; refuses settings that it does not take."""
    taken = _parameters(cls)
    for name in given.settings:
        if name in _OF_THE_RUN:
            raise ValueError(
                f"optimizer_settings must not contain {name}: {_OF_THE_RUN[name]}; got "
                f"{given.settings[name]!r}. Leave it out."
            )
        if name not in taken:
            raise ValueError(
                f"optimizer_settings must be arguments of {_signature(row, cls)}; got {name!r}. "
                "Correct or remove it."
            )
        _require_kind(name, given.settings[name], row.arguments.get(name, taken[name]))
    if given.differs("layer_decay") and "learning_rate_multipliers" not in taken:
        raise ValueError(
            f"layer_decay must be left out with optimizer_type={given.type}; got "
            f"{given.layer_decay:g}, and it has no learning_rate_multipliers. Use lamb, adamw, "
            "lars or orscale."
        )
    decay, exclusions = "weight_decay", "exclude_from_weight_decay"
    excluded = getattr(given, exclusions)
    if excluded and given.differs(exclusions) and not {decay, exclusions} & taken.keys():
        raise ValueError(
            f"{exclusions} must be left out with optimizer_type={given.type}, which has no "
            f"{decay}; got {excluded}."
        )
    arguments: dict[str, Any] = {"learning_rate": 0.0}
    for field in _FIELDS:
        if field in getattr(cls, "applied", ()):
            continue
        value, named = getattr(given, field), row.fields.get(field, (field,))
        targets = [name for name in named if name in taken]
        twice = [name for name in targets if name in given.settings]
        for name in twice:
            bounds = given.__dataclass_fields__[field].metadata["bounds"]
            number = given.settings[name]
            if isinstance(number, int | float) and (fault := bounds.fault(number)):
                raise ValueError(f"optimizer_settings: {name} {fault}")
        if twice and given.differs(field):
            raise ValueError(
                f"{field} must be given once; got {value!r}, and {twice[0]} in optimizer_settings."
            )
        if given.differs(field) and named and not targets:
            raise ValueError(
                f"{field} must be left out with optimizer_type={given.type}; got {value!r}, and "
                f"it only takes {_signature(row, cls)}."
            )
        value = [*value] if isinstance(value, tuple) else value
        arguments |= dict.fromkeys(
            targets, None if field == "global_clipnorm" and not value else value
        )
    for name, value in row.arguments.items():
        arguments[name] = value(paths) if callable(value) else value
    return arguments | given.settings


def _require_kind(name, value, default):
    """Refuses a value that cannot replace a default which is a number, a truth value or a list."""
    if isinstance(default, list):
        fits, kind = isinstance(value, list | None), "a list"
    elif isinstance(default, bool):
        fits, kind = isinstance(value, bool), "true or false"
    elif isinstance(default, int | float) or name in ("weight_decay", "clipnorm", "clipvalue"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        fits, kind = is_number or (default is None and value is None), "a number"
    else:
        return
    if name in ("clipnorm", "clipvalue") and fits and value is not None:
        fits, kind = value > 0, "above 0"  # Keras does not clip by others
    if not fits:
        raise ValueError(f"optimizer_settings: {name} must be {kind}; got {value!r}. Correct it.")


def _parameters(cls):
    """{argument: default} of a class, and of the classes that it passes keyword arguments on to."""
    found: dict[str, Any] = {}
    for above in cls.__mro__:
        if "__init__" in vars(above):
            _, *own = inspect.signature(above.__init__).parameters.values()
            named = [p for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            if found:  # a class passes on what it has no default for
                named = [p for p in named if p.default is not inspect.Parameter.empty]
            found = {p.name: p.default for p in named} | found
            if all(p.kind != p.VAR_KEYWORD for p in own):
                break
    return found


def _signature(row, cls):
    shown = [
        name if default is inspect.Parameter.empty else f"{name}={default!r}"
        for name, default in _parameters(cls).items()
        if name not in _OF_THE_RUN
    ]
    return f"{row.path}({', '.join(shown)})"
