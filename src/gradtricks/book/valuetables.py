"""Tables on a sweep's page: what each configuration came to, in Markdown."""

from collections.abc import Sequence
from typing import Any

from gradtricks.book.numbers import number_text
from gradtricks.lab.results.captions import summary_columns
from gradtricks.lab.results.grouping import Found, Word, text_of
from gradtricks.lab.results.markup import code, escape

MOST_ROWS = 100


def values_table(found: Found) -> str:
    """Write what a figure shows as a table in Markdown: the first hundred configurations, a line each."""
    axes = found.axes[: len(found.parts[0].values)]
    columns = {
        escape(axis.name): [value_text(part.values[place]) for part in found.parts]
        for place, axis in enumerate(axes)
    }
    columns |= summary_columns(found, number_text)
    table = markdown_table([list(columns), *zip(*columns.values())][: MOST_ROWS + 1])
    left_out = len(found.parts) - MOST_ROWS
    return f"{table}\n\nAnd {left_out} more, which the downloads hold." if left_out > 0 else table


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Write a table of cells that are Markdown; the first row is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def value_text(value: Any) -> str:
    """Write a parameter's value in Markdown: numbers and words as they are, anything else as code."""
    text = text_of(value)
    return escape(text) if value is None or isinstance(value, bool | int | float | Word) else code(text)
