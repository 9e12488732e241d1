"""``torchmortem.Autopsy`` as its README has it, with ``step(loss=...)`` after each update.

What is only information doesn't count.
"""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from adapters.attaching import on_first_forward
from adapters.running import finding, once, run


def examine(script, *arguments):
    """Return the findings of the autopsy, and how the script ended."""
    from torchmortem import Autopsy
    from torchmortem.types import Severity

    autopsies, losses = [], [float("nan")]
    backward = torch.Tensor.backward

    def noted(loss, *args, **kwargs):
        if loss.numel() == 1:
            losses.append(loss.item())
        return backward(loss, *args, **kwargs)

    def attach(model, optimizer, inputs):
        autopsy = Autopsy(model, optimizer=optimizer)
        autopsy.attach()
        autopsies.append((autopsy, optimizer))

    def stepped(optimizer, args, kwargs):
        for autopsy, whose in autopsies:
            if whose is optimizer:
                autopsy.step(loss=losses[-1])

    torch.Tensor.backward = noted
    register_optimizer_step_post_hook(stepped)
    on_first_forward(attach)
    ended = run(script)
    findings = []
    for autopsy, _ in autopsies:
        autopsy.detach(is_complete=not ended)
        report = autopsy.get_report()
        for each in report.findings:
            if each.severity >= Severity.WARNING:
                findings.append(finding(each.detector, f"{each.title}: {each.summary}"))
        findings += [finding(each.rule_name, f"{each.title}: {each.summary}") for each in report.insights]
    return once(findings), ended
