"""State of the optimizers: slots, counters, the choice of variables, and how it is saved.

`_layerwise.py` defines how a step changes it. `_selection.py` finds the variables that an exclusion
names, `_hyperparameters.py` checks the arguments.

Private parts of Keras are used only here and in `_replicas.py`; `PRIVATE_HOOKS` names them.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from lamb_tf import (
    _hyperparameters,
    _master_weights,
    _replicas,
    _selection,
    _slices,
    gradient_noise,
)
from lamb_tf._types import (
    Bounds,
    Exclusions,
    LearningRate,
    Rules,
    SliceRules,
    Variables,
    WeightDecay,
)
from lamb_tf.telemetry import Metrics

PRIVATE_HOOKS = {  # private parts of Keras that are used, and why
    "_iterations": "the variable behind `iterations`, which divides it by the accumulation steps",
    "_learning_rate": "what `learning_rate` was given: assigned where it is the user's variable",
    "_trainable_variables": "the variables that the optimizer was built with",
    "_delete_tracking": "on TensorFlow, so that checkpoints go by the names of the state, and not",
    "_variables": "by the numbers in this list, which other options shift",
    "_trackable_children": "what of it TensorFlow saves, by name",
    "_get_variable_index": "the position of a variable among them, the same on each replica",
    "_check_variables_are_known": "its error for a variable that the optimizer was not built with",
    "_filter_empty_gradients": "its warning and error for variables without gradient",
    "_track_variable": "state wider than its variable; the public methods copy the type",
    "_model_variables_moving_average": "where keras.callbacks.SwapEMAWeights looks for averages",
    "_momentums": "m of keras.optimizers.Lamb",
    "_velocities": "v of keras.optimizers.Lamb",
}

MASTER = "master_"  # begins the key of a master copy in a file


class OptimizerState(_hyperparameters.Configured):
    """An optimizer with the state of LAMB and LARS; a subclass names its slots.

    State and arithmetic are float32, or float64 where any of the variables is (`_precision`).
    """

    slot_names: tuple[str, ...] = ()
    scalar_slots: tuple[str, ...] = ()  # of these, numbers of a variable, or of each slice of it
    is_elementwise = True  # whether u of a part of a tensor follows from that part
    trust_ratio_axes: Any  # pairs, as `_slices.rules` returns them
    _kernel: Any = None  # of `_kernels`, where one computes `moments` and `direction`
    _masters: ClassVar = {}  # of variables of 16 bits, by position; see `_master_weights`

    def __init__(
        self,
        learning_rate: LearningRate,
        weight_decay: WeightDecay,
        exclusions: tuple[Exclusions, Exclusions],
        learning_rate_multipliers: Rules = None,
        trust_ratio_bounds: Bounds = None,
        master_weights: bool = True,
        shard_state: str | None = None,
        trust_ratio_axes: SliceRules = None,
        **kwargs: Any,
    ):
        for other_name, own_name in _hyperparameters.OTHER_NAMES.items():
            if other_name in kwargs:
                raise TypeError(
                    f"`{other_name}` must be spelled `{own_name}` here; got another library's "
                    f"name. Write `{own_name}={kwargs[other_name]!r}`."
                )
        if kwargs.get("use_ema") and "ema_momentum" in kwargs:  # which Keras compares at once
            momentum = _hyperparameters.number(kwargs["ema_momentum"], "ema_momentum")
            kwargs["ema_momentum"] = momentum
        if _selection.is_variable(learning_rate):
            _hyperparameters.keras_variable(learning_rate, "learning_rate")
            if _replicas.is_known(learning_rate):
                _hyperparameters.rate(_replicas.to_numpy(learning_rate), "learning_rate")
            # Keras would wrap a number in its own variable; keep the user's.
            super().__init__(lambda: 0.0, weight_decay, **kwargs)
            self._learning_rate = learning_rate
        else:
            rate = _hyperparameters.rate(learning_rate, "learning_rate")
            super().__init__(rate, weight_decay, **kwargs)
        if _replicas.BACKEND == "tensorflow":
            self._delete_tracking("_variables")
        self.trust_ratio_bounds = trust_ratio_bounds
        self.master_weights = master_weights
        self.shard_state = shard_state
        self.trust_ratio_axes = trust_ratio_axes
        self._set_exclusions(*exclusions)
        self._multipliers = _selection.Multipliers(learning_rate_multipliers)
        self._is_restored = False  # from a config
        self._telemetry: Metrics | None = None
        self._records_telemetry = self._records_noise = False
        self._micro_batches: int | None = None  # of a step on all replicas, if it measures noise
        self._has_stepped = False
        self._is_settled = False

    def stateless_apply(
        self, optimizer_variables: list, grads: list, trainable_variables: list
    ) -> tuple[list, list]:
        """As Keras'; on torch, whose steps write in place, it works on copies of its arguments."""
        if _replicas.BACKEND == "torch":
            optimizer_variables = [x.contiguous().clone() for x in optimizer_variables]
            trainable_variables = [x.clone() for x in trainable_variables]
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    # State: slots, counters, and the choice of variables. All but telemetry is saved.

    def build(self, variables: Iterable[keras.Variable]) -> None:
        """Creates the state, in float32; in float64 where any of the variables is."""
        variables = list(variables)
        if not self.built:
            with _replicas.strategy_of(variables):
                self._build(variables)
            self._is_settled = True

    def _build(self, variables):
        self._check_together()
        _selection.check_types(variables)
        dtypes = {keras.backend.standardize_dtype(variable.dtype) for variable in variables}
        self._precision = "float64" if "float64" in dtypes else "float32"
        # Validate before Keras marks the optimizer as built, so that build() can be retried.
        axes = [self._axes_that_number_slices(variable) for variable in variables]
        if self._records_noise:
            self._require_micro_batches(_replicas.num_replicas(variables))
        masks = self._compute_masks(variables)
        self._factors = self._multipliers.factors(variables, self._is_restored)
        for variable in variables:
            _replicas.layout_of_slot(variable, self.shard_state, self._is_restored)
        self._slice_axes = tuple(axes)
        options = self.gradient_accumulation_steps, self.use_ema
        self.gradient_accumulation_steps, self.use_ema = None, False
        super().build(variables)  # with these options it would add state in the variable's type
        self.gradient_accumulation_steps, self.use_ema = options

        self._choice = self._add_masks(masks)  # TensorFlow's checkpoints have it by this name
        self.skipped_updates = self._add_counter("skipped_updates")
        slots = {name: self._add_slots(variables, name) for name in self.slot_names}
        if self.use_ema:  # not a number: there is no average before the first update
            slots["average"] = self._add_slots(variables, "average", fill=math.nan)
        self._slots = slots  # as a whole: TensorFlow's checkpoints do not see what is added later
        if self.gradient_accumulation_steps:
            self._micro_step = self._add_counter("micro_step")
            self._accumulators = [self._add_slot(v, "accumulator", True) for v in variables]
        if self.master_weights and any(map(_master_weights.needs_master, variables)):
            self._masters = self._add_masters(variables)
        if self._records_telemetry:
            self.record_telemetry()

    @property
    def _model_variables_moving_average(self):
        """The averages that keras.callbacks.SwapEMAWeights swaps with the variables."""
        if not (self.built and self.use_ema):
            raise AttributeError(
                "`use_ema` must be True and the optimizer built to swap averages; got "
                f"{self.use_ema} and {'built' if self.built else 'not built'}. Build an optimizer "
                "with `use_ema=True` first."
            )
        narrow = [v for v in self._trainable_variables if _master_weights.needs_master(v)]
        if narrow and _replicas.BACKEND == "tensorflow":
            raise ValueError(
                "On TensorFlow, variables that keras.callbacks.SwapEMAWeights swaps must be "
                f"{self._precision}, as their averages are; got {_selection.path_of(narrow[0])!r} "
                f"of {narrow[0].dtype}. Use the policy mixed_bfloat16, or call "
                "`optimizer.finalize_variable_values(variables)` at the end, which writes the "
                "averages into the variables."
            )
        for variable, average in zip(self._trainable_variables, self._slots["average"]):
            if average is not None:
                average.assign(self._average_or_value(variable, average))
        return self._slots["average"]

    def _average_or_value(self, variable, average):
        """The average of a variable; before the first update, its value."""
        known, value = _replicas.read(average), ops.cast(_replicas.read(variable), average.dtype)
        return ops.where(ops.isnan(known), value, known)

    def _compute_masks(self, variables):
        """Which variables are decayed, and which adapted: an array of two rows."""
        excluded = [
            _selection.excluded(variables, exclusions, argument, self._is_restored)
            for argument, exclusions in self._exclusions.items()
        ]
        if self._exclusions["exclude_from_layer_adaptation"] is None:
            excluded[1] = excluded[0]
        masks = np.logical_not(excluded)
        masks[:, [_selection.is_overwritten(variable) for variable in variables]] = False
        masks[1] &= np.array([self.adapts(variable) for variable in variables], bool)
        if self.weight_decay != 0 and not self._is_restored:
            exclusions = self._exclusions["exclude_from_weight_decay"]
            _selection.warn_of_norms(variables, masks[0], exclusions)
        matters = masks[1] if self.is_elementwise else [True] * len(variables)
        rules = self.trust_ratio_axes
        _slices.require_effect(rules, variables, matters, self._is_restored)
        return masks

    def _axes_that_number_slices(self, variable):
        """The axes that number the slices of a variable; () where it is not sliced."""
        axes = _slices.axes_of(variable, self.trust_ratio_axes)
        return axes if self.adapts(variable) else ()

    def _slice_counts(self):
        """The number of trust ratios of each variable."""
        pairs = zip(self._trainable_variables, self._slice_axes)
        return [_slices.count(variable.shape, axes) for variable, axes in pairs]

    def _ratio_positions(self, variables):
        """The positions of the trust ratios of these variables among all."""
        counts = self._slice_counts()
        starts = np.cumsum([0, *counts])
        indices = self._indices(variables)
        return [row for i in indices for row in range(starts[i], starts[i] + counts[i])]

    def _add_masks(self, masks):
        """The masks as state, which is saved and restored."""
        return self.add_variable(
            masks.shape,
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(masks, dtype),
            dtype="bool",
            aggregation="only_first_replica",
            name="decayed_and_adapted",
        )

    def _add_counter(self, name):
        return self.add_variable((), dtype="int", aggregation="only_first_replica", name=name)

    def adapts(self, variable: keras.Variable) -> bool:
        """Whether the variable has a trust ratio, where no exclusion names it."""
        return True

    def has_slot(self, variable: keras.Variable, name: str) -> bool:
        """Whether the variable needs this slot."""
        return True

    def _add_slots(self, variables, name, **options):
        """A slot for each variable, None where it has none or is overwritten with its gradient."""
        return [
            self._add_slot(v, name, **options)
            if self.has_slot(v, name) and not _selection.is_overwritten(v)
            else None
            for v in variables
        ]

    def _add_masters(self, variables):
        return {
            str(i): self._add_slot(variable, "master", copies=True)
            for i, variable in enumerate(variables)
            if _master_weights.needs_master(variable)
        }

    def _add_slot(self, variable, name, on_each_replica=False, copies=False, fill=0.0):
        """A variable of the state, filled with one number or with the variable's values.

        While TensorFlow traces, the copy is zeros: XLA's functions cannot make it, and the first
        step does not need it (see `_master_weights.sync_master`).
        """

        def values(shape, dtype):
            return ops.cast(ops.copy(_replicas.read(variable)), dtype)

        can_copy = _replicas.is_eager() or _replicas.THREADS_STATE
        place = _replicas.on(_replicas.device_of(variable))
        is_scalar, axes = name in self.scalar_slots, self._axes_that_number_slices(variable)
        numbers = (_slices.count(variable.shape, axes),) if axes else ()
        layout = _replicas.layout_of_slot(variable, self.shard_state, self._is_restored)
        with place, keras.name_scope(self.name, caller=self):
            slot = keras.Variable(
                values if copies and can_copy else keras.initializers.Constant(fill),
                shape=numbers if is_scalar else tuple(variable.shape),
                dtype=self._precision,
                trainable=False,
                aggregation="sum" if on_each_replica else "none",
                synchronization="on_read" if on_each_replica else "auto",
                layout=None if is_scalar else layout,
                name=f"{_selection.path_of(variable).replace('/', '_')}_{name}",
            )
        self._track_variable(slot)
        return slot

    def record_telemetry(self, retraces: bool = False, noise_scale: bool = False) -> None:
        """Makes each update keep its norms and trust ratios: see `lamb_tf.telemetry.record`.

        After a step this is refused, unless the caller traces the next step again: a traced step
        would ignore it.
        """
        recorded = self._telemetry
        is_new = recorded is None or (noise_scale and recorded.noise is None)
        if self._has_stepped and is_new and not retraces:
            raise ValueError(
                f"Telemetry must be turned on before the first step; got {self.name!r}, which has "
                "made one. Call `telemetry.record` on a new optimizer."
            )
        noise = self._records_noise or noise_scale
        if self.built and is_new and noise:
            self._require_micro_batches(_replicas.num_replicas(self._trainable_variables))
        self._records_telemetry, self._records_noise = True, noise
        if not self.built or not is_new:
            return
        recorded = recorded or Metrics(self)
        if noise:
            recorded.add_noise(self)
        self._telemetry = recorded

    def _require_micro_batches(self, replicas):
        """Sets the number of micro-batches of a step; refuses to measure the noise of a single one.

        Args:
            replicas: Those whose gradients `apply` sums.
        """
        self._micro_batches = replicas * (self.gradient_accumulation_steps or 1)
        remedy = "Set `gradient_accumulation_steps` of the optimizer to 2 or more."
        gradient_noise.require_micro_batches(self._micro_batches, remedy)

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        """Telemetry too, which checkpoints leave out, in a SavedModel: its steps write there."""
        children = super()._trackable_children(save_type, **kwargs)
        if save_type != "savedmodel" or self._telemetry is None:
            return children
        return {**children, **vars(self._telemetry)}

    @property
    def iterations(self) -> keras.Variable:
        """Updates made so far; skipped ones and the micro-steps of accumulation do not count."""
        return self._iterations

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that the optimizer was built with."""
        return list(self._trainable_variables)

    def slots(self, variable: keras.Variable) -> dict[str, keras.Variable]:
        """The state of one variable by name; for LAMB, `{"m": keras.Variable, "v": …}`.

        One of 16 bits has also a "master", unless `master_weights` is False. Raises ValueError for
        a variable that the optimizer was not built with.
        """
        self._check_variables_are_known([variable])
        index = self._get_variable_index(variable)
        names = [name for name in self.slot_names if self.has_slot(variable, name)]
        slots = {name: self._slots[name][index] for name in names}
        if str(index) in self._masters:
            slots["master"] = self._masters[str(index)]
        return slots

    def _state(self, variable):
        """One variable's state in a step: slots, average, master.

        Without a master, a variable of 16 bits has a seed, unique to this step and variable.
        """
        index = self._get_variable_index(variable)
        state = {n: slots[index] for n, slots in self._slots.items() if slots[index] is not None}
        if str(index) in self._masters:
            state["master"] = self._masters[str(index)]
        elif _master_weights.needs_master(variable):
            state["seed"] = ops.stack([ops.cast(self._iterations, "int32"), index])
        return state

    def summary(self, print_fn: Callable[[str], object] = print) -> None:
        """Prints a table of the variables: which are decayed, and which adapted; their factors."""
        if not self.built:
            raise ValueError(
                f"Optimizer {self.name!r} must be built to choose variables. Call "
                "`build(variables)` first."
            )
        decayed, adapted = _replicas.to_numpy(self._choice)
        variables = self._trainable_variables
        counts = self._slice_counts()
        print_fn(_selection.table(variables, decayed, adapted, self._factors, counts))

    def finalize_variable_values(self, var_list: Variables) -> None:
        """At the end of training: with `use_ema`, replaces the variables by their averages."""
        if self.use_ema and self.built:
            for variable in var_list:
                average = self._slots["average"][self._get_variable_index(variable)]
                if average is not None:
                    # A copy: JAX gives both buffers away in the next step, and must not give one
                    # twice.
                    values = self._average_or_value(variable, average)
                    variable.assign(ops.cast(values, variable.dtype))

    def save_own_variables(self, store: MutableMapping) -> None:
        """Writes the state into a `.keras` or `.weights.h5` file."""
        for key, variable in self._saved_variables().items():
            store[key] = _replicas.to_numpy(variable)

    def load_own_variables(self, store: MutableMapping) -> None:
        """Reads the state; warns if its choice of variables is not the constructor's.

        Master copies may be missing, in the file or here: the next step makes those it needs. If
        anything else differs, nothing is read, with a warning.
        """
        variables = self._saved_variables()
        saved = {key: store[key] for key in store.keys()}  # noqa: SIM118, Keras' store has no `in`
        problem = _difference(variables, saved)
        if problem and not self.built:
            problem += (
                "; the optimizer is not built: call `optimizer.build(model.trainable_variables)` "
                "before loading"
            )
        if problem:
            warnings.warn(
                f"The state of optimizer {self.name!r} was not loaded and stays as it is: "
                f"{problem}.",
                stacklevel=2,
            )
            return
        configured = _replicas.to_numpy(self._choice) if self.built else None
        for key in [key for key in variables if key in saved]:
            variables[key].assign(saved[key])
        if self.built and (_replicas.to_numpy(self._choice) != configured).any():
            warnings.warn(
                "The loaded state decays or adapts other variables than the arguments of "
                f"{self.name!r} select; the loaded choice is used. `summary()` shows it; to use "
                "the arguments, train with a new optimizer.",
                stacklevel=2,
            )

    def _saved_variables(self):
        """The state by its keys in a file: numbers, as Keras has them, but for master copies."""
        masters = {MASTER + position: master for position, master in self._masters.items()}
        metrics = vars(self._telemetry).values() if self._telemetry else []
        apart = {id(v) for v in [*metrics, *masters.values()]}
        numbered = [v for v in self.variables if id(v) not in apart]
        return {str(i): variable for i, variable in enumerate(numbered)} | masters

    def _taking_part(self, grads, variables):
        """The gradients there are, and their variables; builds the optimizer on the first call."""
        grads = list(grads)
        if not grads:
            return [], []
        if variables is None and not self.built:
            raise ValueError(
                "`trainable_variables` must be given in the first call of `apply`; got None. Call "
                "`apply(grads, variables)`, or `optimizer.build(variables)` before it."
            )
        variables = list(self._trainable_variables if variables is None else variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"`grads` must have one gradient per variable; got {len(grads)} for "
                f"{len(variables)} variables. Give None for a variable without gradient."
            )
        if not self.built:
            self.build(variables)
        self._check_variables_are_known(variables)
        _replicas.check_scope(variables)
        if len({id(variable) for variable in variables}) < len(variables):
            raise ValueError(
                "`trainable_variables` must name each variable once; got one twice. Give it "
                "once, with the sum of its gradients."
            )
        self._has_stepped = True
        return self._filter_empty_gradients(grads, variables)

    def _indices(self, variables):
        """The positions of the variables among those that the optimizer was built with."""
        return [self._get_variable_index(variable) for variable in variables]


def _difference(variables, saved):
    """Why a saved state does not fit these variables; "" if it does."""
    needed, found = (sum(not key.startswith(MASTER) for key in keys) for keys in (variables, saved))
    if needed != found:
        return f"the file holds {found} of its variables, expected {needed}"
    for key in [key for key in variables if key in saved]:
        shape, there = tuple(variables[key].shape), tuple(saved[key].shape)
        if shape != there:
            name = _selection.path_of(variables[key])
            return f"in the file {name} has shape {there}, expected {shape}"
    return ""


def moments_of_keras_lamb(optimizer: "keras.optimizers.Lamb") -> Iterator[tuple]:
    """(variable, m, v) for each variable that a `keras.optimizers.Lamb` trains."""
    return zip(
        optimizer._trainable_variables, optimizer._momentums, optimizer._velocities, strict=True
    )
