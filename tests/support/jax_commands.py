"""Commands and `official_bert.load` on JAX, in one process that has no TensorFlow.

python tests/support/jax_commands.py CALLS.json

makes all calls of a list, one after another: {"command": …, "arguments": […]}, {"load": FOLDER,
"predict": [inputs]}, or {"load": FOLDER, "embed": {arguments}}.
"""

import importlib
import json
import pathlib
import subprocess
import sys

import in_process


def run(calls, folder, devices=2):
    """The result of each call: an exit code, or predictions as JSON values."""
    import jax_training  # which imports Keras

    path = folder / "calls.json"
    path.write_text(json.dumps(calls))
    environment = jax_training.environment(devices)
    del environment["KERAS_BACKEND"]  # which JAX alone decides
    done = subprocess.run(
        [sys.executable, __file__, str(path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def make(call):
    if "load" in call:
        import official_bert

        model = official_bert.load(call["load"])
        if "embed" in call:
            return model.embed(**call["embed"]).tolist()
        return model.predict(call["predict"])
    module = importlib.import_module(f"official_bert.{call['command']}")
    settings = {"run_classifier": "Classify", "run_squad": "Squad", "run_tagger": "Tag"}
    settings |= {"run_pretraining": "Pretrain", "extract_features": "ExtractFeatures"}
    settings["commands.fill_blanks"] = "FillBlanks"
    return in_process.call(module, getattr(module, settings[call["command"]]), call["arguments"])


if __name__ == "__main__":
    sys.modules["tensorflow"] = None
    print(json.dumps([make(call) for call in json.loads(pathlib.Path(sys.argv[1]).read_text())]))
