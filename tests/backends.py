"""One face for both frameworks, so that each test is written once."""

import importlib
import os
import shutil
import sysconfig
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np

# What a stem's tests want of PyTorch's compiler: all gradient rules are traced, and the graph runs as it is.
# Code for it is generated in the tests of the two edits; that takes a C++ compiler and Python's headers.
TRACER = "aot_eager"
_CAN_COMPILE = shutil.which("c++") and Path(sysconfig.get_path("include"), "Python.h").exists()
COMPILER = "inductor" if _CAN_COMPILE else TRACER


class TorchBackend:
    """PyTorch, as the tests see it."""

    name = "torch"

    def __init__(self):
        self.framework = importlib.import_module("torch")
        self.tricks = importlib.import_module("gradtricks.torch")

    def tensor(self, array):
        """Make a tensor."""
        return self.framework.as_tensor(np.array(array))

    def array(self, tensor):
        """Read a tensor."""
        tensor = tensor.detach()
        return (tensor.float() if tensor.dtype.itemsize == 2 else tensor).numpy()

    def cast(self, tensor, dtype):
        """Convert to a dtype given by name."""
        return tensor.to(getattr(self.framework, dtype))

    def stop(self, tensor):
        """Stop the gradient."""
        return tensor.detach()

    def variable(self, array):
        """Make a tensor that gradients are asked for."""
        return self.tensor(array).requires_grad_()

    def half_variable(self, number, dtype):
        """Make a scalar of half precision that gradients are asked for."""
        return self.cast(self.tensor(number), dtype).requires_grad_()

    def softmax(self, tensor):
        """Normalise exponentials along the last axis."""
        return tensor.softmax(-1)

    def total(self, tensor):
        """Sum over the last axis."""
        return tensor.sum(-1)

    def log_sum_exp(self, tensor):
        """Take the logarithm of the sum of exponentials along the last axis."""
        return tensor.logsumexp(-1)

    def take(self, tensor, rows):
        """Look rows up; their gradient is sparse."""
        return self.framework.nn.functional.embedding(rows, tensor, sparse=True)

    def value_and_vjp(self, function, inputs, cotangent):
        """Return the value, and the gradients that reach the inputs, as arrays."""
        tensors = [self.tensor(x).requires_grad_() for x in inputs]
        value = function(*tensors)
        grads = self.framework.autograd.grad(value, tensors, self.tensor(cotangent).to(value.dtype))
        return self.array(value), [self.array(g) for g in grads]

    def parameter(self, array, dtype="float64"):
        """Make what an optimizer updates."""
        return self.framework.nn.Parameter(self.cast(self.tensor(array), dtype))

    def masked_adam(
        self, parameter, rate, beta_1=0.9, beta_2=0.999, epsilon=1e-8, weight_decay=0.0, amsgrad=False
    ):
        """Make a MaskedAdam of one parameter, with decoupled weight decay."""
        options = (rate, (beta_1, beta_2), epsilon, weight_decay, amsgrad)
        return self.tricks.MaskedAdam([parameter], *options, decoupled_weight_decay=True)

    def masked(self, name, parameter, rate, **options):
        """Make an optimizer of the framework of one parameter, with a mask."""
        inner = getattr(self.framework.optim, name)
        return self.tricks.MaskedOptimizer(inner([parameter], rate, **options))

    def apply(self, optimizer, parameter, gradient):
        """Take a step of an optimizer of one parameter."""
        parameter.grad = self.cast(self.tensor(gradient), str(parameter.dtype).removeprefix("torch."))
        optimizer.step()

    def state(self, optimizer, parameter):
        """Read the state of a parameter's shape."""
        state = optimizer.state[parameter].values()
        return [self.array(t).copy() for t in state if t.shape == parameter.shape]

    def traced(self, function, array):
        """Call a function where tensors have no values: under a transform."""
        return self.framework.func.vmap(function)(self.tensor(array))

    def compiled(self, function):
        """Return the function as the framework's compiler makes it."""
        self.framework.compiler.reset()
        return self.framework.compile(function, fullgraph=True, backend=TRACER)

    def in_graph(self, function):
        """Trace a function, so that no Python is left in it; cheaper than to compile it."""
        return self.compiled(function)

    def graph_value_and_vjp(self, function, inputs, cotangent):
        """Do the same in a graph."""
        return self.value_and_vjp(self.in_graph(function), inputs, cotangent)

    def compiled_value_and_vjp(self, function, inputs, cotangent):
        """Do the same inside the framework's compiler."""
        return self.value_and_vjp(self.compiled(function), inputs, cotangent)


class TensorFlowBackend:
    """TensorFlow, as the tests see it."""

    name = "tensorflow"

    def __init__(self):
        self.framework = importlib.import_module("tensorflow")
        self.tricks = importlib.import_module("gradtricks.tensorflow")

    def tensor(self, array):
        """Make a tensor."""
        return self.framework.constant(np.array(array))

    def array(self, tensor):
        """Read a tensor."""
        array = self.framework.convert_to_tensor(tensor).numpy()
        return array.astype(np.float32) if array.dtype.itemsize == 2 else array

    def cast(self, tensor, dtype):
        """Convert to a dtype given by name."""
        return self.framework.cast(tensor, dtype)

    def stop(self, tensor):
        """Stop the gradient."""
        return self.framework.stop_gradient(tensor)

    def variable(self, array):
        """Make a tensor that gradients are asked for."""
        return self.framework.Variable(array)

    def half_variable(self, number, dtype):
        """Make a scalar of half precision that gradients are asked for."""
        return self.framework.Variable(self.cast(self.tensor(number), dtype))

    def softmax(self, tensor):
        """Normalise exponentials along the last axis."""
        return self.framework.nn.softmax(tensor)

    def total(self, tensor):
        """Sum over the last axis."""
        return self.framework.reduce_sum(tensor, -1)

    def log_sum_exp(self, tensor):
        """Take the logarithm of the sum of exponentials along the last axis."""
        return self.framework.reduce_logsumexp(tensor, -1)

    def take(self, tensor, rows):
        """Look rows up; their gradient is sparse."""
        return self.framework.gather(tensor, rows)

    def value_and_vjp(self, function, inputs, cotangent):
        """Return the value, and the gradients that reach the inputs, as arrays."""
        tensors = [self.tensor(x) for x in inputs]
        with self.framework.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        grads = tape.gradient(value, tensors, self.framework.cast(self.tensor(cotangent), value.dtype))
        return self.array(value), [self.array(g) for g in grads]

    def parameter(self, array, dtype="float64"):
        """Make what an optimizer updates."""
        return self.framework.Variable(self.cast(self.tensor(array), dtype))

    def masked_adam(self, parameter, rate, epsilon=1e-8, **options):
        """Make a MaskedAdam of one parameter, with decoupled weight decay."""
        optimizer = self.tricks.MaskedAdam(rate, epsilon=epsilon, **options)
        optimizer.build([parameter])
        return optimizer

    def masked(self, name, parameter, rate, **options):
        """Make an optimizer of the framework of one parameter, with a mask."""
        inner = getattr(self.framework.keras.optimizers, name)
        optimizer = self.tricks.MaskedOptimizer(inner(rate, **options))
        optimizer.build([parameter])
        return optimizer

    def apply(self, optimizer, parameter, gradient):
        """Take a step of an optimizer of one parameter."""
        optimizer.apply([self.cast(self.tensor(gradient), parameter.dtype)], [parameter])

    def state(self, optimizer, parameter):
        """Read the state of a parameter's shape."""
        return [v.numpy() for v in optimizer.variables if v.shape == parameter.shape and v.dtype != "bool"]

    def traced(self, function, array):
        """Call a function where tensors have no values: in a graph."""
        return self.framework.function(function, autograph=False)(self.tensor(array))

    def compiled(self, function):
        """Return the function as the framework's compiler makes it."""
        return self.framework.function(function, jit_compile=True)

    def in_graph(self, function):
        """Trace a function, so that no Python is left in it; cheaper than to compile it."""
        return self.framework.function(function, autograph=False)

    def graph_value_and_vjp(self, function, inputs, cotangent):
        """Do the same in a graph."""
        return self.value_and_vjp(self.in_graph(function), inputs, cotangent)

    def compiled_value_and_vjp(self, function, inputs, cotangent):
        """Do the same inside the framework's compiler."""
        return self.value_and_vjp(self.compiled(function), inputs, cotangent)


BACKENDS = {"torch": TorchBackend, "tensorflow": TensorFlowBackend}
