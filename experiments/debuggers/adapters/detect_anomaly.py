"""``torch.autograd.set_detect_anomaly(True)`` before the script, as its documentation says.

A finding is its warning, with the traceback of the forward operation, and the error that ends the training.
"""

import warnings

import torch

from adapters.running import finding, frames, once, run


def examine(script, *arguments):
    """Return what anomaly mode warned of, and how the script ended."""
    torch.autograd.set_detect_anomaly(True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ended = run(script)
    findings = []
    for warning in caught:
        words = str(warning.message)
        if words.startswith("Error detected in"):
            head = words.split("Traceback of forward call")[0]
            findings.append(finding("anomaly", f"{head} {ended}", frames(words)))
    if not findings and "returned nan values" in ended:
        findings.append(finding("anomaly", ended))
    return once(findings), ended
