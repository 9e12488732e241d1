"""Naming what is wrong with the gradients of a training.

A healthy step is ``w <- w - rate * f(dL/dw)``: once for each weight, with this step's gradient alone, where
``0 < |dL/dw| < infinity`` and the sum isn't rounded away. What breaks any of this is named, with its line.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradtricks._core.checks import check_callable, check_integer
from gradtricks.doctor.diagnosing import diagnosed, noted
from gradtricks.doctor.reports import Diagnosis
from gradtricks.doctor.torch._watching import Watch
from gradtricks.doctor.watching import as_several
from gradtricks.torch._modes import in_transform

REMEDIES = {
    "backward fails": "read the line that failed; explain_gradient(function, inputs) follows one output",
    "not finite, data": "look at the batch: (~batch.isfinite()).any(); or at weights that were loaded",
    "not finite, backward": "keep arguments off 0 before a root, a norm, a logarithm or a division",
    "kept graph": "detach what is kept from step to step: self.hidden = [h.detach() for h in self.hidden]",
    "dead term": "torch.autograd.grad(..., create_graph=True), or gradtricks.torch.input_gradients, for the "
    "gradient of a gradient; a differentiable stand-in for what only counts",
    "broadcast": "give both the same shape: predictions.squeeze(1), or targets.unsqueeze(1)",
    "logits expected": "give the loss what goes into the softmax or sigmoid",
    "log-probabilities expected": "give it log_softmax(logits, dim=1); or give the logits to cross_entropy",
    "spread of one": "take the deviation over all that is to be compared, such as a group of rewards",
    "state not carried": "give each call the state that the call before returned: h = cell(x, h)",
    "drifting statistics": "backbone.eval() after each model.train()",
    "padding not 0": "set the row to 0 after initializing: weight.data[padding_idx] = 0",
    "underflow": "scale the loss with torch.amp.GradScaler, or use bfloat16",
    "skipped updates": "mend what makes these gradients NaN or infinite; the scaling only leaves them out",
    "no backward pass": "call loss.backward() in the step",
    "cut by a checkpoint": "torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)",
    "not in the optimizer": "make the optimizer after the model is complete: Adam(model.parameters())",
    "not registered": "keep layers in torch.nn.ModuleList, and tensors in ParameterList, not in a list",
    "twice in the optimizer": "give each parameter once: Adam(dict.fromkeys(parameters))",
    "never updated": "call optimizer.step() after loss.backward()",
    "never zeroed": "call optimizer.zero_grad() once for each update, before loss.backward()",
    "nothing to update": "make trainable what is to be trained, and give the optimizer that",
    "scaled gradients used": "let scaler.step(optimizer) take the step, which undoes the scaling",
    "rate dies": "step the schedule once an epoch, or count its length in updates",
    "identical units": "begin with random weights, as layers do by themselves",
    "zeroed too early": "call zero_grad() before loss.backward(), or after optimizer.step()",
    "clip of nothing": "clip between loss.backward() and optimizer.step(); give it list(model.parameters())",
    "clip unused": "clip the gradients of the parameters that the next update holds",
    "clip after the update": "clip between loss.backward() and optimizer.step()",
    "clip before unscaling": "call scaler.unscale_(optimizer) before the clip",
    "frozen but moving": "gradtricks.torch.MaskedAdam; or leave it out of the optimizer",
    "learning rate of 0": "look at optimizer.param_groups[0]['lr'] and the schedule",
    "rounded away": "keep the weights in float32, and compute in 16 bits with torch.autocast",
    "training in evaluation mode": "call model.train() after each evaluation",
    "evaluation in training mode": "call model.eval() before an evaluation, and model.train() after it",
    "coupled samples": "use GroupNorm or LayerNorm, or model.eval() while you take gradients of samples",
    "parts not averaged": "gradtricks.torch.accumulate_gradients, or divide each loss by their number",
    "parts of unequal weight": "gradtricks.torch.accumulate_gradients, or sums divided by all elements",
    "vanishing": "residual connections, normalization, another activation or initialization",
    "exploding": "a smaller initialization, normalization, or clip_grad_norm_",
    "zero factor": "advantages are 0 where all rewards of a group are equal: draw more answers, from prompts "
    "that are solved sometimes; a mask must leave something",
    "loss of 0": "nothing to mend where advantages are meant to cancel, as in GRPO: watch the reward",
}


def diagnose(
    step: Callable[[], Any],
    model: torch.nn.Module | Iterable[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    *,
    num_steps: int = 3,
) -> Diagnosis:
    """Watch some training steps; say what is wrong with their gradients, where, and what to do.

    The steps are part of the training: weights, state of the optimizer and random numbers come out as they
    would have, bit for bit, where nothing is compiled. Compiled code runs eagerly meanwhile. All tensors of a
    step are kept until its end, so it takes more memory. The sums that end in the loss are differentiated
    once more, and where a gradient is missing, zero everywhere or not finite, all of the graph.

    Args:
        step: Takes one whole training step with an optimizer, without arguments: forward, backward, update.
        model: The modules whose gradients are judged.
        optimizer: Those that the step uses.
        num_steps: How often the step is called; some things show in the second only.

    Returns:
        What was found, in the order in which it should be mended; print it. A backward pass that fails is
        found too; the steps that were left aren't taken then.

    Raises:
        Exception: The step raised it; a note says what was found until then.
        RuntimeError: Called within a compiled function or a `torch.func` transform.

    References:
        What it finds is collected from trackers: ``tests/doctor/issues_torch.py`` names the threads.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def step():
        ...     model(torch.ones(4, 2)).pow(2).mean().backward()
        ...     optimizer.step()
        >>> diagnose(step, model, optimizer).kinds
        ('never zeroed',)
    """
    if torch.compiler.is_compiling() or in_transform():
        raise RuntimeError(
            "diagnose must be called eagerly; got a call within torch.compile or a torch.func transform; "
            "remedy: call it outside, around the whole step"
        )
    check_callable("step", step)
    check_integer("num_steps", num_steps, low=1)
    watch = Watch(as_several("optimizer", optimizer, torch.optim.Optimizer))
    watch.add_all(as_several("model", model, torch.nn.Module))
    with noted(watch.history, REMEDIES), watch:
        for _ in range(num_steps):
            step()
            watch.end_step()
    return diagnosed(watch.history, REMEDIES)
