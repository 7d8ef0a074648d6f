"""Any Keras optimizer in the training loop: what the loop relies on and Keras leaves to replicas.

`optimizers` makes them; `in_loop` derives the class. Before the class's own `apply`, `InLoop` clips
the final gradient and skips the update if it is not finite; it gives the state of a variable by
name, whatever the class calls it.
"""

import functools
import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras
    from keras.optimizers import Optimizer as KerasOptimizer
else:
    KerasOptimizer = object  # Keras is imported when an optimizer is made


class InLoop(KerasOptimizer):
    """Mixed into any Keras optimizer: the interface of `lamb_tf`'s optimizers that a run relies on.

    Attributes:
        skipped_updates: Number of updates that were skipped, as their gradient was not finite.
        gradient_norm: The global norm of the last gradient, before clipping.
        copies: Slots that start as copies of their variables, with these.
    """

    _excluded: Sequence[str]
    _limit: float
    _slots: "dict[int, dict[str, keras.Variable]]"
    _is_complete: bool
    copies: "list[tuple[keras.Variable, keras.Variable]]"
    applied = "exclude_from_weight_decay", "global_clipnorm"  # of the settings, not by arguments
    skipped_updates: "keras.Variable"
    gradient_norm: "keras.Variable"

    def prepare(self, exclude_from_weight_decay: Sequence[str], global_clipnorm: float) -> None:
        """Sets the loop's own settings; call it before `build`."""
        # Not by assignment, which Keras would track.
        self.__dict__.update(
            _excluded=exclude_from_weight_decay,
            _limit=global_clipnorm,
            _slots={},
            _is_complete=False,
            copies=[],
        )

    def build(self, variables: "Sequence[keras.Variable]") -> None:
        variables = [*variables]
        found = {p: [v for v in variables if re.search(p, v.path)] for p in self._excluded}
        excluded = [*itertools.chain(*found.values())]
        if self._excluded and not excluded:
            raise ValueError(
                "exclude_from_weight_decay must match a variable's path; got "
                f"{list(self._excluded)}. Paths are like {variables[0].path}."
            )
        for pattern in (p for p, matches in found.items() if not matches):
            warnings.warn(
                f"{pattern!r} in `exclude_from_weight_decay` matches no variable, so it has no "
                "effect. Correct it or remove it.",
                stacklevel=3,
            )
        self.exclude_from_weight_decay(var_list=excluded)
        try:
            super().build(variables)
        except Exception as error:  # of any class
            raise ValueError(
                "optimizer_settings must suit the class and the model; got a "
                f"{type(self).__name__} that cannot be built: {error!r}."
            ) from error
        once = {"aggregation": "only_first_replica"}
        self.skipped_updates = self.add_variable((), dtype="int", name="skipped_updates", **once)
        self.gradient_norm = self.add_variable((), name="gradient_norm", **once)
        self._require_no_hidden_state()
        self.__dict__["_is_complete"] = True

    def _require_no_hidden_state(self):
        """Refuses state that Keras does not know of: not saved, and on JAX not even changed."""
        import keras

        known = {id(variable) for variable in (*self.variables, *self._trainable_variables)}
        kinds = keras.Variable, keras.optimizers.Optimizer, keras.random.SeedGenerator
        private_last = sorted(vars(self).items(), key=lambda item: item[0].startswith("_"))
        for name, value in private_last:
            for part in keras.tree.flatten(value):
                if isinstance(part, kinds) and id(part) not in known:
                    raise ValueError(
                        "optimizer_type must be a class that makes its state with add_variable or "
                        f"add_variable_from_reference; got {type(self).__name__}, whose {name} "
                        f"holds a {type(part).__name__} besides, which would not be saved."
                    )

    def add_variable_from_reference(
        self, reference_variable: "keras.Variable", name: str = "var", *args: Any, **options: Any
    ) -> "keras.Variable":
        slot = super().add_variable_from_reference(reference_variable, name, *args, **options)
        self._slots.setdefault(id(reference_variable), {})[name] = slot
        return slot

    def assign(self, variable: Any, value: Any) -> None:
        if not self._is_complete:  # it is being built: this slot starts as a copy of its variable
            self.copies.extend(
                (slot, trained)
                for trained in self.trainable_variables
                for slot in self.slots(trained).values()
                if slot is variable
            )
        super().assign(variable, value)

    @property
    def trainable_variables(self) -> "list[keras.Variable]":
        """The variables that the optimizer was built with."""
        return [*self._trainable_variables]

    def slots(self, variable: "keras.Variable") -> "dict[str, keras.Variable]":
        """The state of one variable by name."""
        return dict(self._slots.get(id(variable), {}))

    def other_state(self) -> "dict[str, keras.Variable]":
        """State of no variable, without counters; the names are Keras' without their numbers."""
        slots = [slot for of_one in self._slots.values() for slot in of_one.values()]
        counters = self.iterations, self.skipped_updates, self.gradient_norm
        known = {id(variable) for variable in (*slots, *counters, self._learning_rate)}
        found: dict[str, keras.Variable] = {}
        for variable in self.variables:
            name = re.sub(r"_\d+$", "", variable.name)
            if id(variable) not in known:
                count = sum(n.partition("#")[0] == name for n in found)
                found[f"{name}#{count + 1}" if count else name] = variable
        return found

    def apply(
        self,
        grads: Sequence[Any],
        trainable_variables: "Sequence[keras.Variable] | None" = None,
        skip_gradients_aggregation: bool = True,
    ) -> None:
        """Clips the final gradient and updates the variables; if it is not finite, does nothing.

        Args:
            grads: The gradient of each variable, dense, of the global batch.
            trainable_variables: Those that the optimizer was built with.
            skip_gradients_aggregation: As of `lamb_tf.LAMB`: the gradients are summed already.
        """
        import keras
        from keras import ops

        variables = self._trainable_variables
        norm = ops.sqrt(ops.sum(ops.stack([ops.sum(ops.square(g)) for g in grads])))
        if self._limit:
            scale = ops.where(norm > self._limit, self._limit / norm, 1.0)
            grads = [g * scale for g in grads]
        update = super().apply
        if keras.backend.backend() == "tensorflow":
            once_for_all_replicas(
                functools.partial(self._update_where_finite, update), norm, *grads
            )
            return
        changed = [*variables, *self.variables]
        before = [variable.value for variable in changed]
        update(grads, variables)
        finite = ops.isfinite(norm)
        for variable, old in zip(changed, before, strict=True):
            variable.assign(ops.where(finite, variable.value, old))
        self._note(norm, finite)

    def _note(self, norm, finite):
        from keras import ops

        self.gradient_norm.assign(norm)
        self.skipped_updates.assign_add(ops.cast(ops.logical_not(finite), "int32"))

    def _update_where_finite(self, update, norm, *grads):
        """Once for all replicas of TensorFlow, whose gradients and norm are equal."""
        import tensorflow as tf

        if isinstance(norm, tf.distribute.DistributedValues):
            norm = tf.distribute.get_strategy().experimental_local_results(norm)[0]
        variables, finite = self._trainable_variables, tf.math.is_finite(norm)

        def on_replica(_, *grads):
            update([*grads], variables)
            return grads[0]

        def update_all():
            if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
                extended = tf.distribute.get_strategy().extended
                extended.update(variables[0].value, on_replica, args=grads, group=False)
            else:
                on_replica(None, *grads)
            return tf.no_op()

        self._note(norm, finite)
        tf.cond(finite, update_all, tf.no_op)


def once_for_all_replicas(function: Callable, *values: Any) -> None:
    """Calls `function(*values)` once, between TensorFlow's replicas; call it in `strategy.run`.

    Args:
        function: For example one that assigns to a variable that all replicas share.
        *values: Tensors of this replica; `function` gets those of all, as distributed values.
    """
    import tensorflow as tf

    def on_all(_, *merged):
        function(*merged)  # and returns nothing: there is no replica's value

    strategy = tf.distribute.get_strategy()
    tf.__internal__.distribute.interim.maybe_merge_call(on_all, strategy, *values)


@functools.cache
def in_loop(cls: type) -> type:
    """The subclass of a Keras optimizer that has `InLoop`."""
    import keras

    if keras.backend.backend() != "tensorflow":
        return type(cls.__name__, (InLoop, cls), {})
    of_tensorflow: Any = keras.optimizers.Optimizer.__bases__[0]

    class Locally(of_tensorflow):
        """Below the class and above Keras' own: reduces nothing, as each replica calls it."""

        def _apply_weight_decay(self, variables):
            super(of_tensorflow, self)._apply_weight_decay(variables)

        def _backend_update_step(self, grads, trainable_variables, learning_rate):
            for gradient, variable in zip(grads, trainable_variables, strict=True):
                self.update_step(gradient, variable.value, learning_rate)

    return type(cls.__name__, (InLoop, cls, Locally), {})
