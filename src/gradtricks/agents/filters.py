"""Filters over the whole screen, before an agent's first layer: their weights, and what they do in NumPy."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_shape

Array = NDArray[np.floating]

PICTURE = (42, 40, 2)  # rows, columns, and the screens after and before a decision
BLOCK = (5, 4)  # rows and columns of the screen that become one pixel
CONTRAST = 32  # luminance that becomes one
STEP = 2  # pixels from one place of a filter to the next
# Name, side, filters of the layer.
LAYERS = (("filters", 5, 16), ("more_filters", 3, 32))


def average(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Average the whole of screens ``[N, 1, 210, 160]`` over blocks of 5 by 4 pixels, ``[N, 42, 40]``."""
    from gradtricks.agents.pong_loops import average_blocks  # a compiler is dear to import

    (rows, columns, _), (height, width) = PICTURE, BLOCK
    check_shape("frames", frames.shape, (None, 1, rows * height, columns * width), "grey Atari screens")
    means = np.empty((len(frames), rows, columns), np.uint8)
    average_blocks(frames[:, 0], height, width, means)
    return means


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights: the background, kernels ``[side, side, inputs, filters]``, biases."""
    found: dict[str, tuple[int, ...]] = {"background": PICTURE[:2]}
    inputs = PICTURE[-1]
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
    """Draw kernels by He's rule, with biases of 0 and a dark background."""
    return {
        name: rng.normal(0, (2 / np.prod(shape[:-1])) ** 0.5, shape) if len(shape) > 2 else np.zeros(shape)
        for name, shape in shapes().items()
    }


def apply_filters(weights: Mapping[str, Array], pictures: NDArray[np.uint8]) -> Array:
    """Return features ``[N, F]`` of pictures ``[N, 42, 40, 2]``: what isn't background, and what changed."""
    after, before = np.moveaxis(pictures.astype(weights["filters"].dtype), -1, 0)
    hidden = np.stack([after - weights["background"], after - before], axis=-1) / CONTRAST
    for name, side, _ in LAYERS:
        places = np.lib.stride_tricks.sliding_window_view(hidden, (side, side), (1, 2))[:, ::STEP, ::STEP]
        hidden = np.einsum("nrciyx,yxio->nrco", places, weights[name], optimize=True)
        hidden = np.maximum(hidden + weights[f"{name}_bias"], 0)
    return hidden.reshape(len(hidden), -1)
