"""Leaves of PyTorch that get a gradient, and that no model is known to have."""

from collections.abc import Container, Iterable, Iterator

import torch

from gradtricks.doctor.operations import SourceLine
from gradtricks.doctor.torch._late import LateRecorder


class Strangers:
    """Keeps the parameters among them, and where they are used."""

    def __init__(self) -> None:
        self.uses: dict[torch.Tensor, SourceLine | None] = {}

    def find(
        self, leaves: Iterable[torch.Tensor], names: Container[torch.Tensor], recorder: LateRecorder
    ) -> list[torch.Tensor]:
        """Return which of some leaves are such."""
        found = [tensor for tensor in leaves if tensor not in names]
        for tensor in found:
            if isinstance(tensor, torch.nn.Parameter) and tensor not in self.uses:
                number = recorder.read(tensor)
                uses = [o.place for o in recorder.operations if number in o.inputs]
                self.uses[tensor] = uses[-1] if uses else None
        return found

    def places(self, known: Container[torch.Tensor]) -> Iterator[SourceLine]:
        """Yield where parameters are used that are still unknown."""
        yield from (place for tensor, place in self.uses.items() if place and tensor not in known)
