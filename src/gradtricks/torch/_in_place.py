"""Steps of Adam under masks, in place: one pass on a CPU, one launch on a GPU, else small tensors as one."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch

from gradtricks._core import kernels
from gradtricks.torch._adam_state import SHAPED
from gradtricks.torch._addresses import addresses_of, is_plain, parallel_region
from gradtricks.torch._joining import join, write
from gradtricks.torch._launching import Adam, can_launch, fits_a_launch, launch
from gradtricks.torch._masked_optimizer import check_state
from gradtricks.torch._tensors import at_least_float32

_JOINED = 2**24  # elements of small tensors that are stepped as one
_LOOPED = torch.float32, torch.float64

Given = tuple[torch.Tensor, torch.Tensor, dict[str, Any]]
Row = TypeVar("Row", list[Any], Given)


def step_in_place(
    adam: Adam,
    given: list[Given],
    group: dict[str, Any],
    found_inf: torch.Tensor | None,
) -> None:
    """Take a group's step as ``adam``, which is `masked_adam_step`, takes that of each parameter.

    ``given``: each parameter with its gradient and state. ``found_inf``: where it isn't 0, nothing changes;
    it isn't looked at.
    """
    # NumPy's numbers would stay as narrow as they are, so that 1 - lr * weight_decay may be 1.
    beta_1, beta_2, epsilon, weight_decay = map(float, (*group["betas"], group["eps"], group["weight_decay"]))
    # What is added to the gradient, and what shrinks the parameter by itself; one of them is 0.
    l2, decay = (0.0, weight_decay) if group["decoupled_weight_decay"] else (weight_decay, 0.0)
    options = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "l2": l2, "weight_decay": decay}
    options["maximize"] = group["maximize"]
    rate = group["lr"].reshape(()) if isinstance(group["lr"], torch.Tensor) else group["lr"]
    by_tensors = found_inf is not None or torch.compiler.is_compiling()
    loops: dict[torch.dtype, list[tuple[list[int], torch.Tensor, torch.Tensor]]] = {}
    others: dict[tuple[bool, object], list[list[Any]]] = {}
    for parameter, gradient, state in given:
        largest = state["max_exp_avg_sq"] if group["amsgrad"] else None
        mask, step = state["trainable_mask"], state["step"]
        shaped = [state["exp_avg"], state["exp_avg_sq"], largest, state.get("own_steps"), mask]
        row = None if by_tensors else _row_of(parameter, gradient, shaped, step)
        if row is not None:
            loops.setdefault(parameter.dtype, []).append(row)
            continue
        check_state(SHAPED, state, parameter)
        tensors = [parameter, gradient, *shaped]
        kind = fits_a_launch(tensors, step), _kind_of(tensors, step)
        others.setdefault(kind, []).append([*tensors, step])
    for dtype, looped in loops.items():
        _in_one_pass(dtype, looped, rate, options)
    for (fits, _), rows in others.items():
        steps, is_finite = [row[-1] for row in rows], None
        taken: int | torch.Tensor = 1
        if found_inf is not None:
            is_finite = found_inf.to(rows[0][0].device, non_blocking=True) == 0
            taken = is_finite.to(steps[0].dtype)
        if fits and can_launch(_by_tensors, adam, rows, is_finite):
            launch(rows, rate, options, is_finite)
        else:
            for some in portions(rows):
                _by_tensors(adam, some, rate, options, is_finite)
        torch._foreach_add_(steps, taken)


def _row_of(
    parameter: torch.Tensor, gradient: torch.Tensor, shaped: list[Any], step: torch.Tensor
) -> tuple[list[int], torch.Tensor, torch.Tensor] | None:
    # What the loop takes of a parameter, and what must live until it has ended; None where it can't.
    dtype, shape = parameter.dtype, parameter.shape
    if dtype not in _LOOPED or shaped[0].dtype != dtype:  # the loop can't in half precision
        return None
    if step.dtype != torch.float32 or not step.is_cpu or not gradient.is_cpu or not is_plain(gradient):
        return None
    addresses = addresses_of([parameter, *shaped], shape)
    if addresses is None:
        return None
    at_gradient = addresses_of([gradient], shape) if gradient.dtype == dtype else None
    if at_gradient is None:  # one with gaps, or of another dtype, is copied
        gradient = gradient.to(dtype).resolve_neg().contiguous()
        at_gradient = [gradient.data_ptr()]
    row = [parameter.numel(), addresses[0], *at_gradient, *addresses[1:], step.data_ptr()]
    return row, parameter, gradient


def _in_one_pass(
    dtype: torch.dtype,
    rows: list[tuple[list[int], torch.Tensor, torch.Tensor]],
    rate: float | torch.Tensor,
    options: dict[str, Any],
) -> None:
    kernels.masking.masked_adam_steps(
        [row for row, _, _ in rows],
        str(dtype).removeprefix("torch."),
        learning_rate=float(rate),
        threads=torch.get_num_threads(),
        parallel=parallel_region(),
        **options,
    )
    # Autograd must notice that the parameters were edited.
    torch.autograd.graph.increment_version([parameter for _, parameter, _ in rows])


def _kind_of(tensors: list[Any], step: torch.Tensor) -> object:
    parameter, *_ = known = [t for t in tensors if t is not None]
    if torch.compiler.is_compiling() or not all(map(is_plain, known)):
        return id(parameter)
    taken = int(step) if step.is_cpu else None
    return parameter.device, taken, tuple(t if t is None else t.dtype for t in tensors)


def portions(rows: list[Row]) -> Iterator[list[Row]]:
    """Part rows, each with a parameter in front, since tensors that are joined are copied."""
    some: list[Row] = []
    for row in rows:
        if some and sum(each[0].numel() for each in some) + row[0].numel() > _JOINED:
            yield some
            some = []
        some.append(row)
    yield some


def _by_tensors(
    adam: Adam,
    rows: list[list[Any]],
    rate: float | torch.Tensor,
    options: dict[str, Any],
    is_finite: torch.Tensor | None,
) -> None:
    *columns, masks, steps = zip(*rows, strict=True)
    mask = join(masks) if is_finite is None else join(masks) & is_finite
    edited = [None if column[0] is None else join(column) for column in columns]
    _replace(adam, [*edited, mask], _count_of(columns[0], steps), rate, **options)
    if len(rows) > 1:
        for column, new in zip(columns, edited, strict=True):
            if new is not None and column is not columns[1]:
                write(new, column)


def _count_of(parameters: Sequence[torch.Tensor], steps: Sequence[torch.Tensor]) -> torch.Tensor:
    device = parameters[0].device
    if torch.compiler.is_compiling() or (len(steps) == 1 and steps[0].device == device):
        return steps[0].int()
    if steps[0].is_cpu:
        return torch.full((), int(steps[0]), device=device)  # without a copy, which would wait
    return join([step.int().expand(p.numel()) for step, p in zip(steps, parameters, strict=True)])


def _replace(
    adam: Adam,
    tensors: list[Any],
    count: torch.Tensor,
    rate: Any,
    *,
    l2: float,
    maximize: bool,
    **options: Any,
) -> None:
    parameter, gradient, m, v, v_max, own_steps, trainable_mask = tensors
    gradient = -gradient if maximize else gradient
    if l2:
        gradient = at_least_float32(gradient) + l2 * at_least_float32(parameter)
    arguments = parameter, gradient, m, v, count if own_steps is None else own_steps, trainable_mask
    new = adam(*arguments, v_max=v_max, learning_rate=rate, **options)
    for old, value in zip((parameter, m, v, own_steps, v_max), new):
        if old is not None:
            old.copy_(value)
