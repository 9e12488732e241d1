"""The whole screen as a short list: which blocks of it differ from its background, and by how much."""

import numpy as np
from numpy.typing import NDArray

BLOCK = (5, 4)  # rows and columns of the screen that become one number
NUM_BLOCKS = 42 * 40
NO_BLOCK = 2 * NUM_BLOCKS  # in an observation of two screens
MOST_BLOCKS = 64  # of a screen that are listed; paddles, ball and a new score had 51 at most
CONTRAST = 128 * BLOCK[0] * BLOCK[1]  # sum over a block that becomes one


def most_frequent(screens: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Find each pixel's most frequent luminance in screens ``[N, 210, 160]``; of several the darkest."""
    shades = np.unique(screens)
    counts = np.stack([(screens == shade).sum(axis=0) for shade in shades])
    frequent: NDArray[np.uint8] = shades[counts.argmax(axis=0)]
    return frequent


def list_blocks(screens: NDArray[np.uint8], background: NDArray[np.uint8]) -> NDArray[np.int32]:
    """List the blocks of screens ``[N, 210, 160]`` that differ from a background ``[210, 160]``.

    Returns:
        ``[N, 64, 2]``, numbers of blocks, row by row from the top left, and the sum of the differences in
        them; `NUM_BLOCKS` and 0 where there are no more, and where there are more, these are lost.
    """
    from gradtricks.agents.pong_loops import list_differing_blocks  # a compiler is dear to import

    found = np.zeros((len(screens), MOST_BLOCKS, 2), np.int32)
    found[..., 0] = NUM_BLOCKS
    list_differing_blocks(screens, background, *BLOCK, found)
    return found


def number_apart(before: NDArray[np.int32], after: NDArray[np.int32]) -> NDArray[np.int32]:
    """Join two screens' lists, ``[N, 128, 2]``; the earlier one's blocks are numbered behind the other's."""
    earlier, later = before.copy(), after.copy()
    earlier[..., 0] += NUM_BLOCKS  # which makes none of none
    later[..., 0][later[..., 0] == NUM_BLOCKS] = NO_BLOCK
    return np.concatenate([later, earlier], axis=1)
