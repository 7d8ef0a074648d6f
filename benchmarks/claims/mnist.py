"""MNIST as rows of pixels: from idx files, or downloaded by Keras."""

import gzip
import pathlib

import numpy as np

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
HEADER = {"images": 16, "labels": 8}  # bytes


def load(folder: str | None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images (n, 28, 28) and labels (n,) of `train` and `test`, as bytes.

    Args:
        folder: Has the four idx files, compressed or not; None: `keras.datasets` downloads them.

    Raises:
        ValueError: a file is missing, or cannot be downloaded.
    """
    if folder is None:
        import keras

        try:
            return dict(zip(FILES, keras.datasets.mnist.load_data()))
        except Exception as error:  # Keras raises Exception itself
            raise ValueError(f"{error}; give --mnist_dir, a folder with its four files.") from error
    return {split: _read_split(pathlib.Path(folder), *names) for split, names in FILES.items()}


def _read_split(folder, images, labels):
    pixels = _read(folder, images)[HEADER["images"] :]
    return pixels.reshape(-1, 28, 28), _read(folder, labels)[HEADER["labels"] :]


def _read(folder, name):
    packed, plain = folder / f"{name}.gz", folder / name
    if packed.exists():
        return np.frombuffer(gzip.decompress(packed.read_bytes()), np.uint8)
    if plain.exists():
        return np.frombuffer(plain.read_bytes(), np.uint8)
    raise ValueError(
        f"--mnist_dir={folder} has no {name}(.gz); give a folder with the four idx files of MNIST, "
        "or leave it out and Keras downloads them."
    )


def rows_of(images: np.ndarray, size: int) -> np.ndarray:
    """Images as `size` rows of `size` values in [0, 1]: means of squares of pixels.

    Args:
        images: Of shape (n, 28, 28).
        size: 28, 14 or another divisor of 28.
    """
    block = 28 // size
    squares = images.reshape(-1, size, block, size, block).astype("float32")
    return squares.mean((2, 4)) / 255


def splits(folder: str | None, size: int, train_examples: int, select: int, test: int) -> dict:
    """Three sets: `train`, `select` to choose by, `report` to report on.

    Args:
        folder: See `load`.
        size: See `rows_of`.
        train_examples: Number of the first training images, to train with.
        select: Number of the last training images, to choose by.
        test: Number of test images.

    Raises:
        ValueError: there are fewer training images than the first two sets need.
    """
    data = load(folder)
    (images, labels), (test_images, test_labels) = data["train"], data["test"]
    if train_examples + select > len(labels):
        raise ValueError(
            f"train_examples={train_examples:,} and select_examples={select:,} overlap: there are "
            f"{len(labels):,} training images."
        )
    parts = {
        "train": (images[:train_examples], labels[:train_examples]),
        "select": (images[-select:], labels[-select:]),
        "report": (test_images[:test], test_labels[:test]),
    }
    return {k: (rows_of(x, size), y.astype("int32")) for k, (x, y) in parts.items()}
