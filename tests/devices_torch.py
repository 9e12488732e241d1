"""A device without a GPU: tensors of "meta" compute shapes only, and nothing may leave them.

Autograd won't take fake CUDA tensors where PyTorch was built without CUDA; to the tricks one device is as
good as another.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WAITS = {"_local_scalar_dense", "equal", "nonzero", "masked_select"}
_COPIES = {"_to_copy", "copy_", "where"}  # of these a CPU's scalar among the arguments is copied


class OneDevice(TorchDispatchMode):
    """Refuse what waits for a device: its values on the CPU, and copies between the two; count the rest."""

    operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Raise AssertionError, or call the operation."""
        self.operations += not func.is_view
        result = func(*args, **kwargs or {})
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        name, devices = func.overloadpacket.__name__, {x.device.type for x in tensors}
        waits = (name in _WAITS and devices != {"cpu"}) or (name in _COPIES and len(devices) > 1)
        leaves = waits or torch.Tag.cudagraph_unsafe in func.tags
        assert not leaves, f"{func} goes to the CPU"
        return result


class _Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and func is not torch.ops.aten._local_scalar_dense.default:
            self.names.append(str(func))
        return func(*args, **kwargs or {})


def calls_of(called):
    """Return the names of the operations that a function calls, without views and numbers that are read."""
    with _Calls() as calls:
        called()
    return calls.names


def on_a_device(called, arrays, inputs):
    """Call a function on a device and take the gradients of its first tensors; raise where it waits."""
    tensors = [torch.as_tensor(array).to("meta") for array in arrays]
    followed = [x.requires_grad_() for x in tensors[:inputs] if x.is_floating_point()]
    with OneDevice():
        value = called(*tensors)
        if value.requires_grad:
            torch.autograd.grad(value.sum(), followed, allow_unused=True)
    assert value.device.type == "meta"
    return value
