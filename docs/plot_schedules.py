"""Draws the figures of docs/schedules.md: `python docs/plot_schedules.py`. Needs matplotlib."""

from pathlib import Path

import keras
import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lamb_tf.schedules import (
    JoinedSchedules,
    WarmupConstant,
    WarmupCosineDecay,
    WarmupExponentialDecay,
    WarmupMultiStepDecay,
    WarmupPolynomialDecay,
    legw,
)


def main(folder=Path(__file__).parent):
    shapes = {
        "polynomial, power 1": WarmupPolynomialDecay(5e-3, 15_625, 3_125),
        "polynomial, power 2": WarmupPolynomialDecay(5e-3, 15_625, 3_125, power=2),
        "polynomial, power 0.5": WarmupPolynomialDecay(5e-3, 15_625, 3_125, power=0.5),
        "cosine": WarmupCosineDecay(5e-3, 15_625, 3_125),
        "exponential": WarmupExponentialDecay(5e-3, 3_125, 0.5, 3_125),
        "multi-step": WarmupMultiStepDecay(5e-3, [8_000, 12_000], 0.3, 3_125),
        "constant": WarmupConstant(5e-3, 3_125),
    }
    draw(
        folder / "schedules_shapes.png",
        shapes,
        15_626,
        "Peak 5e-3, warm-up 3,125 of 15,625 updates",
    )

    forms = {
        'decay_from="warmup_end"': WarmupPolynomialDecay(1.0, 100, 20),
        'decay_from="start"': WarmupPolynomialDecay(1.0, 100, 20, decay_from="start"),
        "start_warmup_step=10": WarmupPolynomialDecay(1.0, 100, 20, start_warmup_step=10),
        "start_warmup_step=-10": WarmupPolynomialDecay(1.0, 100, 20, start_warmup_step=-10),
    }
    draw(
        folder / "schedules_warmup.png",
        forms,
        101,
        "Where decay and warm-up start (20 of 100 updates)",
    )

    nvidia = [
        (WarmupPolynomialDecay(6e-3, 7_038, round(0.2843 * 7_038), power=0.5), 7_038),
        (WarmupPolynomialDecay(4e-3, 1_563, round(0.128 * 1_563), power=0.5), 1_563),
    ]
    draw(
        folder / "schedules_stages.png",
        {"batch 65,536,\nthen 32,768": JoinedSchedules(nvidia)},
        7_038 + 1_563,
        "Re-warm-up: two stages, NVIDIA's rates",
    )

    def linear(peak, warmup_steps, steps_per_epoch):
        return WarmupPolynomialDecay(peak, round(25 * steps_per_epoch), warmup_steps)

    mnist = {
        f"batch {batch}": legw(batch, 128, 0.1, 0.2, 60_000, decay=linear)
        for batch in (128, 512, 2_048, 8_192)
    }
    draw(
        folder / "schedules_legw.png",
        mnist,
        1_000,
        "LEGW: rate ∝ √batch, 94 updates of warm-up for every batch",
    )


def draw(path, schedules, steps, title):
    figure, axes = plt.subplots(figsize=(8.6, 3.4), dpi=100)
    for label, schedule in schedules.items():
        shown = getattr(schedule, "total_steps", steps)
        axes.plot(
            keras.ops.convert_to_numpy(schedule(np.arange(min(steps, shown + 1)))), label=label
        )
    axes.set(xlabel="update", ylabel="learning rate", title=title)
    axes.set_xlim(0, steps)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    main()
