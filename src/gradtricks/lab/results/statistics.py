"""Statistics over runs: interquartile mean and bootstrap intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95
FEWEST_RUNS = 10  # with fewer, what is called 95% would hold the truth much less often
FEWEST_CUT = 4  # of fewer, an interquartile mean leaves out none: it is their mean
_ENDS = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2


@dataclass(frozen=True)
class Summary:
    """One result over several runs; NaN where there are too few finite values."""

    mean: float  # interquartile mean of the finite values
    low: float  # lower end of its interval, which takes `FEWEST_RUNS` finite values
    high: float  # upper end
    lowest: float  # of the finite values
    highest: float
    n: int  # finite values
    non_finite: int  # NaN or infinite; they aren't part of the mean, so say this number too


class Difference(NamedTuple):
    """A difference and its interval; as text ``+3 (+1 to +5)``, or ``+3`` where there is no interval."""

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval leaves out 0, and 0 where it doesn't."""
        return int(self.low > 0) - int(self.high < 0)

    def __format__(self, form: str) -> str:
        """Write the difference, and its interval unless that is NaN, each number as ``form`` says."""
        mean, low, high = (format(part, form).replace("-", "\N{MINUS SIGN}") for part in self)
        return mean if np.isnan(self.low) else f"{mean} ({low} to {high})"


def interquartile_mean(values: ArrayLike, axis: int = 0) -> Any:
    """Take the mean of the middle half: a quarter of the values, rounded down, is left out at each end.

    It depends less on single runs than the mean, and varies less from sample to sample than the median. NaN
    anywhere makes NaN, and so does no value; infinities count as very large and may so be left out. SciPy's
    ``trim_mean`` is the same for finite numbers.

    References:
        R. Agarwal and others, Deep Reinforcement Learning at the Edge of the Statistical Precipice, 2021.
    """
    array = np.moveaxis(np.asarray(values, dtype=np.float64), axis, 0)
    if not len(array):
        return np.full(array.shape[1:], np.nan)[()]
    cut = len(array) // FEWEST_CUT
    # NaN is sorted to the end, where the cut would hide it.
    unknown = np.isnan(array).any(axis=0)
    with np.errstate(invalid="ignore"):  # the mean of both infinities is NaN, and that is the answer
        middle = np.sort(array, axis=0)[cut : len(array) - cut].mean(axis=0)
    return np.where(unknown, np.nan, middle)[()]


def bootstrap_interval(values: ArrayLike, *, resamples: int = 2000) -> tuple[Any, Any]:
    """Estimate how far the interquartile mean may be off, from the differences between the runs.

    Runs are drawn again with replacement, and the interval holds the middle 95% of what their interquartile
    means then are (percentile bootstrap). With few runs that is too narrow: for normally distributed results,
    75 in 100 such intervals would hold the truth with three runs, for which the interval is their range, 92
    with ten, 95 with twenty. Equal values have equal intervals.

    Args:
        values: Runs along the first axis; other axes, such as steps of a curve, are resampled together.
        resamples: How often runs are drawn.

    Returns:
        The lower and the upper end, without the first axis; NaN with fewer than `FEWEST_RUNS` runs.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) < FEWEST_RUNS:
        nothing = np.full(array.shape[1:], np.nan)
        return nothing[()], nothing[()]
    draws = np.random.default_rng(0).integers(len(array), size=(resamples, len(array)))
    columns = array.reshape(len(array), -1).T  # one at a time: memory is finite
    means = np.stack([interquartile_mean(column[draws], axis=1) for column in columns], axis=1)
    with np.errstate(invalid="ignore"):  # where there is a NaN or both infinities, the answer is NaN
        low, high = np.quantile(means, _ENDS, axis=0)
    return low.reshape(array.shape[1:])[()], high.reshape(array.shape[1:])[()]


def summarize(values: ArrayLike) -> Summary:
    """Summarize one result, one number a run."""
    array = np.asarray(values, dtype=np.float64)
    kept = array[np.isfinite(array)]
    low, high = map(float, bootstrap_interval(kept))
    lowest, highest = (float(kept.min()), float(kept.max())) if kept.size else (np.nan, np.nan)
    mean = float(interquartile_mean(kept))
    return Summary(mean, low, high, lowest, highest, n=int(kept.size), non_finite=int(array.size - kept.size))


def paired_difference(
    these: Sequence[ArrayLike], those: Sequence[ArrayLike], *, resamples: int = 10_000, comparisons: int = 1
) -> Difference:
    """Compare two groups of configurations whose runs have the same seeds.

    Of each configuration the interquartile mean is taken, and of a group their mean. Runs of one seed are
    more alike than others, so seeds are drawn once for all configurations (percentile bootstrap).

    Args:
        these: Results of each configuration, ``[seeds]``, all of the same seeds in the same order.
        those: The same for the other group.
        resamples: How often seeds are drawn.
        comparisons: How many differences are looked at together. The interval is so much wider that with 95%
            all of theirs hold (Bonferroni).

    Returns:
        The difference, and the ends of its interval, which are NaN with fewer than `FEWEST_RUNS` seeds.
    """
    groups = [[np.asarray(results, dtype=np.float64) for results in group] for group in (these, those)]
    sizes = {len(results) for group in groups for results in group}
    if len(sizes) != 1:
        raise ValueError(f"every configuration must have the same seeds; got {sorted(sizes)} of them")
    mean, other = (np.mean([interquartile_mean(results) for results in group]) for group in groups)
    [n] = sizes
    if n < FEWEST_RUNS:
        return Difference(float(mean - other), np.nan, np.nan)
    drawn = np.random.default_rng(0).integers(n, size=(resamples, n))
    means, others = (
        np.mean([interquartile_mean(results[drawn], axis=1) for results in group], axis=0) for group in groups
    )
    tail = (1 - CONFIDENCE) / 2 / comparisons
    low, high = np.quantile(means - others, (tail, 1 - tail))
    return Difference(float(mean - other), float(low), float(high))
