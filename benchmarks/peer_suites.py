"""Runs Keras' own tests of its optimizers on the optimizers of lamb_tf.

    python benchmarks/peer_suites.py

The wheel of Keras contains its tests. Each suite is imported with classes of lamb_tf in place of
Keras' own, and run; only the tests that make an optimizer of lamb_tf count. EXPECTED_DIFFERENCES
has the reasons of the intended differences. The exit code is 1 if another test fails, or a listed
one does not fail.
"""

import contextlib
import importlib.util
import io
import logging
import os
import sys
import unittest
import warnings
from unittest import mock

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

import lamb_tf


@keras.saving.register_keras_serializable(package="peer_suites")
class Adam(lamb_tf.LAMB):
    """Adam: LAMB without layer adaptation, with the arguments and defaults of Keras' Adam.

    `amsgrad` makes no difference where v only grows, as it does in these tests.
    """

    def __init__(self, *args, epsilon=1e-7, amsgrad=False, **kwargs):
        kwargs.setdefault("exclude_from_layer_adaptation", [""])
        super().__init__(*args, epsilon=epsilon, **kwargs)


@keras.saving.register_keras_serializable(package="peer_suites")
class SGD(lamb_tf.LARS):
    """SGD: LARS without layer adaptation, with the arguments and defaults of Keras' SGD."""

    def __init__(self, learning_rate=0.01, momentum=0.0, **kwargs):
        kwargs.setdefault("exclude_from_layer_adaptation", [""])
        super().__init__(learning_rate, momentum, **kwargs)


# Test modules in keras.src, with {class in keras.src.optimizers: its replacement}. The last one
# resets TensorFlow, so it has to stay last.
SUITES = {
    "optimizers.lamb_test": {"lamb.Lamb": lamb_tf.LAMB},
    "optimizers.adam_test": {"adam.Adam": Adam},
    "optimizers.sgd_test": {"sgd.SGD": SGD},
    "optimizers.optimizer_test": {"Adam": Adam, "SGD": SGD},
    "optimizers.loss_scale_optimizer_test": {
        "sgd.SGD": SGD,
        "loss_scale_optimizer.LossScaleOptimizer": lamb_tf.LossScaleOptimizer,
    },
    "optimizers.optimizer_sparse_test": {
        "Adam": lamb_tf.LAMB,
        "SGD": lamb_tf.LARS,
        "LossScaleOptimizer": lamb_tf.LossScaleOptimizer,
    },
    "saving.saving_lib_test": {"Adam": lamb_tf.LAMB},
    "backend.tensorflow.optimizer_distribute_test": {"sgd.SGD": SGD},
}
_NO_AMSGRAD = "LAMB has no `amsgrad`"
_ACCUMULATION = (
    "reads private variables of Keras: the sums have another name here, and `_iterations` counts "
    "updates, not micro-steps"
)
_SPARSE_UPDATES = (
    "looks at which method assigns to the variable: a trust ratio takes the norm of a whole "
    "tensor, so the update is dense (test_sparse_correctness, which compares values, passes)"
)
EXPECTED_DIFFERENCES = {
    "lamb_test.LambTest.test_weight_decay": (
        "Keras decays outside the trust ratio: without gradient, a step of rate 1 leaves 1 − 0.004 "
        "of the weight. In the paper the decay is in the direction, which the ratio scales to the "
        "norm of the weight: the step leaves 0"
    ),
    "sgd_test.SGDTest.test_single_step": (
        "counts the variables of the optimizer: ours has the slot of a momentum of 0, a counter of "
        "skipped updates and the choice of variables besides"
    ),
    "sgd_test.SGDTest.test_invalid_momentum": (
        "reads the text of an error: ours gives the range as [0, 1)"
    ),
    "optimizer_test.OptimizerTest.test_gradient_accumulation": _ACCUMULATION,
    "optimizer_test.OptimizerTest"
    ".test_overwrite_with_gradient_with_gradient_accumulation": _ACCUMULATION,
    "optimizer_distribute_test.OptimizerDistributeTest.test_gradient_accumulation": _ACCUMULATION,
    "optimizer_distribute_test.OptimizerDistributeTest.test_ema": (
        "Keras sums the gradients of the replicas, but not where all of them give one and the same "
        "tensor object, as here; ours sums them always"
    ),
    "optimizer_distribute_test.OptimizerDistributeTest.test_weight_decay": (
        "excludes variables on each replica, the second time after the first replica has built the "
        "optimizer; ours raises then, as an exclusion after `build` would have no effect"
    ),
    "loss_scale_optimizer_test.LossScaleOptimizerTest"
    ".test_finite_step_with_inner_loss_scale_stateful": (
        "Keras drops a `loss_scale_factor` of the inner optimizer without a word; ours refuses it"
    ),
    "optimizer_sparse_test.OptimizerSparseTest.test_sparse_correctness_adam_amsgrad": _NO_AMSGRAD,
    "optimizer_sparse_test.OptimizerSparseTest.test_sparse_gradients_adam_amsgrad": _NO_AMSGRAD,
    "optimizer_sparse_test.OptimizerSparseTest.test_sparse_gradients_sgd": _SPARSE_UPDATES,
    "optimizer_sparse_test.OptimizerSparseTest"
    ".test_sparse_gradients_loss_scale_optimizer_sgd": _SPARSE_UPDATES,
}


class Result(unittest.TestResult):
    """`outcomes`: the error, or None, of each test that made an optimizer of lamb_tf."""

    def __init__(self):
        super().__init__()
        self.outcomes = {}
        self._made = 0

    @contextlib.contextmanager
    def counting(self):
        """Counts the optimizers that are made."""

        def counted(init):
            def counted_init(*args, **kwargs):
                self._made += 1
                init(*args, **kwargs)

            return counted_init

        with contextlib.ExitStack() as stack:
            for kind in (lamb_tf.LAMB, lamb_tf.LARS):
                stack.enter_context(mock.patch.object(kind, "__init__", counted(kind.__init__)))
            yield

    def startTest(self, test):
        super().startTest(test)
        self._made, self._error = 0, None

    def addError(self, test, err):
        self._error = err[1]

    addFailure = addError

    def addSubTest(self, test, subtest, err):
        self._error = self._error or (err and err[1])

    def stopTest(self, test):
        if self._made:
            self.outcomes[".".join(test.id().split(".")[-3:])] = self._error


def run_suite(module, classes):
    """Runs a test module of Keras with these classes in it; returns the outcomes."""
    of_name = {name.lower(): ours for name, ours in classes.items()}  # for "adam"
    with contextlib.ExitStack() as stack:
        for name, ours in classes.items():
            stack.enter_context(mock.patch(f"keras.src.optimizers.{name}", ours))
        stack.enter_context(mock.patch.dict("keras.src.optimizers.ALL_OBJECTS_DICT", of_name))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        result = Result()
        stack.enter_context(result.counting())
        unittest.defaultTestLoader.loadTestsFromName(f"keras.src.{module}").run(result)
    return result.outcomes


def main():
    """Runs all suites; returns the exit code."""
    for library in ("tensorflow", "absl"):  # these tests provoke their warnings
        logging.getLogger(library).setLevel(logging.ERROR)
    if importlib.util.find_spec("keras.src.optimizers.lamb_test") is None:
        print(f"The wheel of Keras {keras.__version__} contains no tests; that of 3.15.1 does.")
        return 2
    outcomes = {}
    for module, classes in SUITES.items():
        of_suite = run_suite(module, classes)
        outcomes |= of_suite
        passed = list(of_suite.values()).count(None)
        print(f"{module}: {passed} of {len(of_suite)} pass", flush=True)

    failed = {name: error for name, error in outcomes.items() if error is not None}
    print("\nexpected differences:")
    for name, reason in EXPECTED_DIFFERENCES.items():
        print(f"  {name}: {reason}")
    surprises = [
        f"{name} fails: {type(error).__name__}: {' '.join(str(error).split())}"
        for name, error in failed.items()
        if name not in EXPECTED_DIFFERENCES
    ]
    surprises += [f"{name} does not fail" for name in EXPECTED_DIFFERENCES if name not in failed]
    for line in surprises:
        print(f"unexpected: {line}")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
