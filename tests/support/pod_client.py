"""A process that trains the runs of `test_pod`: the client of some hosts, or one device.

python pod_client.py JSON
"""

import dataclasses
import json
import sys
from pathlib import Path

import pod
import small_runs
import tensorflow as tf

from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.config import BertConfig
from official_bert.training.trainer import Trainer


def main(settings):
    config = small_runs.without_dropout(BertConfig(**settings["config"]))
    strategy = tf.distribute.get_strategy()
    if settings["hosts"]:
        strategy = pod.strategy(settings["hosts"])
    run = small_runs.Run(
        stages=(small_runs.SHORT, small_runs.LONG),
        input_files=(settings["train"],),
        config=config,
        optimizer=small_runs.Optimizer(),
    )
    options = dataclasses.replace(small_runs.QUIET, eval_files=(settings["held_out"],))
    trainer = Trainer(run, options, TfDistribute(strategy), settings["model_dir"])
    if settings["damaged"]:  # after the checks of this process
        path = Path(settings["damaged"])
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    trainer.train()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
