"""Lit cells of Atari screens, their centres, blocks that differ, sums over such lists: compiled loops."""

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
def list_differing_blocks(
    screens: NDArray[np.uint8],
    background: NDArray[np.uint8],
    height: int,
    width: int,
    found: NDArray[np.int32],
) -> None:
    """Write number and sum of each block of pixels whose sum isn't that of the background.

    Args:
        screens: ``[N, rows, columns]``.
        background: ``[rows, columns]``.
        height: Rows of a block; divides the screen's.
        width: Columns of a block; divides the screen's.
        found: ``[N, P, 2]``, filled from the left; what is left over isn't touched, what has no room is lost.
    """
    rows, columns = background.shape
    sums = np.empty(columns, np.int32)
    for screen in range(len(screens)):
        count = 0
        for row in range(rows // height):
            differing = 0
            for y in range(row * height, (row + 1) * height):
                for x in range(columns):  # a loop that the compiler turns into few instructions
                    differing |= screens[screen, y, x] ^ background[y, x]
            if not differing:
                continue
            sums[:] = 0
            for y in range(row * height, (row + 1) * height):
                for x in range(columns):
                    sums[x] += np.int32(screens[screen, y, x]) - np.int32(background[y, x])
            for column in range(columns // width):
                total = sums[column * width : (column + 1) * width].sum()
                if total != 0 and count < found.shape[1]:
                    found[screen, count] = row * (columns // width) + column, total
                    count += 1


@numba.njit(nogil=True, cache=True)
def sum_rows(
    rows: NDArray[np.float64],
    numbers: NDArray[np.int32],
    shares: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add up rows, each times its share; one whose share is zero isn't looked up.

    Args:
        rows: ``[C, U]``.
        numbers: ``[N, P]``, of rows.
        shares: ``[N, P]``.
        sums: ``[N, U]``, added to.
    """
    for screen in range(len(numbers)):
        for place in range(numbers.shape[1]):
            share, number = shares[screen, place], numbers[screen, place]
            if share != 0:
                for unit in range(rows.shape[1]):
                    sums[screen, unit] += share * rows[number, unit]
