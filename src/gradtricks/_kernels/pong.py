"""What is lit on Atari screens, as lists of cells."""

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(nogil=True, cache=True)
def list_lit_cells(
    court: NDArray[np.uint8], cell_height: int, cell_width: int, threshold: int, cells: NDArray[np.int32]
) -> None:
    """Write the number of each cell that holds a pixel brighter than ``threshold``, row by row.

    Args:
        court: ``[N, height, width]``, luminance.
        cell_height: Pixels; divides the height.
        cell_width: Pixels; divides the width.
        threshold: Luminance of the brightest background.
        cells: ``[N, P]``, filled from the left; what is left over isn't touched, what finds no room is lost.
    """
    height, width = court.shape[1:]
    brightest = np.empty(width, np.uint8)
    for screen in range(len(court)):
        count = 0
        for row in range(height // cell_height):
            brightest[:] = court[screen, row * cell_height]
            for y in range(row * cell_height + 1, (row + 1) * cell_height):
                for x in range(width):  # a loop that the compiler turns into few instructions
                    brightest[x] = max(brightest[x], court[screen, y, x])
            for column in range(width // cell_width):
                lit = False
                for x in range(column * cell_width, (column + 1) * cell_width):
                    lit |= brightest[x] > threshold
                if lit and count < cells.shape[1]:
                    cells[screen, count] = row * (width // cell_width) + column
                    count += 1
