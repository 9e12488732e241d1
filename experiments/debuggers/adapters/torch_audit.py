"""``torch_audit.autopatch``, the "zero-touch mode" of its README, at every step.

What is only information doesn't count, nor do its hints about speed on a GPU.
"""

from adapters.attaching import on_first_forward
from adapters.running import finding, once, run

HINTS = {"TA200", "TA201", "TA203"}  # alignment, memory layout, precision


def examine(script, *arguments):
    """Return the findings of all steps, and how the script ended."""
    from torch_audit import autopatch
    from torch_audit.core import Severity

    auditors = []

    def attach(model, optimizer, inputs):
        auditors.append(
            autopatch(
                model,
                optimizer=optimizer,
                every_n_steps=1,
                reporters=[],
                fail_level="ERROR",
                ignore_rules=HINTS,
                run_static=True,
                run_init=True,
            )
        )

    on_first_forward(attach)
    ended = run(script)
    findings = []
    for auditor in auditors:
        for each in auditor.finish().findings:
            if each.severity >= Severity.WARN:
                place = ".".join(filter(None, (each.module_path, each.entity)))
                findings.append(finding(each.rule_id, f"{place}: {each.message}" if place else each.message))
    return once(findings), ended
