"""``guardtower.audit`` of each model's first training step, then ``guardtower.monitor``, as its README says.

``audit`` wants a function that gives the loss, and calls ``backward`` itself. A script has none, so the audit
runs in a thread: its function waits until the script calls ``backward``, hands it that loss, and lets the
script go on with the gradients.
"""

import threading

import torch

from adapters.attaching import on_first_forward
from adapters.running import finding, once, run


class _Audit(threading.Thread):
    """An audit that waits for the script's loss."""

    def __init__(self, model, optimizer, inputs):
        super().__init__(daemon=True)
        self.model, self.optimizer = model, optimizer
        self.inputs = [x for x in inputs if isinstance(x, torch.Tensor)] or None
        self.waiting, self.given = threading.Event(), threading.Event()
        self.loss = self.error = self.report = None
        self.options, self.went_back = ((), {}), False
        self.start()
        while self.is_alive() and not self.waiting.wait(0.01):
            pass

    def run(self):
        import guardtower

        self.report = guardtower.audit(self.model, self.forward, optimizer=self.optimizer, inputs=self.inputs)

    def forward(self):
        self.waiting.set()
        self.given.wait()
        if self.error:
            raise self.error
        return self.loss

    def hand(self, loss=None, error=None, options=((), {})):
        """Give it the script's loss, or its error, and wait until it is done."""
        self.loss, self.error, self.options = loss, error, options
        self.given.set()
        self.join()

    def wants(self, loss):
        """Whether the loss depends on what the optimizer trains; a loss without a graph is anybody's."""
        if self.given.is_set():
            return False
        own = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        own |= {id(p) for p in self.model.parameters()}
        return loss.grad_fn is None or any(id(leaf) in own for leaf in _leaves(loss.grad_fn))


def _leaves(node):
    """Yield the tensors that a graph ends in."""
    nodes, seen = [node], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        nodes += [before for before, _ in node.next_functions]


def examine(script, *arguments):
    """Return the findings of audits and monitors, and how the script ended."""
    import guardtower
    from guardtower.monitor import NonFiniteActivation
    from guardtower.report import Severity

    audits, backward = [], torch.Tensor.backward

    def attach(model, optimizer, inputs):
        audits.append(_Audit(model, optimizer, inputs))

    def handed(loss, *args, **kwargs):
        current = threading.current_thread()
        if isinstance(current, _Audit):
            current.went_back = True
            args, kwargs = current.options
            return backward(loss, *args, **kwargs)
        audit = next((each for each in audits if each.wants(loss)), None)
        if audit is None:
            return backward(loss, *args, **kwargs)
        audit.hand(loss, options=(args, kwargs))
        guardtower.monitor(audit.model, on_nonfinite="raise").__enter__()
        return None if audit.went_back else backward(loss, *args, **kwargs)

    torch.Tensor.backward = handed
    on_first_forward(attach)
    ended = run(script)
    findings = []
    for audit in audits:
        unfinished = not audit.given.is_set()
        if unfinished:
            audit.hand(error=RuntimeError(ended or "the script never called backward"))
        for each in audit.report or ():
            if each.severity >= Severity.WARN and not (unfinished and not ended and each.check == "loss"):
                findings.append(finding(each.catalog_id or each.check, each.message))
    if ended.startswith(NonFiniteActivation.__name__):
        findings.append(finding("monitor", ended))
    return once(findings), ended
