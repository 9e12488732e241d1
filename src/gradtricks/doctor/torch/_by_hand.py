"""Updates that no optimizer of PyTorch makes: the training's own code changes its weights."""

from collections.abc import Iterable

import torch

from gradtricks.doctor.history import History, Update
from gradtricks.doctor.operations import SourceLine
from gradtricks.doctor.reports import Cause


class ByHand:
    """Compares the leaves of one backward pass with what they are at the next."""

    def __init__(self) -> None:
        self.leaves: dict[torch.Tensor, tuple[torch.Tensor, torch.Tensor]] = {}  # values and gradient
        self.given: dict[torch.Tensor, torch.Tensor] = {}  # gradients before a pass
        self.updates = 0
        self.unzeroed: SourceLine | None = None  # where a gradient was added to one that had been used

    def before_pass(self, place: SourceLine | None) -> None:
        """See whether weights were changed since the pass before, and their gradients left as they were."""
        moved = [p for p, (values, _) in self.leaves.items() if not torch.equal(p.detach(), values)]
        self.updates += bool(moved)
        used = [(p.grad, self.leaves[p][1]) for p in moved if p.grad is not None]
        if any(bool(gradient.any()) and torch.equal(gradient, before) for gradient, before in used):
            self.unzeroed = self.unzeroed or place

        self.given = {p: p.grad.clone() for p in self.leaves if p.grad is not None}

    def after_pass(self, leaves: Iterable[torch.Tensor]) -> None:
        """Keep those leaves to which the pass has brought a gradient."""
        given = self.given
        gradients = {p: p.grad for p in leaves if p.grad is not None}
        found = {p: g for p, g in gradients.items() if not (p in given and torch.equal(given[p], g))}
        self.updates += bool(found and self.leaves) and self.leaves.keys().isdisjoint(found)  # made anew
        self.leaves = {p: (p.detach().clone(), gradient.clone()) for p, gradient in found.items()}

    def end(self, history: History) -> None:
        """Take the updates into the history of a training whose optimizers made none."""
        if self.updates and not (history.updates or history.skips):
            history.updates += [Update([], 1.0)] * self.updates
            if self.unzeroed:
                seen = "weights were changed by hand, and the new gradient was added to the one used for that"
                remedy = "set each gradient to None after the update, before the next backward pass"
                history.tell(Cause("never zeroed", (), seen, self.unzeroed, remedy))
