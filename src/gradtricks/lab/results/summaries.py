"""What a sweep found as rows: for each configuration a mean, its interval and the number of runs."""

from collections.abc import Callable, Sequence

from gradtricks.lab.results.grouping import Curve, Found, Group

_SPACE = "\N{NO-BREAK SPACE}"


def summary_columns(found: Found, number: Callable[[float], str]) -> dict[str, list[str]]:
    """Write what was found under one name; the parameters come beside it, from `Found.axes` and its parts.

    Args:
        found: Numbers, or lists of numbers.
        number: Writes one, and nothing for NaN.

    Returns:
        Cells by the name of their column. There is no interval where there are too few runs for any, and no
        column for what never happened.
    """
    curves = [part for part in found.parts if isinstance(part, Curve)]
    if curves:
        return _of_curves(curves, number)
    return _of_numbers([part for part in found.parts if isinstance(part, Group)], number)


def _of_numbers(groups: Sequence[Group], number: Callable[[float], str]) -> dict[str, list[str]]:
    found = [group.summary for group in groups]
    return {
        "interquartile mean": [number(s.mean) for s in found],
        **_intervals("95 % interval", [(s.low, s.high) for s in found], number),
        "lowest": [number(s.lowest) for s in found],
        "highest": [number(s.highest) for s in found],
        "runs": [str(s.n) for s in found],
        **_counted("failed", [group.failed for group in groups]),
        **_counted("without it", [group.missing for group in groups]),
        **_counted("not finite", [s.non_finite for s in found]),
    }


def _of_curves(curves: Sequence[Curve], number: Callable[[float], str]) -> dict[str, list[str]]:
    ends = [(curve.low[-1], curve.high[-1]) if curve.n else (float("nan"),) * 2 for curve in curves]
    return {
        "length": [str(len(curve.mean)) for curve in curves],
        "mean at its start": [number(curve.mean[0]) if curve.n else "" for curve in curves],
        "mean at its end": [number(curve.mean[-1]) if curve.n else "" for curve in curves],
        **_intervals("95 % interval there", ends, number),
        "runs": [str(curve.n) for curve in curves],
        **_counted("cut to this length", [curve.cut for curve in curves]),
        **_counted("left out", [curve.lost for curve in curves]),
    }


def _intervals(
    name: str, ends: Sequence[tuple[float, ...]], number: Callable[[float], str]
) -> dict[str, list[str]]:
    cells = [f"{number(low)}{_SPACE}to{_SPACE}{number(high)}" if low == low else "" for low, high in ends]
    return {name: cells} if any(cells) else {}


def _counted(name: str, counts: Sequence[int]) -> dict[str, list[str]]:
    return {name: [*map(str, counts)]} if any(counts) else {}
