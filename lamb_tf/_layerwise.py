"""A step of a layerwise optimizer: its order, in `apply`, and the hooks of the subclasses.

`docs/algorithm.md` gives the reasons. `lamb.py`, `lars.py` and `orscale.py` hold the equations,
`_state.py` the state, `_replicas.py` and `_kernels.py` the differences between TensorFlow, JAX and
torch.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from lamb_tf import _kernels, _master_weights, _replicas, _slices
from lamb_tf._kernels import quotient, square_root, where_finite
from lamb_tf._selection import is_overwritten
from lamb_tf._state import OptimizerState
from lamb_tf._types import Bounds, Slots, Tensor, Variables


class Scalars(NamedTuple):
    """Scalars shared by all tensors of an update, in the type of the arithmetic."""

    step: object  # t = 1, 2, …
    learning_rate: object
    coefficients: object  # what `coefficients` returned
    finite: object  # whether the update takes place; None where it is known to


class LayerwiseOptimizer(OptimizerState):
    """An optimizer whose step in each tensor is scaled by that tensor's trust ratio, φ(‖x‖)/‖u‖.

    A subclass names its slots and hyperparameters, and defines how the gradient moves the slots
    (`moments`) and the direction u (`direction`); where its equations differ, also the ratio
    (`trust_ratio`) and the movement along u (`move`). These take and return tensors of one variable
    in the type of the arithmetic, which is float32, or float64 where any of the variables is.
    """

    weight_norm_bounds: Bounds  # of the subclasses that use `bounded_ratio`
    moves_along_u = True  # whether `move` is the plain x − step u
    has_kernels = True  # False: an operation at a time, to measure what kernels save

    def _build(self, variables):
        super()._build(variables)
        compiled = _kernels.compiled if self.has_kernels else lambda function: function
        self._fused_direction = compiled(self._direction_traced)
        self._fused_apply_step = compiled(self._apply_step_and_ema)
        self._fused_sync_master = compiled(_master_weights.sync_master)
        self._fused_update_ema = compiled(self._update_ema)

    def _has_equations_of(self, owner):
        """Whether a kernel for that class may replace the equations: none is overridden."""
        names = "moments", "direction", "move"
        own = all(getattr(type(self), name) is getattr(owner, name) for name in names)
        return self.has_kernels and own

    @_replicas.not_converted
    def apply(
        self,
        grads: Sequence[Tensor | None],
        trainable_variables: Variables | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> None:
        """Updates the variables, in the order that docs/algorithm.md states.

        Args:
            grads: One gradient per variable: dense, `tf.IndexedSlices`, or None for a variable that
                takes no part. In `strategy.run` each replica gives its own; their sum is applied.
            trainable_variables: The variables; may be left out once the optimizer is built.
            skip_gradients_aggregation: For gradients that the caller has summed over all replicas
                and workers himself (so that they are equal on all): the sum is left out.
        """
        grads, variables = self._taking_part(grads, trainable_variables)
        if not grads:
            return
        with _replicas.no_autograd(), keras.name_scope(self.name, caller=self):
            # 1. Accumulate locally.
            grads = _replicas.widen(grads, variables, self._precision)
            noise = self._squares_of_shares(grads, variables, skip_gradients_aggregation)
            if self.gradient_accumulation_steps:
                grads = self._accumulate(grads, variables)

            def update(grads):  # once for all replicas; a gradient has a value on each
                # 2. Sum over replicas.
                if not skip_gradients_aggregation:
                    places = [*variables, *([self._telemetry.noise] if noise else [])]
                    grads = _replicas.sum_over_replicas(grads, places)
                grads, squares_of_shares = grads[: len(variables)], grads[len(variables) :]
                grads = [_replicas.densify(g, v) for g, v in zip(grads, variables)]
                pairs = list(zip(grads, variables))
                overwriting = [(g, v) for g, v in pairs if is_overwritten(v)]
                parts = _replicas.by_device((g, v) for g, v in pairs if not is_overwritten(v))
                trained = [variable for _, _, part in parts for variable in part]
                # 3. Undo the loss scale. 4. Is every gradient finite? 5. Clip. One pass over the
                # gradients tells both whether all of them are finite and how to clip.
                squares = _kernels.sums_of_squares_by_device(parts, self._precision)
                gradient_norm, scales = self._unscale_and_clip(squares)
                finite = ops.isfinite(gradient_norm)
                for rows, _ in overwriting:
                    finite &= ops.all(ops.isfinite(_replicas.first_replica(rows)))
                self.skipped_updates.assign_add(ops.cast(ops.logical_not(finite), "int32"))
                if self._telemetry:
                    self._telemetry.gradient_norm.assign(gradient_norm)
                if _replicas.is_eager():
                    if not finite:
                        return
                    finite = None  # it is known: nothing has to be selected
                # 6. Per tensor: direction, trust ratio, movement.
                scalars, metrics = self._scalars(finite), []
                for device, part_grads, part in parts:
                    part_scales, scales = scales[: len(part)], scales[len(part) :]
                    with _replicas.on(device):
                        states = [self._state(variable) for variable in part]
                        slice_axes = [self._slice_axes[i] for i in self._indices(part)]
                        move = functools.partial(self._update_tensors, slice_axes=slice_axes)
                        tensors = part, states, part_grads, part_scales, *self._choices(part)
                        metrics.append(_replicas.update_on_replicas(move, *tensors, scalars))
                # 7. What follows: constraints, averages, telemetry, the count of updates.
                for rows, variable in overwriting:
                    _replicas.update_on_replicas(_overwrite, [variable], [rows], finite)
                self._constrain(trained, finite)
                if self.use_ema:
                    self._update_idle_ema(trained, scalars)
                for shares in squares_of_shares:  # one or none
                    self._keep_noise(shares, squares, self._indices(trained), finite)
                if self._telemetry and metrics:
                    rows = self._ratio_positions(trained)
                    self._telemetry.keep(ops.concatenate(metrics), rows, finite)
                self.iterations.assign_add(1 if finite is None else ops.cast(finite, "int32"))

            # The sum of gradients that overwrite has those of each replica, a row each.
            pairs = zip(grads, variables)
            grads = [_replicas.in_own_row(g) if is_overwritten(v) else g for g, v in pairs]
            _replicas.merge_replicas(self._when_due(update, variables), [*grads, *noise])

    def _squares_of_shares(self, grads, variables, are_summed):
        """Sums of the squared norms of this replica's micro-batches' gradients so far, in a list.

        Args:
            are_summed: Whether the gradients are those of all replicas.

        Returns:
            One vector, with an element per variable; none where the noise scale is not measured.
        """
        if not self._telemetry or self._telemetry.noise is None:
            return []
        self._require_micro_batches(1 if are_summed else _replicas.num_replicas(variables))
        pairs = zip(grads, variables)
        pairs = [(_replicas.dense(g, v), v) for g, v in pairs if not is_overwritten(v)]
        parts = _replicas.by_device(pairs)
        squares = _kernels.sums_of_squares_by_device(parts, self._precision)
        positions = self._indices([variable for _, _, part in parts for variable in part])
        return [self._telemetry.add_squares(squares, positions)]

    def _keep_noise(self, shares, squares, positions, finite):
        factor = self._unscaling() ** 2
        shares = _replicas.first_replica(shares) * factor
        count = self._micro_batches
        self._telemetry.keep_noise(shares, squares * factor, positions, count, finite)

    def _accumulate(self, grads, variables):
        """Adds to each replica's own running sums; returns the sums.

        For variables overwritten by their gradient: the maximum, as in Keras.
        """
        sums = []
        for gradient, variable, i in zip(grads, variables, self._indices(variables)):
            add = _replicas.local_max if is_overwritten(variable) else _replicas.add_locally
            sums.append(add(self._accumulators[i], _replicas.dense(gradient, variable)))
        return sums

    def _when_due(self, update, variables):
        """The update; with accumulation, only the last micro-step makes it."""
        if not self.gradient_accumulation_steps:
            return update

        def micro_step(grads):
            def update_and_start_again():
                update(grads)
                self._micro_step.assign(0)
                for i in self._indices(variables):  # other variables keep accumulating
                    _replicas.set_zero(self._accumulators[i])
                if self._telemetry and self._telemetry.squares is not None:
                    _replicas.set_zero(self._telemetry.squares)

            _replicas.run_if(
                ops.equal(self._micro_step, self.gradient_accumulation_steps - 1),
                update_and_start_again,
                lambda: self._micro_step.assign_add(1),
                # All of the model's: averages of those without a gradient are written, too.
                state=self.variables + self.trainable_variables,
            )

        return micro_step

    def _unscale_and_clip(self, squares):
        """The norm of the true gradient, and per tensor the factor that unscales and clips it.

        A factor of None is 1, and saves a pass over the gradient.
        """
        factor = self._unscaling()
        gradient_norm = square_root(ops.sum(squares)) * factor
        scales = ops.ones_like(squares) * factor
        if self.global_clipnorm:
            limit = self.global_clipnorm
            scales *= quotient(limit, gradient_norm, gradient_norm > limit, 1.0)
        elif self.clipnorm:
            limit, norms = self.clipnorm, square_root(squares) * factor
            scales *= quotient(limit, norms, norms > limit, 1.0)
        elif isinstance(factor, float) and factor == 1.0:
            return gradient_norm, [None] * squares.shape[0]
        return gradient_norm, ops.unstack(scales)

    def _unscaling(self):
        """The factor from the sum of the micro-batches' gradients to the true gradient."""
        loss_scale = 1.0 if self.loss_scale_factor is None else self.loss_scale_factor
        return 1.0 / (loss_scale * (self.gradient_accumulation_steps or 1))

    def _scalars(self, finite):
        step = self._scalar(self.iterations) + 1.0
        coefficients = self.coefficients(step, finite)
        return Scalars(step, self._scalar(self.learning_rate), coefficients, finite)

    def _choices(self, variables):
        """Per variable its weight decay, whether it is adapted, and the factor on its rate.

        The factors are None where all of them are 1.
        """
        decay = self.weight_decay
        decay = self._scalar(decay(self.iterations) if callable(decay) else decay)
        indices, factors = np.array(self._indices(variables)), None
        if self._factors is not None:
            factors = ops.convert_to_tensor(self._factors[indices], self._precision)
        decayed, adapted = ops.unstack(ops.take(_replicas.read(self._choice), indices, axis=1))
        return ops.where(decayed, decay, 0.0), adapted, factors

    def _update_tensors(
        self, variables, states, grads, scales, decays, adapted, factors, scalars, slice_axes
    ):
        """x ← x − η factor ratio u for all tensors, on one replica; returns telemetry's metrics."""
        grads = _kernels.zeros_if_nonfinite(scalars.finite, grads, variables)
        tensors = variables, states, grads, scales, slice_axes
        parts = _kernels.parts(*tensors, not self._kernel, self.is_elementwise)
        order = np.concatenate([part.positions for part in parts])
        is_ordered = (np.diff(order) > 0).all()
        if not is_ordered:
            decays, adapted = ops.take(decays, order), ops.take(adapted, order)
            factors = None if factors is None else ops.take(factors, order)
        decay_of = _kernels.unstack(decays, [part.num_stacked for part in parts])
        if any(slice_axes):  # from here on an element for each trust ratio
            counts = [_slices.count(variables[i].shape, slice_axes[i]) for i in order]
            of_slice = np.repeat(np.arange(len(order)), counts)
            decays, adapted = ops.take(decays, of_slice), ops.take(adapted, of_slice)
            factors = None if factors is None else ops.take(factors, of_slice)
            order = order[of_slice]
        done, metrics, end = [], [], 0
        for group in _kernels.groups([part.variable.shape for part in parts]):
            own, decay_of_own = parts[group.start : group.stop], decay_of[group.start : group.stop]
            axes, counts = [part.axes for part in own], [part.num_rows for part in own]
            start, end = end, end + sum(count or 1 for count in counts)
            # Later groups wait: the directions of a few groups are in memory at once, not all.
            with _kernels.control_dependencies(done[-2:-1]):
                xs = [self._weights(part.variable, part.state) for part in own]
                us = self._compute_directions(xs, own, decay_of_own, scalars)
            weight_norms = square_root(_kernels.sums_of_squares(xs, self._precision, axes))
            update_norms = square_root(_kernels.sums_of_squares(us, self._precision, axes))
            ratios = self.trust_ratio(weight_norms, update_norms, decays[start:end])
            ratios = ops.where(adapted[start:end], ratios, 1.0)
            step_sizes = scalars.learning_rate * ratios
            if factors is not None:
                scaled = scalars.learning_rate * factors[start:end] * ratios
                step_sizes = ops.where(factors[start:end] > 0, scaled, 0.0)
            # Not `0 * ratio`, here and above: the ratio may be infinite. (Apart: the selection is
            # then computed where the vector is cut, for many elements in one kernel.)
            step_sizes = where_finite(scalars.finite, _kernels.apart(step_sizes), 0.0)
            steps = _kernels.unstack(step_sizes, counts)
            for part, u, step_size, decay in zip(own, us, steps, decay_of_own):
                self._apply_step(part, u, step_size, decay, scalars)
            metrics.append(ops.stack([weight_norms, update_norms, ratios], axis=1))
            done.append(step_sizes)
        metrics = ops.concatenate(metrics)
        if is_ordered:
            return metrics
        return ops.take(metrics, np.argsort(order, kind="stable"), axis=0)

    def _weights(self, variable, state):
        """x: the values of the variable, or of its master copy."""
        if "master" in state:
            self._fused_sync_master(state["master"], variable)
        return _replicas.read(state.get("master", variable))

    def _compute_directions(self, xs, parts, decays, scalars):
        """u of each tensor, by the kernel where there is one; moves their slots."""
        if not self._kernel or _kernels.in_compiled_graph():
            equations = _kernels.traced_once(functools.partial(self._equations, scalars), xs[0])
            return [
                self._fused_direction(
                    x, p.gradient, p.state, p.scale, decay, scalars, p.axes, equations
                )
                for x, p, decay in zip(xs, parts, decays)
            ]
        gs = (self._scaled(p.gradient, p.scale) for p in parts)
        states = [p.state for p in parts]
        return self._kernel.of_all(xs, gs, states, decays, scalars.coefficients)

    def _direction_traced(self, x, g, state, scale, decay, scalars, axes, equations):
        equations = equations or functools.partial(self._equations, scalars)
        given = {"x": _replicas.cast(x, self._precision), "g": g}
        given |= {name: _replicas.read(slot) for name, slot in state.items() if name != "seed"}
        of_tensor = {"decay": decay} | ({} if scale is None else {"scale": scale})
        if self.is_elementwise and _kernels.is_worth_blocks(x):
            return _kernels.in_blocks(equations, given, of_tensor)
        u, slots = _kernels.over_rows(equations, given, of_tensor, self.is_elementwise, axes)
        for name, slot in slots.items():
            self.assign(state[name], slot)
        return u

    def _equations(self, scalars, x, g, decay, scale=None, **old):
        """u and the slots that moved, of arrays."""
        g, finite = self._scaled(g, scale), scalars.finite
        moments = self.moments(x, g, old, decay)
        slots = {n: where_finite(finite, new, old.get(n, new)) for n, new in moments.items()}
        u = self.direction(x, g, {**old, **slots}, decay, scalars.coefficients)
        return u, {name: slots[name] for name in slots.keys() & old.keys()}

    def _scaled(self, g, scale):
        """The gradient that the equations see: unscaled and clipped."""
        if scale is not None:
            g = g * scale
        return self._clip(g, (-self.clipvalue, self.clipvalue)) if self.clipvalue else g

    def _apply_step(self, part, u, step_size, decay, scalars):
        """Moves one tensor along u: its master copy, if it has one, and the variable with it."""
        variable, state, axes = part.variable, part.state, part.axes
        x, noise = state.get("master", variable), None
        if "seed" in state:
            with _kernels.control_dependencies([step_size]):
                noise = _kernels.uniform(tuple(variable.shape), state["seed"])
        plain = self.moves_along_u and not self.use_ema and noise is None
        if plain and self.has_kernels and not _kernels.in_compiled_graph():
            _kernels.subtract(x, step_size, u, axes)
        else:
            self._fused_apply_step(x, state, u, step_size, decay, noise, scalars, axes)
        if x is not variable:
            self.assign(variable, _replicas.read(x))

    def _apply_step_and_ema(self, x, state, u, step_size, decay, noise, scalars, axes):
        finite, step = scalars.finite, scalars.step
        old_x = ops.cast(_replicas.read(x), self._precision)
        old = {name: _replicas.read(slot) for name, slot in state.items() if name != "seed"}
        tensors = {"x": old_x, "u": u, "slots": old}

        def move(x, u, slots, step_size, decay):
            return self.move(x, u, slots, step_size, decay)

        scalars_of_x = {"step_size": step_size, "decay": decay}
        new_x, moved = _kernels.over_rows(move, tensors, scalars_of_x, self.is_elementwise, axes)
        if self.use_ema:
            new_x, moved["average"] = self._ema_values(new_x, old["average"], step)
        for name, value in moved.items():
            self.assign(state[name], where_finite(finite, value, old[name]))
        if noise is not None:
            dtype = keras.backend.standardize_dtype(x.dtype)
            new_x = _master_weights.round_stochastically(new_x, dtype, noise)
        self.assign(x, where_finite(finite, new_x, _replicas.read(x)))

    def _constrain(self, variables, finite):
        """Applies the constraints of the variables; to the master copy where there is one."""
        for variable in variables:
            if variable.constraint is not None:
                weights = self.slots(variable).get("master", variable)
                constrained = variable.constraint(weights)
                weights.assign(where_finite(finite, constrained, _replicas.read(weights)))
                if weights is not variable:
                    variable.assign(ops.cast(weights, variable.dtype))

    def _ema_values(self, x, average, step):
        """The values and their average after an update. They are equal after the first one."""
        weight = 1.0 - self._scalar(self.ema_momentum)
        # Equal ones stay equal to all digits. Without a momentum there is nothing to average.
        moved = average + weight * (x - average) if self.ema_momentum else x
        average = ops.where(ops.isnan(average), x, moved)  # where there is none yet, x
        if self.ema_overwrite_frequency:
            due = ops.equal(ops.mod(step, self.ema_overwrite_frequency), 0)
            x = ops.where(due, average, x)
        return x, average

    def _update_idle_ema(self, variables, scalars):
        """The exponential moving averages of variables without a gradient."""
        taking_part = self._indices(variables)
        for i, variable in enumerate(self.trainable_variables):
            if i not in taking_part and not is_overwritten(variable):
                with _replicas.on(_replicas.device_of(variable)):
                    state = self._state(variable)
                    _replicas.update_on_replicas(
                        self._update_idle_ema_of, [variable], [state], scalars.finite, scalars.step
                    )

    def _update_idle_ema_of(self, variables, states, finite, step):
        (variable,), (state,) = variables, states
        self._weights(variable, state)  # picks up external assignments
        holder = state.get("master", variable)
        average = self._fused_update_ema(holder, state["average"], finite, step)
        if self.ema_overwrite_frequency and holder is not variable:
            self.assign(variable, _replicas.read(holder))
        return average

    def _update_ema(self, holder, slot, finite, step):
        old_x, old = ops.cast(_replicas.read(holder), self._precision), _replicas.read(slot)
        x, average = self._ema_values(old_x, old, step)
        self.assign(slot, where_finite(finite, average, old))
        if self.ema_overwrite_frequency:
            self.assign(holder, where_finite(finite, x, old_x))
        return average

    def _scalar(self, value):
        """A number, variable or tensor in the type of the arithmetic."""
        if hasattr(value, "dtype"):
            return ops.cast(value, self._precision)
        return ops.convert_to_tensor(value, self._precision)

    def _clip(self, x, bounds):
        return ops.clip(x, *map(self._scalar, bounds))

    # The equations; `lamb.py` and `lars.py` fill them in.

    def coefficients(self, step: Tensor, finite: Tensor | None) -> tuple | None:
        """A named tuple of scalars that `direction` needs, made once per step. The first step is 1.

        A subclass's kernel scalars are in `kernel`.
        """

    def moments(self, x: Tensor, g: Tensor, slots: Slots, decay: Tensor) -> Slots:
        """The slots updated from g, and other values for `direction`."""
        return {}

    def direction(
        self, x: Tensor, g: Tensor, slots: Slots, decay: Tensor, coefficients: Any
    ) -> Tensor:
        """The direction u, from the moved slots."""
        raise NotImplementedError

    def trust_ratio(self, weight_norm: Tensor, update_norm: Tensor, decay: Tensor) -> Tensor:
        """φ(‖x‖)/‖u‖, and 1 where either is 0."""
        return self.bounded_ratio(weight_norm, update_norm)

    def bounded_ratio(
        self, weight_norm: Tensor, denominator: Tensor, factor: float = 1.0
    ) -> Tensor:
        """factor φ(‖x‖) / denominator within the bounds, and 1 where it would be 0 or ∞."""
        if self.weight_norm_bounds:
            weight_norm = self._clip(weight_norm, self.weight_norm_bounds)
        neither_is_0 = ops.minimum(weight_norm, denominator) > 0
        ratio = quotient(weight_norm, denominator, neither_is_0, 1.0)
        if factor != 1.0:
            ratio = ops.where(neither_is_0, factor * ratio, 1.0)
        if self.trust_ratio_bounds:
            ratio = self._clip(ratio, self.trust_ratio_bounds)
        return ratio

    def move(
        self, x: Tensor, u: Tensor, slots: Slots, step_size: Tensor, decay: Tensor
    ) -> tuple[Tensor, Slots]:
        """x − step_size u, and the slots that moved."""
        return x - step_size * u, {}


def _overwrite(variables, rows, finite):
    """Writes into each variable the largest of its rows, one from each replica."""
    for variable, values in zip(variables, rows):
        new = ops.cast(ops.max(values, axis=0), variable.dtype)
        variable.assign(where_finite(finite, new, _replicas.read(variable)))
    return rows
