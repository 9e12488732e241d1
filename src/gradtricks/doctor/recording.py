"""The base of all frameworks' recorders: it numbers tensors, and keeps the operations that made them."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradtricks.doctor.operations import BAD, Operation, Outside, calling_line


class BaseRecorder:
    """Numbers tensors and keeps operations; the framework's recorder says when."""

    kind: type  # of a tensor
    status: Callable[[Any], str]  # of a tensor: "fine", "zero everywhere", "nan" or "inf"
    cotangent = 1.0  # of each output, when it is differentiated

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.outside: dict[int, Outside] = {}
        self.overflown: set[int] = set()
        self.integers: set[int] = set()
        self.host = self.last = 0  # the host's memory is one large tensor, number 0

    @abstractmethod
    def read(self, tensor: Any) -> int:
        """Return the number of a tensor as it is now."""

    def next_number(self) -> int:
        """Count one more tensor."""
        self.last += 1
        return self.last

    def judge(self, number: int, tensor: Any) -> None:
        """Note whether a tensor is finite."""
        if self.status(tensor) in BAD:
            self.overflown.add(number)

    def export(self, name: str, inputs: list[int], result: Any) -> None:
        """Record that values left for Python or NumPy."""
        whole = isinstance(result, int | np.integer) and not isinstance(result, bool)
        self.integers |= {int(result)} if whole else set()
        inputs, self.host = [*inputs, self.host], self.next_number()
        self.operations.append(Operation(name, calling_line(), tuple(inputs), (self.host,), reason="numpy"))

    def read_output(self, leaf: Any) -> int:
        """Return the number of what the function returned."""
        if isinstance(leaf, self.kind):
            return self.read(leaf)
        if isinstance(leaf, int | float | np.ndarray | np.generic):
            return self.host
        raise TypeError(
            f"function must return tensors; got {type(leaf).__name__}; remedy: return what is differentiated"
        )


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put something in the place of an attribute, for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
