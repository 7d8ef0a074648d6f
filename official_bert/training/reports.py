"""Reports of a run: progress lines, JSON lines, curves (TensorBoard, trackers); their timing."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

import keras
import numpy as np

from lamb_tf import gradient_noise, telemetry
from official_bert.optimizers import optimizers
from official_bert.system.places import Place
from official_bert.training import flops
from official_bert.training.stage_model import part_of
from official_bert.training.trackers import Trackers
from official_bert.training.training_log import Summaries, TrainingLog

if TYPE_CHECKING:
    from official_bert.protocols import Engine, LoopState, Reductions
    from official_bert.stages import LoopOptions, Run, Stage

Done = TypeVar("Done")


class Reports:
    """The reports of one run.

    A line of `train_log.jsonl` follows from the run and the step, except `timing`, which also
    depends on the machine.
    """

    def __init__(self, run: "Run", options: "LoopOptions", engine: "Engine", model_dir: Place):
        self._run = run
        self._engine, self._is_chief = engine, engine.is_chief
        self._peak = flops.peak_of(engine, run.dtype)
        self._flops_per_update = [
            flops.step_flops(run.config, stage, run.optimizer.freeze) for stage in run.stages
        ]
        self._measures_input_wait = engine.measures_input_wait
        self._learning_rate = run.learning_rate()
        self.training_log = TrainingLog(model_dir / "train_log.jsonl", writes=self._is_chief)
        shows = options.tensorboard and self._is_chief
        self._summaries = Summaries(model_dir / "summaries" if shows else None)
        self.trackers = Trackers(options.report_to if self._is_chief else (), model_dir)
        self._workers = engine.shard[1]
        self._communication = {}
        self._last: dict | None = None  # the last line of the log on updates

    def log(self, text: str) -> None:
        if self._is_chief:
            print(text, flush=True)

    def rewind(self, step: int) -> None:
        """Drops later steps from log and summaries: a resumed run writes them again."""
        self.training_log.rewind(step)
        self._summaries.rewind(step)

    def saved(self, prefix: str, suspect: str | None, exploded: float | None, advice: str) -> None:
        """Reports a checkpoint, with a warning if its run has gone astray.

        Args:
            suspect: The fault of its weights, or `None`.
            exploded: The mean loss since the checkpoint before, if it has exploded, or `None`.
            advice: The remedy then.
        """
        self.log(f"saved {prefix}")
        if suspect:
            self.log(f"warning: training has probably diverged: in {prefix}, {suspect}. {advice}")
        elif exploded is not None:
            self.log(
                "warning: training has probably diverged: the mean loss since the last checkpoint "
                f"is {exploded:.4g}. {advice}"
            )

    def change(self, step: int, change: Mapping) -> None:
        """Reports an intended change: an entry of `model_directory.Claim.change`."""
        self.training_log.write(kind="change", step=step, **change)
        instead_of = f" instead of {change['instead_of']}" if "instead_of" in change else ""
        differences = "; ".join(change["differences"])
        self.log(
            f"resuming from {change['resumed_from'] or 'the start'}{instead_of}, "
            f"{f'settings changed: {differences}' if differences else 'with the same settings'}; "
            f"next learning rate {float(self._learning_rate(step)):.3g}"
        )

    def communication(self, reductions: "Reductions") -> None:
        """Reports the network traffic of a step of this stage."""
        self._communication = {"reductions": reductions.count, "reduced_bytes": reductions.bytes}
        sent = 2 * (self._workers - 1) / self._workers * reductions.bytes
        self.log(
            f"communication per step: {reductions.bytes / 1e6:,.1f} MB over {self._workers} "
            f"workers in {reductions.count} all-reduces; with a ring, each worker sends "
            f"{sent / 1e6:,.1f} MB"
        )

    def train(
        self,
        step: int,
        stage_index: int,
        state: "LoopState",
        optimizer: keras.optimizers.Optimizer,
        pace: "StepTimer",
    ) -> None:
        """Reports the updates since the last line, which `pace` has watched."""
        run = self._run
        metrics = run.task.metrics(state.sums)
        rate = float(self._learning_rate(step - 1))  # of the last update
        gradient_norm, layers = self._telemetry(optimizer)
        stage = run.stages[stage_index]
        noise = self._noise(state, stage.batch_size, optimizer)
        skipped = int(self._engine.to_host([optimizer.skipped_updates])[0])
        if self._last is None:
            self._last = {"step": 0, "skipped_updates": 0} | self.training_log.last("train")
        timing = self._timing(stage_index, state, pace, step - self._last["step"])
        line: dict = {"kind": "train", "step": step, "stage": stage_index, **metrics}
        line |= {"learning_rate": rate, "gradient_norm": gradient_norm}
        line |= {"loss_scale": state.loss_scale, "skipped_updates": skipped}
        if ratios := _ratios(layers):
            line["trust_ratios"] = ratios
        line |= {**noise, "timing": timing}
        self.training_log.write(**line)
        scalars = {**metrics, "learning_rate": rate, "gradient_norm": gradient_norm}
        if noise:
            scalars |= {"noise_scale": noise["noise_scale"], "batch_size": stage.batch_size}
            scalars |= {f"noise_scale/{name}": x for name, x in noise["noise_scales"].items()}
        self._summarise("train", step, scalars | timing, layers)
        left = updates_left(run.stages, self._flops_per_update, stage_index, step)
        self.log(self._progress(line, left / pace.steps_per_second))
        self._last = line

    def evaluation(self, step: int, stage_index: int, metrics: Mapping[str, float]) -> None:
        self.training_log.write(kind="eval", step=step, stage=stage_index, **metrics)
        self._summarise("eval", step, metrics)
        self.log(f"held out: {self._run.task.format_metrics(metrics)}")

    def _progress(self, line, seconds):
        """A line of the log as shown on the screen, with the time that is left."""
        numbers = {"loss": "loss {:.3f}"} | self._run.task.progress
        parts = [
            text.format(line[name])
            for name, text in numbers.items()
            if math.isfinite(line.get(name, math.nan))  # all were skipped, or no such task
        ]
        if skipped := line["skipped_updates"] - self._last["skipped_updates"]:
            parts.append(f"{skipped} skipped")
        total = self._run.total_steps
        parts += [
            f"rate {line['learning_rate']:.2e}",
            f"{line['timing']['examples_per_second']:,.0f} examples/s",
            f"{_duration(seconds)} left",
        ]
        start = f"step {line['step']:>{len(str(total))}}/{total}  stage {line['stage'] + 1}"
        return "  ".join([start, *parts])

    def _telemetry(self, optimizer):
        """The norm of the last gradient, and the metrics of each layer, if there are any."""
        if optimizers.has_trust_ratios(optimizer):
            return telemetry.gradient_norm(optimizer), telemetry.read(optimizer)
        return float(self._engine.to_host([optimizer.gradient_norm])[0]), {}

    def _noise(self, state, batch_size, optimizer):
        """The noise scale in examples, and that of each part of the model, if it is measured."""
        if not state.noise[0]:
            return {}
        micro_batches = self._run.gradient_accumulation_steps * self._engine.num_replicas
        averages = np.array(state.noise)
        parts = [part_of(variable.path) for variable in optimizer.trainable_variables]
        groups = {part: averages[:, [p == part for p in parts]] for part in dict.fromkeys(parts)}
        scales = {
            name: gradient_noise.scale(of) * batch_size / micro_batches
            for name, of in {"": averages, **groups}.items()
        }
        return {"noise_scale": scales.pop(""), "noise_scales": scales}

    def _timing(self, index, state, pace, updates):
        stage = self._run.stages[index]
        per_second = pace.steps_per_second * self._flops_per_update[index]
        tokens = state.sums[self._run.task.sums.index("tokens")] / updates  # without padding
        timing = {
            "seconds": pace.seconds,
            "examples_per_second": pace.steps_per_second * stage.batch_size,
            "tokens_per_second": pace.steps_per_second * tokens,
            "model_flops_per_second": per_second,
            **self._communication,
        }
        if self._measures_input_wait:
            timing["input_wait_seconds"] = state.input_wait
        return timing | ({"share_of_peak": per_second / self._peak} if self._peak else {})

    def _summarise(self, kind, step, scalars, layers=None):
        """Curves, and of adapted variables (whose ratio is not 1) one each and a histogram."""
        ratios = {path: r for path, r in _ratios(layers or {}).items() if r not in (0, 1)}
        curves = scalars | {f"trust_ratio/{path}": ratio for path, ratio in ratios.items()}
        finite = {name: value for name, value in curves.items() if math.isfinite(value)}
        histograms = {"trust_ratios": list(ratios.values())} if ratios else {}
        self._summaries.write(kind, step, finite, histograms)
        self.trackers.write(kind, step, finite)


def _duration(seconds):
    """`95.2` → `"1m 35s"`."""
    seconds = round(seconds)
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{value}{unit}" for value, unit in parts[:2])


def _ratios(layers):
    return {path: layer["trust_ratio"] for path, layer in layers.items()}


class StepTimer:
    """Steps/s since the last report, excluding the first (compiling) call of a stage.

    That call also traces and compiles. If there is no other, it counts.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds  # of training, over all processes that have worked on the run
        self.steps_per_second = math.nan
        self._steps, self._since = 0, 0.0  # since the last report
        self._is_warm = False

    def measure(self, work: Callable[[], Done], steps: int) -> Done:
        """Calls `work()`, which makes `steps` updates, and returns its result."""
        started = time.perf_counter()
        done = work()
        seconds = time.perf_counter() - started
        self.seconds += seconds
        if self._is_warm:
            self._steps, self._since = self._steps + steps, self._since + seconds
            self.steps_per_second = self._steps / self._since
        else:
            self.steps_per_second = steps / seconds
        self._is_warm = True
        return done

    def restart(self) -> None:
        """Starts counting again, after a report."""
        self._steps, self._since = 0, 0.0

    def skip_next(self) -> None:
        """Excludes the next call from the rate: it is the first of a stage."""
        self.restart()
        self._is_warm = False


class Profiler:
    """Has the engine's profiler watch some updates, for TensorBoard's profile page.

    A context manager: however the work inside ends, a profile that was begun is written.

    Args:
        window: First and last update, or `None`.
    """

    def __init__(self, window: tuple[int, int] | None, folder: Place, engine: "Engine"):
        self._engine = engine
        self._first, self._last = window or (math.inf, math.inf)
        self._folder = folder
        self._is_on = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def steps_to_border(self, step: int) -> float:
        """Updates from `step` to where the profile begins or ends, if it is still to come."""
        return min((b - step for b in (self._first - 1, self._last) if b > step), default=math.inf)

    def at(self, step: int) -> None:
        """Call when `step` updates are done, before the next ones."""
        if not self._is_on and self._first - 1 <= step < self._last:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._engine.start_profile(str(self._folder))
            self._is_on = True
        if step >= self._last:
            self._stop()

    def _stop(self):
        if self._is_on:
            self._is_on = False
            self._engine.stop_profile()


def updates_left(stages: "Sequence[Stage]", costs: Sequence[float], index: int, step: int) -> float:
    """The rest of a run after `step` steps, as a number of steps of the stage `index`.

    Args:
        costs: FLOPs of an update of each stage.
    """
    end = sum(stage.steps for stage in stages[: index + 1])
    work = [stage.steps * cost for stage, cost in zip(stages, costs, strict=True)]
    return end - step + sum(work[index + 1 :]) / costs[index]
