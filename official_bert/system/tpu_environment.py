"""Environment variables that TensorFlow and JAX read before they look for a Cloud TPU."""

import glob
from collections.abc import MutableMapping

LOCAL = "local"
# The chips of a TPU VM: v2 to v4, then later generations.
_CHIPS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")


def prepare(
    tpu: str, environment: MutableMapping[str, str], chips: tuple[str, ...] = _CHIPS
) -> None:
    """Sets what is missing in the environment. Call it before TensorFlow is imported.

    For this host's TPU, TensorFlow loads libtpu as a plug-in device. A TPU that has a name belongs
    to other hosts, and this process must not look for chips of its own.

    Args:
        tpu: The name or address of a TPU, or `LOCAL`.
        environment: `os.environ`; what is set there already stays.
        chips: Globs of the devices that a TPU VM has.

    Raises:
        ValueError: if the TPU is to be this host's, which has none or lacks libtpu.
    """
    settings = _of_this_host(chips) if tpu == LOCAL else {"TPU_LOAD_LIBRARY": "0"}
    for name, value in settings.items():
        environment.setdefault(name, value)


def look_for_no_slice_without_chips(
    environment: MutableMapping[str, str], chips: tuple[str, ...] = _CHIPS
) -> None:
    """Keeps libtpu, where it is installed on a host without TPU, from asking for a slice.

    It asks Google's metadata server, and the query is slow to time out. A host with chips must ask:
    it may be one of several, and would take itself for the only one.

    Args:
        environment: `os.environ`, before JAX is imported; what is set there already stays.
        chips: Globs of the devices that a TPU VM has.
    """
    if not _has(chips):
        environment.setdefault("TPU_SKIP_MDS_QUERY", "1")


def _has(chips):
    return any(map(glob.glob, chips))


def _of_this_host(chips):
    if not _has(chips):
        raise ValueError(
            f"No TPU could be reached as --tpu={LOCAL!r}: this host has none (looked for "
            f"{' and '.join(chips)}). Give the name of a TPU; without a TPU, rehearse "
            "estimates a run."
        )
    try:
        import libtpu
    except ImportError:
        raise ValueError(
            f"--tpu={LOCAL} needs libtpu, not installed here: install the extra [tpu]."
        ) from None
    return {
        "PJRT_DEVICE": "TPU",
        "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": libtpu.get_library_path(),
    }
