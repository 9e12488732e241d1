"""A diagnosis of a history."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from gradtricks.doctor.causes import CAUSES
from gradtricks.doctor.history import History
from gradtricks.doctor.reports import Diagnosis


@contextmanager
def noted(history: History, remedies: Mapping[str, str]) -> Iterator[None]:
    """Add to an error what was found until then."""
    try:
        yield
    except Exception as error:  # whatever a step raises, which is raised again
        found = diagnosed(history, remedies)
        if not found.healthy:
            error.add_note(f"Until then: {found}")
        raise


def diagnosed(history: History, remedies: Mapping[str, str]) -> Diagnosis:
    """Say what is wrong, of what was seen; ``remedies`` are for each kind, in the framework's words."""
    found = [cause for find in CAUSES for cause in find(history)]
    told = [cause if cause.remedy else replace(cause, remedy=remedies[cause.kind]) for cause in found]
    return Diagnosis(tuple(told), len(history.updates), len(history.skips))
