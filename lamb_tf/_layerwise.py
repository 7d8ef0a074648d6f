"""What LAMB and LARS share: the state of the optimizer, the order of a step, the trust ratio.

A step goes in this order (`docs/algorithm.md` says why):

    accumulate locally -> sum over replicas -> undo the loss scale -> is every gradient finite?
    -> clip -> per tensor: direction -> trust ratio -> move

`lamb.py` and `lars.py` hold the equations, `_selection.py` finds the variables that an exclusion
names, and `_replicas.py` knows what TensorFlow, JAX and torch do differently.

Private parts of Keras are used in this module alone; `PRIVATE_HOOKS` names them.
"""

import math
import types
import warnings
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from lamb_tf import _hyperparameters, _master_weights, _replicas, _selection

PRIVATE_HOOKS = {  # what of Keras is used though not public, and why
    "_iterations": "the variable behind `iterations`, which divides it by the accumulation steps",
    "_learning_rate": "what `learning_rate` was given: assigned where it is the user's variable",
    "_trainable_variables": "the variables that the optimizer was built with",
    "_delete_tracking": "on TensorFlow, so that checkpoints go by the names of the state, and not",
    "_variables": "by the numbers in this list, which other options shift",
    "_get_variable_index": "the position of a variable among them, the same on each replica",
    "_check_variables_are_known": "its error for a variable that the optimizer was not built with",
    "_filter_empty_gradients": "its warning and error for variables without gradient",
    "_track_variable": "state wider than its variable; the public methods copy the type",
    "_model_variables_moving_average": "where keras.callbacks.SwapEMAWeights looks for averages",
    "_layout": "of a keras.Variable: the slots of a sharded variable are sharded alike",
    "_momentums": "m of keras.optimizers.Lamb",
    "_velocities": "v of keras.optimizers.Lamb",
}
KERAS_OPTIONS = ("ema_momentum", "ema_overwrite_frequency")  # Keras checks them, in its constructor


class LayerwiseOptimizer(keras.optimizers.Optimizer):
    """An optimizer whose step in each tensor is scaled by that tensor's trust ratio, φ(‖x‖)/‖u‖.

    A subclass names its slots and hyperparameters, and says how the gradient moves the slots
    (`moments`) and what u is (`direction`); where its equations differ, also the ratio
    (`trust_ratio`) and the movement along u (`move`). These take and return tensors of one variable
    in the type of the arithmetic, which is float32, or float64 where any of the variables is.
    """

    slot_names = ()
    hyperparameters: ClassVar = {  # what checks each
        "weight_decay": _hyperparameters.decay,
        "weight_norm_bounds": _hyperparameters.bounds,
        "trust_ratio_bounds": _hyperparameters.bounds,
        "master_weights": _hyperparameters.truth,
        "clipnorm": _hyperparameters.positive_or_none,
        "clipvalue": _hyperparameters.positive_or_none,
        "global_clipnorm": _hyperparameters.positive_or_none,
        "loss_scale_factor": _hyperparameters.positive_or_none,
        "gradient_accumulation_steps": _hyperparameters.several_or_none,
        "use_ema": _hyperparameters.truth,
    }
    moves_along_u = True  # whether `move` is the plain x − step u
    scratch = None  # see `_replicas.adam_scratch`
    _masters: ClassVar = {}  # of variables of 16 bits, by position; see `master_weights`

    def __init__(
        self,
        learning_rate,
        weight_decay,
        exclude_from_weight_decay,
        exclude_from_layer_adaptation,
        weight_norm_bounds,
        trust_ratio_bounds,
        master_weights,
        name,
        **kwargs,
    ):
        if "weight_decay_rate" in kwargs:
            raise TypeError(
                "`weight_decay_rate` is the old name of an argument: write "
                f"`weight_decay={kwargs['weight_decay_rate']!r}`."
            )
        if _selection.is_variable(learning_rate):
            if _is_known(learning_rate):
                _hyperparameters.rate(_replicas.to_numpy(learning_rate), "learning_rate")
            super().__init__(_no_learning_rate, weight_decay, name=name, **kwargs)
            self._learning_rate = learning_rate
        else:
            rate = _hyperparameters.rate(learning_rate, "learning_rate")
            super().__init__(rate, weight_decay, name=name, **kwargs)
        if _replicas.BACKEND == "tensorflow":
            self._delete_tracking("_variables")
        self.weight_norm_bounds = weight_norm_bounds
        self.trust_ratio_bounds = trust_ratio_bounds
        self.master_weights = master_weights
        self._set_exclusions(
            exclude_from_weight_decay=exclude_from_weight_decay,
            exclude_from_layer_adaptation=exclude_from_layer_adaptation,
        )
        self._is_restored = False  # from a config
        self._telemetry = None
        self._records_telemetry = False
        self._has_stepped = False
        self._is_settled = False

    def __setattr__(self, name, value):
        """Checks the value of a hyperparameter; refuses what a compiled step would not see."""
        check = self.hyperparameters.get(name)
        if check:
            value = check(value, name)
        settled = vars(self).get("_is_settled")
        if settled and (check or name in KERAS_OPTIONS) and value != getattr(self, name):
            raise AttributeError(
                f"`{name}` is settled when the optimizer is built: a compiled step would not see "
                f"the change. Make a new {type(self).__name__}, with a schedule for a weight decay "
                "that is to change."
            )
        if name in ("exclude_from_weight_decay", "exclude_from_layer_adaptation"):
            raise AttributeError(
                f"`{name}` cannot be assigned: give it to the constructor of {type(self).__name__}."
            )
        if name == "learning_rate" and callable(value) and vars(self).get("_has_stepped"):
            raise AttributeError(
                "`learning_rate` can become a schedule or a callable before the first step only; "
                "a number can be assigned at any time."
            )
        if name == "learning_rate" and not callable(value) and _is_known(value):
            _hyperparameters.rate(value, name)
        super().__setattr__(name, value)

    def _set_exclusions(self, **exclusions):
        for argument, value in exclusions.items():
            _selection.check(value, argument)
        # Of a dictionary Keras would take the variables for the optimizer's own.
        self._exclusions = types.MappingProxyType(exclusions)

    # State: slots, counters, and the choice of variables. All but telemetry is saved.

    def build(self, variables):
        """Creates the state, in float32; in float64 where any of the variables is."""
        variables = list(variables)
        if not self.built:
            with _replicas.strategy_of(variables):
                self._build(variables)

    def _build(self, variables):
        dtypes = {keras.backend.standardize_dtype(variable.dtype) for variable in variables}
        self._precision = "float64" if "float64" in dtypes else "float32"
        options = self.gradient_accumulation_steps, self.use_ema
        self.gradient_accumulation_steps, self.use_ema = None, False
        super().build(variables)  # with these options it would add state in the variable's type
        self.gradient_accumulation_steps, self.use_ema = options

        self._choice = self._add_choice(variables)
        self.skipped_updates = self._add_counter("skipped_updates")
        self._slots = {name: self._add_slots(variables, name) for name in self.slot_names}
        if self.use_ema:
            self._slots["average"] = self._add_slots(variables, "average", copies=True)
        if self.gradient_accumulation_steps:
            self._micro_step = self._add_counter("micro_step")
            self._accumulators = [self._add_slot(v, "accumulator", True) for v in variables]
        if self.master_weights and any(map(_master_weights.are_for, variables)):
            self._masters = self._add_masters(variables)
        if self._records_telemetry:
            self.record_telemetry()
        self._compiled_direction = _replicas.compiled(self._find_direction)
        self._compiled_move = _replicas.compiled(self._move_and_average)
        self._compiled_renew = _replicas.compiled(_master_weights.renew)
        self._is_settled = True

    @property
    def _model_variables_moving_average(self):
        """What keras.callbacks.SwapEMAWeights swaps with the variables."""
        if not (self.built and self.use_ema):
            raise AttributeError("Averages are there once an optimizer with `use_ema` is built.")
        narrow = [v for v in self._trainable_variables if _master_weights.are_for(v)]
        if narrow and _replicas.BACKEND == "tensorflow":
            raise ValueError(
                "On TensorFlow keras.callbacks.SwapEMAWeights cannot swap variables of 16 bits "
                f"with their averages, which are {self._precision}. Received "
                f"{_selection.path_of(narrow[0])!r}. Expected variables of float32, as under the "
                "policy mixed_bfloat16; or call `optimizer.finalize_variable_values(variables)` at "
                "the end, which writes the averages into the variables."
            )
        return self._slots["average"]

    def _add_choice(self, variables):
        """Which variables are decayed, and which adapted: state, and so saved and restored."""
        not_decayed, not_adapted = (
            _selection.excluded(variables, exclusions, argument, self._is_restored)
            for argument, exclusions in self._exclusions.items()
        )
        if self._exclusions["exclude_from_layer_adaptation"] is None:
            not_adapted = not_decayed
        choice = np.logical_not([not_decayed, not_adapted])
        choice[:, [_is_overwritten(variable) for variable in variables]] = False
        return self.add_variable(
            choice.shape,
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(choice, dtype),
            dtype="bool",
            aggregation="only_first_replica",
            name="decayed_and_adapted",
        )

    def _add_counter(self, name):
        return self.add_variable((), dtype="int", aggregation="only_first_replica", name=name)

    def _add_slots(self, variables, name, **options):
        """A slot for each of the variables; None for one that is overwritten with its gradient."""
        return [
            None if _is_overwritten(v) else self._add_slot(v, name, **options) for v in variables
        ]

    def _add_masters(self, variables):
        return {
            str(i): self._add_slot(variable, "master", copies=True)
            for i, variable in enumerate(variables)
            if _master_weights.are_for(variable)
        }

    def _add_slot(self, variable, name, on_each_replica=False, copies=False):
        """A variable of the state: zeros, or a copy of the variable's values.

        While TensorFlow traces, the copy is zeros: XLA's functions cannot make it, and the first
        step does not need it (see `master_weights.renew`, and where averages start).
        """

        def values(shape, dtype):
            return ops.cast(ops.copy(_replicas.read(variable)), dtype)

        place = _replicas.on(_replicas.device_of(variable))
        with place, keras.name_scope(self.name, caller=self):
            slot = keras.Variable(
                values if copies and _replicas.can_copy() else "zeros",
                shape=tuple(variable.shape),
                dtype=self._precision,
                trainable=False,
                aggregation="sum" if on_each_replica else "none",
                synchronization="on_read" if on_each_replica else "auto",
                layout=getattr(variable, "_layout", None),
                name=f"{_selection.path_of(variable).replace('/', '_')}_{name}",
            )
        self._track_variable(slot)
        return slot

    def record_telemetry(self, traces_anew=False):
        """Makes each update keep its norms and trust ratios: see `lamb_tf.telemetry.record`.

        After a step this is of no use, and refused, unless the caller traces the next one anew.
        """
        if self._has_stepped and self._telemetry is None and not traces_anew:
            raise ValueError(
                f"Optimizer {self.name!r} has made a step; telemetry has to be asked for before."
            )
        self._records_telemetry = True
        if self.built and self._telemetry is None:
            # A namespace, into which TensorFlow's checkpoints do not look.
            self._telemetry = types.SimpleNamespace(
                gradient_norm=self._add_figures((), "gradient_norm"),
                layers=self._add_figures((len(self._trainable_variables), 3), "layers"),
            )

    def _add_figures(self, shape, name):
        with keras.name_scope(self.name, caller=self):
            figures = keras.Variable(
                "zeros",
                shape=shape,
                dtype="float32",
                trainable=False,
                aggregation="only_first_replica",
                name=name,
            )
        if _replicas.THREADS_STATE:
            self._track_variable(figures)
        return figures

    @property
    def iterations(self):
        """Updates made so far; skipped ones and the micro-steps of accumulation do not count."""
        return self._iterations

    @property
    def trainable_variables(self):
        """The variables that the optimizer was built with."""
        return list(self._trainable_variables)

    def slots(self, variable):
        """The state of one variable by name; for LAMB, `{"m": keras.Variable, "v": …}`.

        One of 16 bits has also a "master", unless `master_weights` is False. Raises ValueError for
        a variable that the optimizer was not built with.
        """
        self._check_variables_are_known([variable])
        index = self._get_variable_index(variable)
        slots = {name: self._slots[name][index] for name in self.slot_names}
        if str(index) in self._masters:
            slots["master"] = self._masters[str(index)]
        return slots

    def _state(self, variable):
        """What a step of one variable works on: its slots, its average, its scratch, its master.

        Without a master, a variable of 16 bits has a seed: no other step or variable has the same.
        """
        index = self._get_variable_index(variable)
        state = {name: slots[index] for name, slots in self._slots.items()}
        if self.scratch and not _replicas.fuses():
            state["scratch"] = self.scratch.of_variable[index]
        if str(index) in self._masters:
            state["master"] = self._masters[str(index)]
        elif _master_weights.are_for(variable):
            state["seed"] = ops.stack([ops.cast(self._iterations, "int32"), index])
        return state

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Excludes variables and patterns, as the method of every Keras optimizer of this name.

        It takes the place of the argument of the same name, and has to come before the first step.
        """
        if self.built:
            raise ValueError(
                "The choice of variables is settled when the optimizer is built. Give "
                "`exclude_from_weight_decay` to the constructor, or call this before."
            )
        exclusions = [*(var_list or []), *(var_names or [])]
        self._set_exclusions(**{**self._exclusions, "exclude_from_weight_decay": exclusions})

    def summary(self, print_fn=print):
        """Prints a table of the variables: which are decayed, and which adapted."""
        if not self.built:
            raise ValueError("The choice of variables is known once `build(variables)` was called.")
        print_fn(_selection.table(self._trainable_variables, *_replicas.to_numpy(self._choice)))

    def finalize_variable_values(self, var_list):
        """At the end of training: with `use_ema`, replaces the variables by their averages."""
        if self.use_ema and self.built:
            for variable in var_list:
                average = self._slots["average"][self._get_variable_index(variable)]
                if average is not None:
                    # A copy: JAX gives both buffers away in the next step, and must not give one
                    # twice. Before an update there is no average, and what was loaded stays.
                    values = _replicas.read(average), _replicas.read(variable)
                    values = ops.where(ops.greater(self._iterations, 0), *values)
                    variable.assign(ops.cast(values, variable.dtype))

    def save_own_variables(self, store):
        """Writes the state into a `.keras` or `.weights.h5` file."""
        for key, variable in self._saved_variables().items():
            store[key] = _replicas.to_numpy(variable)

    def load_own_variables(self, store):
        """Reads the state; a choice of variables that is not that of the constructor is told.

        Master copies may be missing, in the file or here: the next step makes what it needs of
        them. If anything else is another, nothing is read, with a warning.
        """
        variables = self._saved_variables()
        saved = {key: store[key] for key in store.keys()}  # noqa: SIM118, Keras' store has no `in`
        difference = _difference(variables, saved)
        if difference:
            warnings.warn(
                f"The state of optimizer {self.name!r} was not loaded: {difference}.", stacklevel=2
            )
            return
        configured = _replicas.to_numpy(self._choice) if self.built else None
        for key in [key for key in variables if key in saved]:
            variables[key].assign(saved[key])
        if self.built and (_replicas.to_numpy(self._choice) != configured).any():
            warnings.warn(
                "The loaded state decays or adapts other variables than the arguments of "
                f"{self.name!r} say; the loaded choice holds. `summary()` shows it.",
                stacklevel=2,
            )

    def _saved_variables(self):
        """The state by its keys in a file: numbers, as Keras has them, but for master copies."""
        masters = {_MASTER + position: master for position, master in self._masters.items()}
        telemetry = vars(self._telemetry).values() if self._telemetry else []
        apart = {id(v) for v in [*telemetry, *masters.values()]}
        numbered = [v for v in self.variables if id(v) not in apart]
        return {str(i): variable for i, variable in enumerate(numbered)} | masters

    def get_config(self):
        """The arguments, in terms that can be saved: see `selection` for the exclusions."""
        config = super().get_config()
        for name in self.hyperparameters:
            value = getattr(self, name)
            config[name] = keras.saving.serialize_keras_object(value) if callable(value) else value
        for argument, exclusions in self._exclusions.items():
            variables = self._trainable_variables if self.built else None
            config[argument] = _selection.to_be_saved(exclusions, variables)
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The optimizer that `get_config` described.

        Exclusions that name none of the variables it is built with are a warning then, no error:
        what they named when they were saved may be frozen.
        """
        config = dict(config)
        for argument in ("learning_rate", "weight_decay"):
            if isinstance(config.get(argument), dict):
                config[argument] = keras.saving.deserialize_keras_object(
                    config[argument], custom_objects=custom_objects
                )
        for argument in ("exclude_from_weight_decay", "exclude_from_layer_adaptation"):
            if argument in config:
                config[argument] = _selection.restored(config[argument], argument, custom_objects)
        optimizer = cls(**config)
        optimizer._is_restored = True
        return optimizer

    # A step.

    @_replicas.not_converted
    def apply(self, grads, trainable_variables=None, skip_gradients_aggregation=False):
        """Updates the variables, in the order that the module states.

        Args:
            grads: one gradient a variable: dense, `tf.IndexedSlices`, or None for a variable that
                takes no part. In `strategy.run` each replica gives its own; their sum is applied.
            trainable_variables: the variables; may be left out once the optimizer is built.
            skip_gradients_aggregation: for gradients that the caller has summed over all replicas
                and workers himself (so that they are equal on all): the sum is left out.
        """
        grads, variables = self._taking_part(grads, trainable_variables)
        if not grads:
            return
        with _replicas.no_autograd(), keras.name_scope(self.name, caller=self):
            grads = _replicas.widen(grads, variables, self._precision)
            if self.gradient_accumulation_steps:
                grads = self._accumulate(grads, variables)
            grads = [
                _replicas.in_own_row(g) if _is_overwritten(v) else g
                for g, v in zip(grads, variables)
            ]
            _replicas.merge_replicas(
                lambda merged: self._step(merged, variables, not skip_gradients_aggregation), grads
            )

    def _taking_part(self, grads, variables):
        """The gradients there are, and their variables; builds the optimizer on the first call."""
        grads = list(grads)
        if not grads:
            return [], []
        if variables is None and not self.built:
            raise ValueError(
                "The first call of `apply` needs the variables: `apply(grads, variables)`, or "
                "`optimizer.build(variables)` before it."
            )
        variables = list(self._trainable_variables if variables is None else variables)
        if len(grads) != len(variables):
            raise ValueError(f"Received {len(grads)} gradients for {len(variables)} variables.")
        if not self.built:
            self.build(variables)
        self._check_variables_are_known(variables)
        self._has_stepped = True
        return self._filter_empty_gradients(grads, variables)

    def _accumulate(self, grads, variables):
        """Adds to each replica's own running sums; returns the sums.

        Of what overwrites its variable this is the largest, as in Keras.
        """
        sums = []
        for gradient, variable in zip(grads, variables):
            accumulator = self._accumulators[self._get_variable_index(variable)]
            add = _replicas.raise_locally if _is_overwritten(variable) else _replicas.add_locally
            sums.append(add(accumulator, _replicas.dense(gradient, variable)))
        return sums

    def _step(self, grads, variables, aggregate):
        """One call of `apply`, for all replicas: an update, unless more micro-steps are to come."""
        if not self.gradient_accumulation_steps:
            self._update(grads, variables, aggregate)
            return

        def update_and_start_again():
            self._update(grads, variables, aggregate)
            self._micro_step.assign(0)
            for accumulator in self._accumulators:
                _replicas.set_zero(accumulator)

        _replicas.run_if(
            ops.equal(self._micro_step, self.gradient_accumulation_steps - 1),
            update_and_start_again,
            lambda: self._micro_step.assign_add(1),
            state=self.variables + variables,
        )

    def _update(self, grads, variables, aggregate):
        """Sum over replicas, finite check, clipping; then every tensor, or none."""
        if aggregate:
            grads = _replicas.sum_over_replicas(grads, variables)
        (grads, variables), overwriting = _apart(grads, variables)
        grads = [_replicas.densify(g, v) for g, v in zip(grads, variables)]
        # One pass over the gradients tells both whether all of them are finite and how to clip.
        parts, squares = _replicas.by_device(grads, variables), []
        for device, grads, _ in parts:
            with _replicas.on(device):
                local = [_replicas.first_replica(g) for g in grads]
                squares.append(_replicas.sums_of_squares(local, self._precision))
        squares = ops.concatenate(squares) if squares else ops.zeros((0,), self._precision)
        gradient_norm, scales = self._gradient_scales(squares)
        if self._telemetry:
            self._telemetry.gradient_norm.assign(gradient_norm)
        finite = ops.isfinite(gradient_norm)
        for rows, _ in overwriting:
            finite &= ops.all(ops.isfinite(_replicas.first_replica(rows)))
        self.skipped_updates.assign_add(ops.cast(ops.logical_not(finite), "int32"))
        if not _replicas.is_eager():
            self._update_tensors(parts, scales, overwriting, finite)
        elif finite:
            self._update_tensors(parts, scales, overwriting, finite=None)

    def _gradient_scales(self, squares):
        """The norm of the true gradient, and per tensor the factor that unscales and clips it.

        A factor of None is 1, and saves a pass over the gradient.
        """
        loss_scale = 1.0 if self.loss_scale_factor is None else self.loss_scale_factor
        factor = 1.0 / (loss_scale * (self.gradient_accumulation_steps or 1))
        gradient_norm = ops.sqrt(ops.sum(squares)) * factor
        scales = ops.ones_like(squares) * factor
        if self.global_clipnorm:
            limit = self.global_clipnorm
            scales *= ops.where(gradient_norm > limit, limit / gradient_norm, 1.0)
        elif self.clipnorm:
            limit, norms = self.clipnorm, ops.sqrt(squares) * factor
            scales *= ops.where(norms > limit, limit / norms, 1.0)
        elif isinstance(factor, float) and factor == 1.0:
            return gradient_norm, [None] * squares.shape[0]
        return gradient_norm, ops.unstack(scales)

    def _update_tensors(self, parts, scales, overwriting, finite):
        """The update of all tensors; of none if `finite` is a tensor that is false."""
        step = self._scalar(self._iterations) + 1.0
        decay = self.weight_decay
        decay = self._scalar(decay(self._iterations) if callable(decay) else decay)
        scalars = {
            "finite": finite,
            "step": step,
            "learning_rate": self._scalar(self.learning_rate),
            "coefficients": self.coefficients(step, finite),
        }
        variables, figures = [], []
        for device, grads, on_device in parts:
            chosen = ops.take(_replicas.read(self._choice), self._indices(on_device), axis=1)
            decayed, adapted = ops.unstack(chosen)
            with _replicas.on(device):
                figures.append(
                    _replicas.update_on_replicas(
                        self._update_replica,
                        on_device,
                        [self._state(variable) for variable in on_device],
                        grads,
                        scales[len(variables) : len(variables) + len(on_device)],
                        ops.where(decayed, decay, 0.0),
                        adapted,
                        scalars,
                    )
                )
            variables += on_device
        for rows, variable in overwriting:
            _replicas.update_on_replicas(_overwrite, [variable], [rows], finite)
        self._constrain(variables, finite)
        if self.use_ema:
            self._start_averages_of_idle(variables, step, finite)
        if self._telemetry and figures:
            self._keep_figures(figures, variables, finite)
        self._iterations.assign_add(1 if finite is None else ops.cast(finite, "int32"))

    def _constrain(self, variables, finite):
        """Applies the constraints of the variables, to their master copies where they have some."""
        for variable in variables:
            if variable.constraint is not None:
                weights = self.slots(variable).get("master", variable)
                constrained = variable.constraint(weights)
                weights.assign(_kept(finite, constrained, _replicas.read(weights)))
                if weights is not variable:
                    variable.assign(ops.cast(weights, variable.dtype))

    def _keep_figures(self, figures, variables, finite):
        """Writes what telemetry keeps of these variables, and zeros for those without gradient."""
        rows = ops.expand_dims(ops.convert_to_tensor(self._indices(variables)), 1)
        layers = self._telemetry.layers
        figures = ops.cast(ops.concatenate(figures), "float32")
        all_figures = ops.scatter_update(ops.zeros(layers.shape, "float32"), rows, figures)
        layers.assign(_kept(finite, all_figures, _replicas.read(layers)))

    def _start_averages_of_idle(self, variables, step, finite):
        """In the first update, for variables without gradient, assigned since they were built."""
        taking_part = self._indices(variables)
        pairs = [
            (self._slots["average"][i], variable)
            for i, variable in enumerate(self._trainable_variables)
            if i not in taking_part and not _is_overwritten(variable)
        ]
        if pairs:
            is_first = ops.equal(step, 1)
            _replicas.run_if(
                is_first if finite is None else ops.logical_and(is_first, finite),
                lambda: [average.assign(_replicas.read(variable)) for average, variable in pairs],
                lambda: None,
                state=[average for average, _ in pairs],
            )

    def _scalar(self, value):
        """A number, variable or tensor in the type of the arithmetic."""
        if hasattr(value, "dtype"):
            return ops.cast(value, self._precision)
        return ops.convert_to_tensor(value, self._precision)

    def _clip(self, x, bounds):
        return ops.clip(x, *map(self._scalar, bounds))

    def _indices(self, variables):
        return [self._get_variable_index(variable) for variable in variables]

    def _update_replica(self, variables, states, grads, scales, decays, adapted, scalars):
        """x ← x − η ratio u for all tensors, on one replica; returns what telemetry keeps."""
        weights = [state.get("master", variable) for variable, state in zip(variables, states)]
        grads = _replicas.zero_unless(scalars["finite"], grads, variables)
        decay_of, done, figures = _replicas.elements(decays), [], []
        for group in _groups(variables):
            part = slice(group.start, group.stop)
            # Later groups wait: the directions of a few groups are in memory at once, not all.
            with _replicas.after(done[-2:-1]):
                for i in group:
                    if "master" in states[i]:
                        self._compiled_renew(weights[i], variables[i])
                xs = [_replicas.read(weights[i]) for i in group]
                us = [
                    self.find_direction(
                        x,
                        states[i],
                        grads[i],
                        {**scalars, "gradient_scale": scales[i], "decay": decay_of[i]},
                    )
                    for i, x in zip(group, xs)
                ]
            weight_norms = ops.sqrt(_replicas.sums_of_squares(xs, self._precision))
            update_norms = ops.sqrt(_replicas.sums_of_squares(us, self._precision))
            ratios = self.trust_ratio(weight_norms, update_norms, decays[part])
            ratios = ops.where(adapted[part], ratios, 1.0)
            # A product with a rate of 0 would not do: a ratio may be infinite.
            step_sizes = _kept(scalars["finite"], scalars["learning_rate"] * ratios, 0.0)
            for i, u, step_size in zip(group, us, _replicas.elements(step_sizes)):
                noise = None
                if "seed" in states[i]:
                    with _replicas.after([step_size]):
                        noise = _replicas.uniform(u.shape, states[i]["seed"])
                moved = {**scalars, "noise": noise}
                self._move(weights[i], states[i], u, step_size, decay_of[i], moved)
                if "master" in states[i]:
                    self.assign(variables[i], _replicas.read(weights[i]))
            figures.append(ops.stack([weight_norms, update_norms, ratios], axis=1))
            done.append(step_sizes)
        return ops.concatenate(figures)

    def find_direction(self, x, slots, g, scalars):
        """The direction u of one tensor; moves its slots."""
        return self._compiled_direction(x, slots, g, scalars)

    def _find_direction(self, x, slots, g, scalars):
        g = self.scaled(g, scalars)
        x = ops.cast(x, self._precision)
        old = {name: _replicas.read(slot) for name, slot in slots.items()}
        moments = self.moments(x, g, old, scalars["decay"])
        moments = {n: _kept(scalars["finite"], value, old[n]) for n, value in moments.items()}
        u = self.direction(x, g, {**old, **moments}, scalars["decay"], scalars["coefficients"])
        for name, value in moments.items():
            self.assign(slots[name], value)
        return u

    def scaled(self, g, scalars):
        """The gradient that the equations see: unscaled and clipped."""
        if scalars["gradient_scale"] is not None:
            g = g * scalars["gradient_scale"]
        return self._clip(g, (-self.clipvalue, self.clipvalue)) if self.clipvalue else g

    def _move(self, x, slots, u, step_size, decay, scalars):
        """Moves one tensor along u."""
        plain = self.moves_along_u and not self.use_ema and scalars["noise"] is None
        if plain and not _replicas.fuses():
            _replicas.subtract(x, step_size, u)
        else:
            self._compiled_move(x, slots, u, step_size, decay, scalars)

    def _move_and_average(self, x, slots, u, step_size, decay, scalars):
        finite, step = scalars["finite"], scalars["step"]
        old_x = ops.cast(x, self._precision)
        old = {name: _replicas.read(slot) for name, slot in slots.items()}
        new_x, moved = self.move(old_x, u, old, step_size, decay)
        if self.use_ema:
            momentum = ops.where(step > 1, self._scalar(self.ema_momentum), 0.0)
            moved["average"] = momentum * old["average"] + (1 - momentum) * new_x
            if self.ema_overwrite_frequency:
                due = ops.equal(ops.mod(step, self.ema_overwrite_frequency), 0)
                new_x = ops.where(due, moved["average"], new_x)
        for name, value in moved.items():
            self.assign(slots[name], _kept(finite, value, old[name]))
        if scalars["noise"] is not None:
            dtype = keras.backend.standardize_dtype(x.dtype)
            new_x = _master_weights.round_stochastically(new_x, dtype, scalars["noise"])
        self.assign(x, _kept(finite, new_x, _replicas.read(x)))

    # The equations; `lamb.py` and `lars.py` fill them in.

    def coefficients(self, step, finite):
        """Scalars that `direction` needs and that all tensors share. The first step is 1."""
        return {}

    def moments(self, x, g, slots, decay):
        """The slots that g moves, before the direction is known."""
        return {}

    def direction(self, x, g, slots, decay, coefficients):
        """The direction u, from the moved slots."""
        raise NotImplementedError

    def trust_ratio(self, weight_norm, update_norm, decay):
        """φ(‖x‖)/‖u‖, and 1 where either is 0."""
        return self.bounded_ratio(weight_norm, update_norm)

    def bounded_ratio(self, weight_norm, denominator, factor=1.0):
        """factor φ(‖x‖) / denominator within the bounds, and 1 where it would be 0 or ∞."""
        if self.weight_norm_bounds:
            weight_norm = self._clip(weight_norm, self.weight_norm_bounds)
        neither_is_0 = ops.minimum(weight_norm, denominator) > 0
        ratio = weight_norm / denominator
        ratio = ops.where(neither_is_0, ratio if factor == 1.0 else factor * ratio, 1.0)
        if self.trust_ratio_bounds:
            ratio = self._clip(ratio, self.trust_ratio_bounds)
        return ratio

    def move(self, x, u, slots, step_size, decay):
        """x − step_size u, and the slots that moved."""
        return x - step_size * u, {}


_MASTER = "master_"  # begins the key of a master copy in a file


def _difference(variables, saved):
    """What keeps a saved state from being read into these variables; "" if nothing does."""
    needed, found = (
        [key for key in keys if not key.startswith(_MASTER)] for keys in (variables, saved)
    )
    if len(needed) != len(found):
        return f"the file holds {len(found)} of its variables, where {len(needed)} are needed"
    for key in [key for key in variables if key in saved]:
        shape, there = tuple(variables[key].shape), tuple(saved[key].shape)
        if shape != there:
            name = _selection.path_of(variables[key])
            return f"in the file {name} has shape {there}, where {shape} is needed"
    return ""


def moments_of_keras_lamb(optimizer):
    """(variable, m, v) for each variable that a `keras.optimizers.Lamb` trains."""
    return zip(
        optimizer._trainable_variables, optimizer._momentums, optimizer._velocities, strict=True
    )


def _is_known(value):
    """Whether this is a number, or a tensor or variable whose value can be read now."""
    is_tensor = ops.is_tensor(value) or _selection.is_variable(value)
    return not is_tensor or _replicas.is_known(value)


def _no_learning_rate():
    """Stands in until the user's variable takes its place: Keras would make one for a number."""
    return 0.0


def _is_overwritten(variable):
    """Whether a step writes the gradient into the variable, as float8 training has its scales."""
    return getattr(variable, "overwrite_with_gradient", False)


def _apart(grads, variables):
    """(gradients, variables) of those that are trained; (gradient, variable) of the overwritten."""
    pairs = list(zip(grads, variables))
    trained = [(g, v) for g, v in pairs if not _is_overwritten(v)]
    return ([g for g, _ in trained], [v for _, v in trained]), [
        (g, v) for g, v in pairs if _is_overwritten(v)
    ]


def _overwrite(variables, rows, finite):
    """Writes into each variable the largest of its rows, one from each replica."""
    for variable, values in zip(variables, rows):
        new = ops.cast(ops.max(values, axis=0), variable.dtype)
        variable.assign(_kept(finite, new, _replicas.read(variable)))
    return rows


def _kept(finite, new, old):
    """The new value, or the old one where the gradients were not finite (None: they are)."""
    return new if finite is None else ops.where(finite, new, old)


def _groups(variables):
    """Ranges of consecutive variables of together at most 24 MB, or of one that is larger.

    Their scalars are computed as vectors, which keeps the graph of a step small.
    """
    groups, start, size = [], 0, 0
    for i, variable in enumerate(variables):
        bytes_of_u = 4 * math.prod(variable.shape)
        if i > start and size + bytes_of_u > 24e6:
            groups.append(range(start, i))
            start, size = i, 0
        size += bytes_of_u
    return [*groups, range(start, len(variables))]
