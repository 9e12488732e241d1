"""Filters over the whole screen, before an agent's first layer: their weights, and what they do in NumPy."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_shape

Array = NDArray[np.floating]

PICTURE = (42, 40, 2)  # rows, columns, and the screens after and before a decision
STEP = 2  # pixels from one place of a filter to the next
# Name, side, filters of the layer.
LAYERS = (("filters", 5, 16), ("more_filters", 3, 32))


def average(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Average the whole of screens ``[N, 1, 210, 160]`` over five rows by four columns, ``[N, 42, 40]``."""
    rows, columns = PICTURE[:2]
    check_shape("frames", frames.shape, (None, 1, 5 * rows, 4 * columns), "grey Atari screens")
    sums = frames.reshape(-1, rows, 5, columns, 4).sum(axis=2, dtype=np.uint16)
    return np.rint(sums.mean(axis=3) / 5).astype(np.uint8)


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights: kernels ``[side, side, inputs, filters]`` and their biases."""
    inputs, found = PICTURE[-1], dict[str, tuple[int, ...]]()
    for name, side, count in LAYERS:
        found |= {name: (side, side, inputs, count), f"{name}_bias": (count,)}
        inputs = count
    return found


def num_features() -> int:
    """Say how many numbers come out, over all places."""
    rows, columns = PICTURE[:2]
    for _, side, _ in LAYERS:
        rows, columns = (rows - side) // STEP + 1, (columns - side) // STEP + 1
    return rows * columns * LAYERS[-1][-1]


def draw_filters(rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """Draw kernels by He's rule, and biases of 0."""
    return {
        name: rng.normal(0, (2 / np.prod(shape[:-1])) ** 0.5, shape) if len(shape) > 1 else np.zeros(shape)
        for name, shape in shapes().items()
    }


def apply_filters(weights: Mapping[str, Array], pictures: NDArray[np.uint8]) -> Array:
    """Return features ``[N, F]`` of pictures ``[N, 42, 40, 2]``, which are standardised one by one."""
    hidden = pictures.astype(weights["filters"].dtype)
    hidden = hidden - hidden.mean(axis=(1, 2), keepdims=True)
    hidden = hidden / np.sqrt(1 + np.square(hidden).mean(axis=(1, 2), keepdims=True))
    for name, side, _ in LAYERS:
        places = np.lib.stride_tricks.sliding_window_view(hidden, (side, side), (1, 2))[:, ::STEP, ::STEP]
        hidden = np.einsum("nrciyx,yxio->nrco", places, weights[name], optimize=True)
        hidden = np.maximum(hidden + weights[f"{name}_bias"], 0)
    return hidden.reshape(len(hidden), -1)
