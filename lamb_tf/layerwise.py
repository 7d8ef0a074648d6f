"""What LAMB and LARS share: the order of a step, the trust ratio, and which variables take part in what.

A step, in this order (`docs/algorithm.md` says why):

    accumulate locally -> sum over replicas -> undo the loss scale -> is every gradient finite? -> clip
    -> per tensor: direction -> trust ratio -> apply

`lamb.py` and `lars.py` hold the equations; `backends.py` what TensorFlow, JAX and torch do differently.
"""

import keras
import numpy as np
from keras import ops

from lamb_tf import backends, selection


class LayerwiseOptimizer(keras.optimizers.Optimizer):
    """An optimizer whose step in each tensor is scaled by that tensor's trust ratio, φ(‖x‖)/‖u‖.

    A subclass names its slots and gives the direction u (`direction`), and may say how x moves along it (`move`).
    """

    slot_names = ()

    def __init__(
        self,
        learning_rate,
        weight_decay,
        exclude_from_weight_decay,
        exclude_from_layer_adaptation,
        weight_norm_bounds,
        trust_ratio_bounds,
        name,
        **kwargs,
    ):
        if "weight_decay_rate" in kwargs:
            raise TypeError(
                "`weight_decay_rate` is the old name of an argument: write "
                f"`weight_decay={kwargs['weight_decay_rate']!r}`."
            )
        is_variable = selection.is_variable(learning_rate)
        if is_variable:
            initial = lambda: 0.0  # noqa: E731  the base class makes no variable of its own for a callable
        else:
            initial = learning_rate if callable(learning_rate) else float(learning_rate)
        super().__init__(initial, weight_decay=None, name=name, **kwargs)
        if is_variable:
            self._learning_rate = learning_rate
        self._records_telemetry = False
        self._telemetry = {}
        self.weight_decay = weight_decay
        self.weight_norm_bounds = bounds(weight_norm_bounds, "weight_norm_bounds")
        self.trust_ratio_bounds = bounds(trust_ratio_bounds, "trust_ratio_bounds")
        self._exclusions = (
            selection.as_list(exclude_from_weight_decay, "exclude_from_weight_decay"),
            selection.as_list(exclude_from_layer_adaptation, "exclude_from_layer_adaptation"),
        )

    # Building: slots, counters, and the choice of variables. All of it is state of the optimizer and saved with it.

    def build(self, variables):
        """Creates the slots (float32 whatever the type of the variable) and settles which variables are excluded."""
        if self.built:
            return
        accumulation, self.gradient_accumulation_steps = self.gradient_accumulation_steps, None
        use_ema, self.use_ema = self.use_ema, False
        super().build(variables)  # would make accumulators and averages of the variable's type
        self.gradient_accumulation_steps, self.use_ema = accumulation, use_ema

        self._choice = self._add_choice(variables)
        self.skipped_updates = self._add_counter("skipped_updates")
        self._slots = {name: self._add_slots(variables, name) for name in self.slot_names}
        if use_ema:
            self._model_variables_moving_average = self._add_slots(variables, "average")
        if self._records_telemetry:
            self._telemetry = self._add_telemetry()
        if accumulation:
            self._micro_step = self._add_counter("micro_step")
            self._accumulators = self._add_slots(
                variables, "accumulator", synchronization="on_read"
            )

    def slots(self, variable):
        """The state kept for one variable, by name: for LAMB `{"m": keras.Variable, "v": keras.Variable}`."""
        index = self._get_variable_index(variable)
        return {name: slots[index] for name, slots in self._slots.items()}

    def summary(self, print_fn=print):
        """Prints which variables are decayed and which are adapted, as a table."""
        decayed, adapted = self._choice.numpy()
        print_fn(selection.table(self._trainable_variables, decayed, adapted))

    def _add_choice(self, variables):
        """Which variables are decayed and which adapted, as state: it is saved with the slots and comes back with them."""
        no_decay, no_adaptation = self._exclusions
        not_decayed = selection.excluded(variables, no_decay, "exclude_from_weight_decay")
        if no_adaptation is None:
            not_adapted = not_decayed
        else:
            not_adapted = selection.excluded(
                variables, no_adaptation, "exclude_from_layer_adaptation"
            )
        choice = np.logical_not([not_decayed, not_adapted])
        return self.add_variable(
            shape=choice.shape,
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(choice, dtype),
            dtype="bool",
            aggregation="only_first_replica",
            name="decayed_and_adapted",
        )

    def _add_counter(self, name):
        return self.add_variable((), dtype="int", aggregation="only_first_replica", name=name)

    def _add_slots(self, variables, name, synchronization="auto"):
        return [self._add_slot(variable, name, synchronization) for variable in variables]

    def _add_slot(self, variable, name, synchronization):
        with keras.name_scope(self.name, caller=self):
            slot = keras.Variable(
                lambda shape, dtype=None: ops.zeros(shape, dtype),
                shape=tuple(variable.shape),
                dtype="float32",
                trainable=False,
                aggregation="sum" if synchronization == "on_read" else "none",
                synchronization=synchronization,
                layout=getattr(variable, "_layout", None),
                name=f"{selection.path_of(variable).replace('/', '_')}_{name}",
            )
        self._track_variable(slot)
        return slot

    def record_telemetry(self):
        """Makes every update store its norms and trust ratios; called by `telemetry.record`."""
        self._records_telemetry = True
        if self.built and not self._telemetry:
            self._telemetry = self._add_telemetry()

    def _add_telemetry(self):
        shapes = {"gradient_norm": (), "layers": (len(self._trainable_variables), 3)}
        return {
            name: self.add_variable(
                shape, dtype="float32", aggregation="only_first_replica", name=name
            )
            for name, shape in shapes.items()
        }

    @property
    def iterations(self):
        """Updates made so far: neither micro-steps of accumulation nor skipped steps count."""
        return self._iterations

    # A step.

    def apply(self, grads, trainable_variables=None, skip_gradients_aggregation=False):
        """Updates the variables, in the order the module states.

        Args:
            grads: one gradient a variable (dense, `tf.IndexedSlices`, or None for a variable that takes no part). Inside
                `strategy.run` each replica gives its own, and they are summed here.
            trainable_variables: the variables; may be left out once the optimizer is built.
            skip_gradients_aggregation: the gradients are already summed over all replicas (and equal on all).
        """
        grads, variables = self._taking_part(grads, trainable_variables)
        if not grads:
            return
        with backends.no_autograd(), keras.name_scope(self.name, caller=self):
            grads = backends.widen(grads)
            if self.gradient_accumulation_steps:
                grads = self._accumulate(grads, variables)
            backends.merge_replicas(
                lambda merged: self._step(merged, variables, not skip_gradients_aggregation), grads
            )

    def _taking_part(self, grads, variables):
        """The gradients that are there, and their variables; builds the optimizer on the first call."""
        grads = list(grads)
        if not grads:
            return [], []
        if variables is None and not self.built:
            raise ValueError(
                "The first call of `apply` needs the variables: `apply(grads, variables)`, or call "
                "`optimizer.build(variables)` before."
            )
        variables = list(variables) if variables is not None else self._trainable_variables
        if len(grads) != len(variables):
            raise ValueError(f"Received {len(grads)} gradients for {len(variables)} variables.")
        if not self.built:
            self.build(variables)
        self._check_variables_are_known(variables)
        return self._filter_empty_gradients(grads, variables)

    def _accumulate(self, grads, variables):
        """Adds to each replica's own running sums; returns the sums."""
        sums = []
        for gradient, variable in zip(grads, variables):
            accumulator = self._accumulators[self._get_variable_index(variable)]
            self.assign_add(accumulator, backends.dense(gradient, variable))
            sums.append(backends.read(accumulator))
        return sums

    def _step(self, grads, variables, aggregate):
        """One call of `apply`, for all replicas: an update, unless more micro-steps are to come."""
        steps = self.gradient_accumulation_steps
        if not steps:
            return self._update(grads, variables, aggregate)

        def update_and_start_again():
            self._update(grads, variables, aggregate)
            self._micro_step.assign(0)
            for accumulator in self._accumulators:
                backends.set_zero(accumulator)

        backends.run_if(
            ops.equal(self._micro_step, steps - 1),
            update_and_start_again,
            lambda: self._micro_step.assign_add(1),
            state=self.variables + variables,
        )

    def _update(self, grads, variables, aggregate):
        """Sum over replicas, finite check, clipping; then every tensor, or none."""
        if aggregate:
            grads = backends.sum_over_replicas(grads, variables)
        grads = [backends.densify(g, v) for g, v in zip(grads, variables)]
        squares = ops.stack([sum_of_squares(backends.first_replica(g)) for g in grads])
        gradient_norm, scales = self._gradient_scales(squares)
        if self._telemetry:
            self._telemetry["gradient_norm"].assign(gradient_norm)
        backends.run_if(
            ops.isfinite(gradient_norm),
            lambda: self._update_tensors(grads, variables, scales),
            lambda: self.skipped_updates.assign_add(1),
            state=self.variables + variables,
        )

    def _gradient_scales(self, squares):
        """The global norm of the true gradient, and the factor that undoes the scale of each tensor's and clips it."""
        factor = 1.0 / ((self.loss_scale_factor or 1.0) * (self.gradient_accumulation_steps or 1))
        gradient_norm = ops.sqrt(ops.sum(squares)) * factor
        scales = ops.full(squares.shape, factor)
        if self.global_clipnorm:
            scales *= self.global_clipnorm / ops.maximum(gradient_norm, self.global_clipnorm)
        if self.clipnorm:
            scales *= self.clipnorm / ops.maximum(ops.sqrt(squares) * factor, self.clipnorm)
        return gradient_norm, ops.unstack(scales)

    def _update_tensors(self, grads, variables, scales):
        step = ops.cast(self._iterations, "float32") + 1.0
        learning_rate = ops.cast(self.learning_rate, "float32")
        weight_decay = self.weight_decay
        if callable(weight_decay):
            weight_decay = weight_decay(self._iterations)
        decayed, adapted = ops.unstack(backends.read(self._choice))
        decays = ops.unstack(ops.where(decayed, ops.cast(weight_decay, "float32"), 0.0))
        adapted = ops.unstack(adapted)
        coefficients = self.coefficients(step)
        figures = {}
        for gradient, variable, scale in zip(grads, variables, scales):
            index = self._get_variable_index(variable)
            figures[index] = backends.update_on_replicas(
                self._update_tensor,
                variable,
                {name: slots[index] for name, slots in self._slots.items()},
                gradient,
                scale,
                coefficients,
                learning_rate,
                decays[index],
                adapted[index],
                variable.constraint,
            )
        if self._telemetry:
            untouched = ops.zeros(3)
            rows = [figures.get(i, untouched) for i in range(len(self._trainable_variables))]
            self._telemetry["layers"].assign(ops.stack(rows))
        self._iterations.assign_add(1)

    def _update_tensor(
        self, x, slots, g, scale, coefficients, learning_rate, decay, adapted, constraint
    ):
        """x ← x − η ratio u, on one replica; returns the figures telemetry keeps."""
        g = g * scale
        if self.clipvalue:
            g = ops.clip(g, -self.clipvalue, self.clipvalue)
        x32 = ops.cast(x, "float32")
        values = {name: backends.read(slot) for name, slot in slots.items()}
        u, values = self.direction(x32, g, values, decay, coefficients)
        weight_norm, update_norm = norm(x32), norm(u)
        ratio = ops.where(adapted, self.trust_ratio(weight_norm, update_norm), 1.0)
        new_x, values = self.move(x32, u, values, learning_rate * ratio)
        for name, slot in slots.items():
            self.assign(slot, values[name])
        if constraint is not None:
            new_x = constraint(new_x)
        self.assign(x, new_x)
        return ops.stack([weight_norm, update_norm, ratio])

    def trust_ratio(self, weight_norm, update_norm):
        """φ(‖x‖)/‖u‖, and 1 where either norm is 0."""
        if self.weight_norm_bounds:
            weight_norm = ops.clip(weight_norm, *self.weight_norm_bounds)
        both = ops.logical_and(weight_norm > 0, update_norm > 0)
        ratio = ops.where(both, weight_norm / update_norm, 1.0)
        if self.trust_ratio_bounds:
            ratio = ops.clip(ratio, *self.trust_ratio_bounds)
        return ratio

    def coefficients(self, step):
        """What `direction` needs that is the same for all tensors in this step (1 for the first)."""
        return {}

    def direction(self, x, g, slots, decay, coefficients):
        """The direction u, whose norm the trust ratio divides by, and the new slots."""
        raise NotImplementedError

    def move(self, x, u, slots, step_size):
        """The new x and slots."""
        return x - step_size * u, slots


def norm(x):
    """The L2 norm of a tensor, in float32."""
    return ops.sqrt(sum_of_squares(x))


def sum_of_squares(x):
    """Σ x², in float32."""
    return ops.sum(ops.square(x))


def bounds(value, argument):
    """A pair (low, high) of numbers with 0 ≤ low ≤ high, or None."""
    if value is None:
        return None
    low, high = value
    if not 0 <= low <= high:
        raise ValueError(
            f"`{argument}` must be (low, high) with 0 <= low <= high. Received {value}."
        )
    return (float(low), float(high))
