"""Steps of Adam under masks, in place: one pass on a CPU, compiled on a GPU, small tensors as one."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import torch

from gradtricks._core import kernels
from gradtricks.torch._adam_state import SHAPED
from gradtricks.torch._addresses import addresses_of, is_plain, parallel_region
from gradtricks.torch._joining import join, write
from gradtricks.torch._masked_optimizer import check_state
from gradtricks.torch._tensors import at_least_float32

_LARGE = 2**16  # elements from which on a GPU a compiled step is worth its compilation

_JOINED = 2**24  # elements of small tensors that are stepped as one
_LOOPED = torch.float32, torch.float64

Adam = Callable[..., Any]
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
    joined: dict[object, list[list[Any]]] = {}
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
        joined.setdefault(_kind_of(tensors, step), []).append([*tensors, step])
    for dtype, rows in loops.items():
        _in_one_pass(dtype, rows, rate, options)
    for others in joined.values():
        for some in portions(others):
            _by_tensors(adam, some, rate, options, found_inf)


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
    found_inf: torch.Tensor | None,
) -> None:
    *columns, masks, steps = zip(*rows, strict=True)
    mask = join(masks)
    taken: int | torch.Tensor = 1
    count = _count_of(columns[0], steps)
    if found_inf is not None:
        is_finite = found_inf.to(count.device, non_blocking=True) == 0
        mask, taken = mask & is_finite, is_finite.to(steps[0].dtype)
    edited = [None if column[0] is None else join(column) for column in columns]
    tensors = [*edited, mask]
    if _is_worth_compiling(tensors):
        if not isinstance(rate, torch.Tensor):  # numbers that change would be compiled anew
            rate = torch.full((), rate, dtype=torch.float64, device=count.device)
        _program(adam, **options)(_flat(tensors), count, rate)
    else:
        _replace(adam, tensors, count, rate, **options)
    if len(rows) > 1:
        for column, new in zip(columns, edited, strict=True):
            if new is not None and column is not columns[1]:
                write(new, column)
    torch._foreach_add_(steps, taken)


def _count_of(parameters: Sequence[torch.Tensor], steps: Sequence[torch.Tensor]) -> torch.Tensor:
    device = parameters[0].device
    if torch.compiler.is_compiling() or (len(steps) == 1 and steps[0].device == device):
        return steps[0].int()
    if steps[0].is_cpu:
        return torch.full((), int(steps[0]), device=device)  # without a copy, which would wait
    return join([step.int().expand(p.numel()) for step, p in zip(steps, parameters, strict=True)])


def _is_worth_compiling(tensors: list[Any]) -> bool:
    parameter, *_ = known = [t for t in tensors if t is not None]
    if torch.compiler.is_compiling() or not all(map(is_plain, known)) or not parameter.is_cuda:
        return False
    gaps = not all(t.is_contiguous() for t in known if t is not tensors[1])
    return not gaps and parameter.numel() >= _LARGE and _can_compile()


@cache
def _program(adam: Adam, **options: Any) -> Callable[..., None]:
    # Isolated, since PyTorch compiles a function for eight situations, and all options share this one.
    return torch.compile(  # type: ignore[call-overload]
        partial(_replace, adam, **options), dynamic=True, isolate_recompiles=True
    )


@cache
def _can_compile() -> bool:
    try:
        torch.compile(torch.neg)(torch.ones(2, device="cuda"))
    except RuntimeError as error:  # no Triton, no C compiler, no headers of Python
        said = f"MaskedAdam is slow here, since PyTorch can't compile for the GPU: {error}"
        warnings.warn(said, stacklevel=2)
        return False
    return True


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


def _flat(tensors: list[Any]) -> list[Any]:
    return [None if t is None else t.detach().resolve_neg().contiguous().view(-1) for t in tensors]
