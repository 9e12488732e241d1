"""Lit cells of Atari screens, their centres, means of blocks, sums over lists of cells: compiled loops."""

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


@numba.njit(nogil=True, cache=True)
def _is_lit(line: NDArray[np.uint8], threshold: int) -> np.bool_:
    brightest = np.uint8(0)
    for x in range(len(line)):  # a loop that the compiler turns into few instructions
        brightest = max(brightest, line[x])
    return brightest > threshold


@numba.njit(nogil=True, cache=True)
def find_centres(
    court: NDArray[np.uint8], edges: NDArray[np.int64], threshold: int, centres: NDArray[np.float32]
) -> None:
    """Write how many pixels in each band of columns are brighter than ``threshold``, and their centre.

    Args:
        court: ``[N, height, width]``, luminance.
        edges: ``[B+1]``, first columns of the bands, and the width.
        threshold: Luminance of the brightest background.
        centres: ``[N, B, 3]``, zeros; gets the number of pixels, and the mean of their columns and rows.
    """
    for screen in range(len(court)):
        lit_rows = [y for y in range(court.shape[1]) if _is_lit(court[screen, y], threshold)]
        for band in range(len(edges) - 1):
            left, count, columns, rows = edges[band], 0, 0, 0
            for y in lit_rows:
                line = court[screen, y, left : edges[band + 1]]
                if _is_lit(line, threshold):
                    for x in range(len(line)):
                        lit = line[x] > threshold
                        count += lit
                        columns += (left + x) * lit
                        rows += y * lit
            if count:
                centres[screen, band, 0] = count
                centres[screen, band, 1] = columns / count
                centres[screen, band, 2] = rows / count


@numba.njit(nogil=True, cache=True)
def average_blocks(screens: NDArray[np.uint8], height: int, width: int, means: NDArray[np.uint8]) -> None:
    """Write the rounded mean luminance of each block of pixels.

    Args:
        screens: ``[N, rows, columns]``.
        height: Rows of a block; divides the screen's.
        width: Columns of a block; divides the screen's.
        means: ``[N, rows / height, columns / width]``, written over.
    """
    for screen in range(len(screens)):
        for row in range(means.shape[1]):
            sums = np.zeros(screens.shape[2], np.uint16)
            for y in range(row * height, (row + 1) * height):
                for x in range(len(sums)):  # a loop that the compiler turns into few instructions
                    sums[x] += screens[screen, y, x]
            for column in range(means.shape[2]):
                total = sums[column * width : (column + 1) * width].sum()
                means[screen, row, column] = (2 * total + height * width) // (2 * height * width)


@numba.njit(nogil=True, cache=True)
def sum_rows(
    rows: NDArray[np.float64], cells: NDArray[np.int32], none: int, sums: NDArray[np.float64]
) -> None:
    """Add up the rows of the cells in each list.

    Args:
        rows: ``[C, U]``.
        cells: ``[N, P]``, numbers of rows.
        none: Stands for no cell.
        sums: ``[N, U]``, added to.
    """
    for screen in range(len(cells)):
        for cell in cells[screen]:
            if cell != none:
                for unit in range(rows.shape[1]):
                    sums[screen, unit] += rows[cell, unit]
