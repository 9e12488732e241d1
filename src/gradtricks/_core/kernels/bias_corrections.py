"""Adam's bias corrections, looked up instead of computed, since each element has a count of its own."""

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


def table_length(beta: float, dtype: Any) -> int:
    """Return how many bias corrections differ from 1, and two more.

    Args:
        beta: Decay of a moment, within [0, 1).
        dtype: Of the corrections, floating-point.

    Returns:
        Length of the table; huge for a decay that is extremely near to 1.
    """
    return 2 + (math.ceil(math.log(np.finfo(dtype).eps / 4) / math.log(beta)) if beta else 0)


@cache
def table(beta: float, dtype: Any) -> NDArray[np.floating]:
    """Tabulate ``1 - beta**t``. From the end of the table on, it rounds to 1.

    Args:
        beta: Decay of a moment, within [0, 1).
        dtype: Of the corrections, floating-point.

    Returns:
        An array, to be read at ``t >= 1``.
    """
    step = np.arange(table_length(beta, dtype))
    step[0] = 1  # no element is corrected before its first step
    # 1 - beta**t itself would lose four digits at t = 1 in float32.
    corrections = (-np.expm1(step * (math.log(beta) if beta else -math.inf))).astype(dtype)
    corrections.flags.writeable = False
    return corrections
