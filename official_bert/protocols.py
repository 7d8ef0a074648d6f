"""The protocols between the training loop, its tasks and its engines.

The loop knows a `Task` (what is learned) and an `Engine` (where it is computed). A task makes
`Batches`, an engine a `TrainingLoop`. Any task trains on any engine. Both see of a run only its
`UpdateSettings`.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from lamb_tf import schedules
    from official_bert.model import Tensor, Tensors
    from official_bert.model.config import BertConfig


class Lengths(NamedTuple):
    """The shape of an example: tokens S, and masked tokens P (0 but for pre-training)."""

    max_seq_length: int
    max_predictions_per_seq: int = 0


class ArraySpec(NamedTuple):
    """Shape and type of an array of a batch."""

    shape: tuple[int, ...]
    dtype: type


class Batches(Protocol):
    """The batches of a stage by their step, the same on any number of hosts."""

    @property
    def num_batches(self) -> int:
        """Batches of one pass over the examples."""

    @property
    def element_spec(self) -> dict[str, ArraySpec]:
        """The arrays of a batch, without reading one."""

    def __getitem__(self, step: int) -> dict[str, np.ndarray]:
        """This host's rows of the batch of a step: a dictionary of arrays."""

    def fingerprint(self) -> str:
        """A digest that detects other examples."""


@runtime_checkable
class GraphBatches(Batches, Protocol):
    """Batches that can also be read by a graph, as on a TPU slice, whose hosts run no Python."""

    def dataset(self, steps: range, shard_index: int, num_shards: int) -> "tf.data.Dataset":
        """The batches of some steps as a graph."""

    def damage_at(self, offset: int) -> str | None:
        """The damage near a byte of the files that the graph reads; `None`: not damaged."""


class Task(Protocol):
    """Everything task-specific, kept out of the training loop; a frozen dataclass.

    A task supplies the six abstract members. The other members have defaults, for a task whose
    batches weight their rows by `example_weights` and whose `loss` is a mean over examples.
    """

    @property
    @abstractmethod
    def sums(self) -> tuple[str, ...]:
        """Names of the sums over the batches; `tokens` is one of them."""

    @abstractmethod
    def describe(self) -> dict:
        """The task as JSON values, for `run.json`: runs of other tasks differ in them."""

    @abstractmethod
    def make_model(self, config: "BertConfig", seed: int | None, dtype: str) -> "keras.Model":
        """A built model with its `config`, called as model(batch, training=…, dropout_seed=…)."""

    @abstractmethod
    def batches(
        self,
        files: Sequence[str],
        lengths: Lengths,
        batch_size: int,
        config: "BertConfig",
        *,
        seed: int,
        shard: tuple[int, int],
        held_out: bool = False,
    ) -> Batches:
        """The training batches of a stage, or the held-out ones, in order.

        Args:
            files: Paths or globs.
            lengths: The lengths of the stage.
            batch_size: Examples of a batch, on all hosts together.
            config: The model.
            seed: Seed of the order.
            shard: The part of each batch that this process reads, and the number of parts.
            held_out: Whether they are for an evaluation.
        """

    @abstractmethod
    def batch_sums(self, outputs: "Tensor | Tensors", batch: "Tensors") -> "dict[str, Tensor]":
        """The `sums` of rows of a batch by name; float32 scalars."""

    @abstractmethod
    def metrics(self, sums: Sequence[float] | np.ndarray) -> dict[str, float]:
        """Means from a vector of `sums`; `loss` is among them. NaN if nothing was summed up."""

    # The loss

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of a batch's arrays whose global totals the loss is divided by."""
        return ("example_weights",)

    def loss(self, sums: "Tensors", weights: "Tensor") -> "Tensor":
        """The rows' share of the global batch's loss.

        Args:
            sums: Of these rows, by name.
            weights: Totals of `self.weights` over the global batch, in their order.
        """
        from keras import ops

        return ops.divide_no_nan(sums["loss"], weights[0])

    @property
    def loss_in_nats(self) -> bool:
        """Whether the loss is a cross-entropy; the unit of any other is unknown."""
        return False

    # Trained model

    def check(self, lengths: Lengths) -> None:
        """Raises a ValueError for lengths that the task cannot train on."""
        if lengths.max_predictions_per_seq:
            raise ValueError(
                "max_predictions_per_seq must be 0 but for pre-training; got "
                f"{lengths.max_predictions_per_seq}. Leave it out."
            )

    def is_trainable(self, path: str) -> bool:
        """Whether the variable of this path is used by the task."""
        return True

    # The held-out evaluation and its baseline

    def baseline_counts(self, batch: Mapping[str, np.ndarray], config: "BertConfig") -> np.ndarray:
        """A vector about the labels that is added up over held-out batches."""
        return np.zeros(1)

    def baseline_loss(self, config: "BertConfig") -> float:
        """The loss of guessing all labels with equal probability; infinite if unknown."""
        return math.inf

    def held_out_metrics(self, sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:
        """`metrics`, and a baseline's; the best weights are those with the lowest `loss`.

        Args:
            sums: Vector of `sums` over all held-out examples.
            counts: The `baseline_counts` over all of them.
        """
        return self.metrics(sums)

    # Lines of text

    @property
    def progress(self) -> dict[str, str]:
        """{metric: format} of the progress line, after the loss."""
        return {}

    def format_metrics(self, metrics: Mapping[str, float]) -> str:
        """Held-out metrics as one line of text."""
        return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


class UpdateSettings(Protocol):
    """The settings of a run that its updates depend on; a `stages.Run` has them."""

    @property
    def task(self) -> Task:
        """What is learned."""

    @property
    def seed(self) -> int:
        """The seed that dropout follows from."""

    @property
    def dtype(self) -> str:
        """Type of the computation: `"fp32"`, `"bf16"` or `"fp16"`."""

    @property
    def reduce_dtype(self) -> str:
        """Type in which gradients are summed over the replicas."""

    @property
    def enable_xla(self) -> bool:
        """Whether TensorFlow compiles forward and backward pass with XLA."""

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of each replica per update."""

    @property
    def fixed_loss_scale(self) -> float | None:
        """The loss scale of float16; `None`: dynamic, or not used."""

    def learning_rate(self) -> "schedules.JoinedSchedules":
        """The rate as a function of the run's step."""


@dataclasses.dataclass(frozen=True)
class LoopState:
    """The state of a training loop apart from weights and moments; JSON values, for any engine.

    Attributes:
        sums: The task's sums since the last line of the log, without skipped updates.
        sums_since_saved: The same since the last checkpoint.
        loss_scale: The scale of the next update's loss.
        good_updates: Updates since the scale changed, or since the last that was skipped.
        skipped_in_a_row: Updates skipped since the last that was not.
        input_wait: Seconds for which steps waited for their batches since the last line of the log.
        stop_requests: 1 if this process was asked to stop. An engine returns the sum over all
            replicas, so that all workers stop after the same update.
        best_step: Step of the evaluation with the lowest held-out loss in this stage, whose weights
            are in `best/`; 0: none so far.
        best_loss: That loss; `None`: none so far.
        evaluated_on: The length and a digest of the examples of the last evaluation.
        evaluations_since_best: Number of evaluations since then.
        noise: Where the gradient noise scale is measured, `lamb_tf.gradient_noise`'s averages over
            the steps of this stage, for each variable that trains; empty: it is not.
    """

    sums: list[float]
    sums_since_saved: list[float]
    loss_scale: float = 1.0
    good_updates: int = 0
    skipped_in_a_row: int = 0
    input_wait: float = 0.0
    stop_requests: float = 0.0
    best_step: int = 0
    best_loss: float | None = None
    evaluated_on: str = ""
    evaluations_since_best: int = 0
    noise: list[list[float]] = dataclasses.field(default_factory=lambda: [[], []])

    def new_window(self) -> "LoopState":
        """The same, after a line of the log."""
        return dataclasses.replace(self, sums=[0.0] * len(self.sums), input_wait=0.0)

    def new_interval(self) -> "LoopState":
        """The same, after a checkpoint."""
        return dataclasses.replace(self, sums_since_saved=[0.0] * len(self.sums))

    def measuring_noise(self, variables: int, afresh: bool) -> "LoopState":
        """The same, with averages for a number of variables; 0: the noise is not measured.

        Args:
            afresh: Whether they start at zero even if there are some.
        """
        if not afresh and len(self.noise[0]) == variables:
            return self
        return dataclasses.replace(self, noise=[[0.0] * variables for _ in range(2)])

    def without_best(self) -> "LoopState":
        """The same, without a best evaluation: the next one is, if its loss is finite."""
        return dataclasses.replace(self, best_step=0, best_loss=None, evaluations_since_best=0)

    def evaluated(self, step: int, loss: float, examples: str) -> "LoopState":
        """The same, after an evaluation.

        A loss that is not finite is never the best. Losses on other examples do not compare, so
        these begin again.
        """
        before = self if examples == self.evaluated_on else LoopState([], [])
        best = math.inf if before.best_loss is None else before.best_loss
        is_better = math.isfinite(loss) and loss < best
        return dataclasses.replace(
            self,
            evaluated_on=examples,
            best_step=step if is_better else before.best_step,
            best_loss=float(loss) if is_better else before.best_loss,
            evaluations_since_best=0 if is_better else before.evaluations_since_best + 1,
        )


class Reductions(NamedTuple):
    """Number and bytes of the sums over all workers in one update."""

    count: int  # type: ignore[assignment]  # tuple.count is never called
    bytes: int


class TrainingLoop(Protocol):
    """Runs updates; the result does not depend on how they are divided into calls."""

    def __call__(self, batches: Any, first_step: int, steps: int, state: LoopState) -> LoopState:
        """Runs `steps` updates on the next batches of `Engine.feed`; returns a new state."""

    def reductions(self, batches: Any, state: LoopState) -> Reductions:
        """The `Reductions` of one update."""


class Engine(Protocol):
    """Where models and optimizers live, and how N updates run.

    `engines.tf_distribute.TfDistribute` and `engines.jax_mesh.JaxMesh` are the two of this package.
    The same run gives the same weights on either, to round-off, and each resumes the other's
    checkpoints.

    Attributes:
        num_replicas: Number of devices that share a global batch.
        shard: The part of each batch that this process reads, and the number of parts.
        is_chief: Whether this process writes checkpoints and logs.
        measures_input_wait: Whether the training loop measures how long steps wait for batches.
        compiles_each_shape: Whether `outputs` compiles a program for each shape of a batch.
    """

    num_replicas: int
    shard: tuple[int, int]
    is_chief: bool
    measures_input_wait: bool
    compiles_each_shape: bool

    def clone(self) -> "Engine":
        """An engine in the same place, without the errors that this one has recorded."""

    def scope(self) -> AbstractContextManager:
        """The context in which models and optimizers of this engine are made."""

    def training_loop(
        self, run: UpdateSettings, model: "keras.Model", optimizer: "keras.optimizers.Optimizer"
    ) -> Any:
        """A `TrainingLoop` of several updates per call."""

    def evaluation_step(self, task: Task, model: "keras.Model") -> Callable[[Any], Any]:
        """A function that returns the task's sums over the next batch of a `feed`."""

    def outputs(self, model: "keras.Model") -> Callable[[Mapping[str, np.ndarray]], Any]:
        """A function that runs a model over rows, without dropout.

        It takes {name: array of B rows}, B a multiple of `num_replicas`, and returns the model's
        outputs in their order: NumPy arrays of B rows. All workers call it with the same rows,
        compute a part each, and get all outputs.
        """

    def feed(
        self,
        open_batches: Callable[[int, int], Batches],
        steps: range,
        on_read: Callable[[dict[str, np.ndarray]], None] | None = None,
    ) -> Any:
        """The batches of `steps`, for the training loop or the evaluation step.

        Args:
            open_batches: Function of (shard index, number of shards) that returns a task's batches
                of that shard.
            steps: Range of steps.
            on_read: Called with each batch that this process has read, once.
        """

    def validate(self, batches: Batches) -> None:
        """Raises a ValueError for batches that `feed` would refuse."""

    def input_error(self, error: Exception) -> Exception | None:
        """The error of reading a batch that caused an error of a loop; `None`: another cause."""

    def sums_and_gradients(
        self,
        run: UpdateSettings,
        model: "keras.Model",
        batch: Mapping[str, np.ndarray],
        rows: np.ndarray,
        step: int,
        loss_scale: float,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The task's sums of a micro-batch and the gradients of its share of the loss, once more.

        Args:
            run: The run.
            model: Its model.
            batch: The step's global batch.
            rows: Numbers of the micro-batch's rows, or of some of them; see
                `loop_state.micro_batches`.
            step: The step.
            loss_scale: The loss scale at that step.
        """

    def all_gather(self, numbers: Sequence[float]) -> np.ndarray:
        """The numbers of all workers, one row per worker: float64. A barrier."""

    def to_host(self, variables: "Sequence[keras.Variable]") -> list[np.ndarray]:
        """The values of variables, gathered from their shards. All workers call it."""

    def runs_on_accelerator(self) -> bool:
        """Whether the replicas are on GPUs or TPUs."""

    def device_name(self) -> str:
        """The drivers' name of the device of a replica, as for `flops.peak_flops`; "": unknown."""

    def start_profile(self, folder: str) -> None:
        """Begins a profile for TensorBoard's profile page."""

    def stop_profile(self) -> None:
        """Ends and writes the profile."""
