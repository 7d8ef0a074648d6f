"""A process that trains the runs of `test_pod`: the client of some hosts.

python pod_client.py JSON
"""

import dataclasses
import json
import sys
import types
from pathlib import Path

import pod
import small_runs

from official_bert.model.config import BertConfig


def run_and_options(corpus):
    """The run of a corpus: anything with `config`, `train` and `held_out`."""
    config = small_runs.without_dropout(corpus.config)
    run = small_runs.make_run(corpus, config=config)
    return run, dataclasses.replace(small_runs.QUIET, eval_files=(corpus.held_out,))


def main(settings):
    settings["config"] = BertConfig(**settings["config"])
    run, options = run_and_options(types.SimpleNamespace(**settings))
    trainer = small_runs.begin(run, settings["model_dir"], options, pod.strategy(settings["hosts"]))
    if settings["damaged"]:  # after the checks of this process
        path = Path(settings["damaged"])
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    trainer.train()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
