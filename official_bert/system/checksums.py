"""The checksum of TensorFlow's file formats."""

import google_crc32c
import numpy as np

_MASK_DELTA = 0xA282EAD8


def masked_crc(data: bytes | np.ndarray, *more: bytes) -> int:
    """crc32c of the bytes one after another, rotated and shifted as in TensorFlow's files.

    Args:
        data: Bytes, or an array of them.
        *more: Those that follow.
    """
    crc = google_crc32c.value(data)
    for part in more:
        crc = google_crc32c.extend(crc, part)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
