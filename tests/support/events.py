"""TensorBoard's event files, read back as TensorBoard reads them."""

import peers


def steps(folder, name):
    """The steps of a curve in the order in which TensorBoard shows them, repeated ones too."""
    module = "tensorboard.backend.event_processing.plugin_event_accumulator"
    keep_all = dict.fromkeys(("scalars", "histograms"), 0)
    make = peers.load(module).EventAccumulator
    accumulator = make(str(folder), tensor_size_guidance=keep_all)
    accumulator.Reload()
    return [event.step for event in accumulator.Tensors(name)]


def read(folder):
    """What the event files of a folder hold.

    Returns:
        {name: {step: value}} of the curves, and {name: {step: number of values}} of the histograms.
    """
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = peers.load(name).EventAccumulator(str(folder), {"tensors": 0})
    accumulator.Reload()
    make_array = peers.load("tensorboard.util.tensor_util").make_ndarray
    curves, histograms = {}, {}
    for tag in accumulator.Tags()["tensors"]:
        found = {e.step: make_array(e.tensor_proto) for e in accumulator.Tensors(tag)}
        if all(value.ndim == 0 for value in found.values()):
            curves[tag] = {step: float(value) for step, value in found.items()}
        else:  # rows of left edge, right edge, count
            histograms[tag] = {step: value[:, 2].sum() for step, value in found.items()}
    return curves, histograms
