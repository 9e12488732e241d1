"""One face for both frameworks, so that each test is written once."""

import importlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import pytest

import gradtricks.doctor

# What a stem's tests want of PyTorch's compiler: all gradient rules are traced, and the graph runs as it is.
# Code for it is generated in the tests of the two edits; that takes a C++ compiler and Python's headers.
TRACER = "aot_eager"
_CAN_COMPILE = shutil.which("c++") and Path(sysconfig.get_path("include"), "Python.h").exists()
COMPILER = "inductor" if _CAN_COMPILE else TRACER

# How one of two processes that train together runs the script that follows.
_RANK = """
import datetime
import torch

def ran(rank, meeting):
    torch.distributed.init_process_group(
        "gloo", "file://" + meeting, datetime.timedelta(seconds=120), world_size=2, rank=rank
    )
    try:
        return train()
    finally:
        torch.distributed.destroy_process_group()
"""
_OTHER = "import json, runpy, sys; print(json.dumps(runpy.run_path(sys.argv[1])['ran'](1, sys.argv[2])))"


class Backend:
    """Behaviour that is the same in every framework."""

    name = ""

    def __init__(self):
        self.framework = importlib.import_module(self.name)
        self.tricks = importlib.import_module(f"gradtricks.{self.name}")
        self.doctor = gradtricks.doctor.load(self.name)

    def operator(self, name):
        """Return the framework's function of an operator, wherever that stands."""
        return next(getattr(owner, name) for owner in self.owners if hasattr(owner, name))

    def traced(self, function, array):
        """Call a function where tensors have no values."""
        return self.transformed(function)(self.tensor(array))

    def graph_value_and_vjp(self, function, inputs, cotangent):
        """Return the value and the gradients in a graph."""
        return self.value_and_vjp(self.in_graph(function), inputs, cotangent)

    def compiled_value_and_vjp(self, function, inputs, cotangent):
        """Return the value and the gradients of what the framework's compiler makes."""
        return self.value_and_vjp(self.compiled(function), inputs, cotangent)


class TorchBackend(Backend):
    """PyTorch, as the tests see it."""

    name = "torch"

    def __init__(self):
        super().__init__()
        torch = self.framework
        self.owners, self.stop, self.transformed = (torch, torch.nn.functional), torch.detach, torch.func.vmap
        self.spellers = torch, torch.nn.functional
        # Along the last axis.
        self.softmax, self.total = lambda tensor: tensor.softmax(-1), lambda tensor: tensor.sum(-1)
        self.log_sum_exp = lambda tensor: tensor.logsumexp(-1)

    def has_cuda(self):
        """Say whether there is a GPU."""
        return self.framework.cuda.is_available()

    def on(self, device):
        """Return a context in which tensors are made on a device: of ``"cpu"`` and ``"cuda"``."""
        return self.framework.device(device)

    def tensor(self, array):
        return self.framework.as_tensor(np.array(array))

    def array(self, tensor):
        tensor = tensor.detach().cpu()
        return (tensor.float() if tensor.dtype.itemsize == 2 else tensor).numpy()

    def cast(self, tensor, dtype):
        return tensor.to(getattr(self.framework, dtype))

    def bits_as(self, tensor, dtype):
        """Read the same bits as another dtype."""
        return tensor.view(getattr(self.framework, dtype))

    def variable(self, array):
        return self.tensor(array).requires_grad_()

    def half_variable(self, number, dtype):
        return self.cast(self.tensor(number), dtype).requires_grad_()

    def take(self, tensor, rows):
        """Look rows up; their gradient is sparse."""
        return self.framework.nn.functional.embedding(rows, tensor, sparse=True)

    def sparse_gradient(self, table, rows):
        """Return the sparse gradient of the sum of some rows."""
        loss = self.take(table, self.tensor(rows)).sum()
        return self.framework.autograd.grad(loss, table)[0]

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
        options = (rate, (beta_1, beta_2), epsilon, weight_decay, amsgrad)
        return self.tricks.MaskedAdam([parameter], *options, decoupled_weight_decay=True)

    def masked(self, name, parameter, rate, **options):
        """Make an optimizer of the framework of one parameter, with a mask."""
        inner = getattr(self.framework.optim, name)
        return self.tricks.MaskedOptimizer(inner([parameter], rate, **options))

    def apply(self, optimizer, parameter, gradient):
        parameter.grad = self.cast(self.tensor(gradient), str(parameter.dtype).removeprefix("torch."))
        optimizer.step()

    def state(self, optimizer, parameter):
        """Read the state of a parameter's shape."""
        state = optimizer.state[parameter].values()
        return [self.array(t).copy() for t in state if t.shape == parameter.shape]

    def compiled(self, function):
        self.framework.compiler.reset()
        return self.framework.compile(function, fullgraph=True, backend=TRACER)

    def check_compiled_once(self, function, x):
        """Check the gradient of ``function(x, number)`` for many numbers; and for tensors, compiled once."""
        graphs, compiler = [], self.framework._dynamo.lookup_backend(TRACER)
        self.framework.compiler.reset()

        def counted(graph, inputs):
            graphs.append(graph)
            return compiler(graph, inputs)

        def slope(function, value):
            return self.value_and_vjp(lambda t: function(t, value).sum(), [x], np.float32(1))[1]

        compiled = self.framework.compile(function, fullgraph=True, backend=counted)
        # A compiler takes the first number for a constant, and the second for one that changes.
        for as_value, compilations in ((float, 2), (self.tensor, 1)):
            graphs.clear()
            for number in np.float32([0.5, 0.25, 0.75, 1.0]):
                value = as_value(number)
                np.testing.assert_allclose(slope(compiled, value), slope(function, value), rtol=1e-6)
            assert len(graphs) == compilations

    def on_two_ranks(self, script, folder):
        """Return what ``train()`` of a script returns in this process and in another, which form a group."""
        path, meeting = str(folder / "rank.py"), str(folder / "meeting")
        Path(path).write_text(_RANK + script)
        command = [sys.executable, "-c", _OTHER, path, meeting]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            mine = runpy.run_path(path)["ran"](0, meeting)
            theirs = other.communicate(timeout=120)[0]
        return mine, json.loads(theirs)

    def in_graph(self, function):
        """Trace a function, so that no Python is left in it; cheaper than to compile it."""
        return self.compiled(function)

    def leaf(self, values):
        """Make a tensor, in float32, whose gradient may be asked for."""
        return self.framework.tensor(values, requires_grad=True)

    def unwatched(self, values):
        return self.framework.tensor(values)

    def own_gradient(self, function, x):
        """Return what the framework itself finds of the sum of a function: an array, or None."""
        y = function(x)
        if not getattr(y, "requires_grad", False):
            return None
        (gradient,) = self.framework.autograd.grad(y.sum(), x, allow_unused=True)
        return None if gradient is None else self.array(gradient)

    def slope(self, function):
        """Return a function that differentiates within."""

        def differentiated(x):
            with self.framework.enable_grad():
                x = x if x.requires_grad else x.detach().requires_grad_()
                return self.framework.autograd.grad(function(x).sum(), x, create_graph=True)[0]

        return differentiated

    def loss_and_gradients(self, loss, variables):
        """Return the value of ``loss()`` and the gradients of what it reads, as arrays."""
        value = loss()
        return self.array(value), [self.array(g) for g in self.framework.autograd.grad(value, variables)]

    def recomputed(self, function):
        """Return the function with its activations computed anew in the backward pass."""
        checkpoint = self.framework.utils.checkpoint.checkpoint
        return lambda *tensors: checkpoint(function, *tensors, use_reentrant=False)

    def declared(self, forward, gradient):
        """Give a function of one tensor the slope ``gradient(x)``."""

        class Declared(self.framework.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return forward(x)

            @staticmethod
            def backward(ctx, incoming):
                return incoming * gradient(*ctx.saved_tensors)

        return Declared.apply

    def random_state(self):
        return self.framework.get_rng_state().numpy()

    def assign(self, variable, tensor):
        variable.data.copy_(tensor)

    def joined(self, *tensors):
        """Lay tensors end to end."""
        return self.framework.cat([tensor.reshape(-1) for tensor in tensors])

    def network(self, *widths):
        """Make dense layers, a tanh behind all but the last: the model, its layers, their parameters."""
        nn = self.framework.nn
        self.framework.manual_seed(0)
        *first, last = [nn.Linear(*pair) for pair in pairwise(widths)]
        layers = [*(nn.Sequential(layer, nn.Tanh()) for layer in first), last]
        model = nn.Sequential(*layers)
        return model, layers, list(model.parameters())

    def replaceable(self):
        """Return what a careless tracer would leave changed."""
        from torch.overrides import _get_current_function_mode_stack

        return [*_get_current_function_mode_stack(), self.framework.from_numpy]


class TensorFlowBackend(Backend):
    """TensorFlow, likewise."""

    name = "tensorflow"

    def __init__(self):
        super().__init__()
        tf = self.framework
        self.owners, self.stop, self.transformed = (tf, tf.math, tf.nn), tf.stop_gradient, self.in_graph
        self.spellers = tf.nn, tf.keras.ops  # of the same operators
        self.softmax, self.total = tf.nn.softmax, lambda tensor: tf.reduce_sum(tensor, -1)
        self.log_sum_exp = lambda tensor: tf.reduce_logsumexp(tensor, -1)

    def has_cuda(self):
        return bool(self.framework.config.list_physical_devices("GPU"))

    def on(self, device):
        return self.framework.device({"cpu": "/CPU:0", "cuda": "/GPU:0"}[device])

    def tensor(self, array):
        return self.framework.constant(np.array(array))

    def array(self, tensor):
        array = self.framework.convert_to_tensor(tensor).numpy()
        return array.astype(np.float32) if array.dtype.itemsize == 2 else array

    def cast(self, tensor, dtype):
        return self.framework.cast(tensor, dtype)

    def bits_as(self, tensor, dtype):
        return self.framework.bitcast(tensor, dtype)

    def variable(self, array):
        return self.framework.Variable(array)

    def half_variable(self, number, dtype):
        return self.framework.Variable(self.cast(self.tensor(number), dtype))

    def take(self, tensor, rows):
        return self.framework.gather(tensor, rows)

    def sparse_gradient(self, table, rows):
        with self.framework.GradientTape() as tape:
            loss = self.framework.reduce_sum(self.take(table, rows))
        return tape.gradient(loss, table)

    def value_and_vjp(self, function, inputs, cotangent):
        tensors = [self.tensor(x) for x in inputs]
        with self.framework.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        grads = tape.gradient(value, tensors, self.framework.cast(self.tensor(cotangent), value.dtype))
        return self.array(value), [self.array(g) for g in grads]

    def parameter(self, array, dtype="float64"):
        return self.framework.Variable(self.cast(self.tensor(array), dtype))

    def masked_adam(self, parameter, rate, epsilon=1e-8, **options):
        optimizer = self.tricks.MaskedAdam(rate, epsilon=epsilon, **options)
        optimizer.build([parameter])
        return optimizer

    def masked(self, name, parameter, rate, **options):
        inner = getattr(self.framework.keras.optimizers, name)
        optimizer = self.tricks.MaskedOptimizer(inner(rate, **options))
        optimizer.build([parameter])
        return optimizer

    def apply(self, optimizer, parameter, gradient):
        optimizer.apply([self.cast(self.tensor(gradient), parameter.dtype)], [parameter])

    def state(self, optimizer, parameter):
        return [v.numpy() for v in optimizer.variables if v.shape == parameter.shape and v.dtype != "bool"]

    def compiled(self, function):
        return self.framework.function(function, jit_compile=True)

    def in_graph(self, function):
        return self.framework.function(function, autograph=False)

    def leaf(self, values):
        return self.framework.constant(values)

    def unwatched(self, values):
        return self.framework.Variable(values, trainable=False)

    def own_gradient(self, function, x):
        with self.framework.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        gradient = None if isinstance(y, float) else tape.gradient(y, x)
        return None if gradient is None else self.array(gradient)

    def slope(self, function):
        def differentiated(x):
            with self.framework.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x)

        return differentiated

    def loss_and_gradients(self, loss, variables):
        with self.framework.GradientTape() as tape:
            value = loss()
        return self.array(value), [self.array(g) for g in tape.gradient(value, variables)]

    def recomputed(self, function):
        return self.framework.recompute_grad(function)

    def declared(self, forward, gradient):
        cast = self.framework.cast

        def function(x):
            return forward(x), lambda incoming: incoming * cast(gradient(x), incoming.dtype)

        return self.framework.custom_gradient(function)

    def random_state(self):
        return self.framework.random.get_global_generator().state.numpy()

    def assign(self, variable, tensor):
        variable.assign(tensor)

    def joined(self, *tensors):
        return self.framework.concat([self.framework.reshape(tensor, [-1]) for tensor in tensors], 0)

    def network(self, *widths):
        keras = self.framework.keras
        keras.utils.set_random_seed(0)
        *first, last = widths[1:]
        layers = [keras.layers.Dense(width, activation="tanh") for width in first]
        model = keras.Sequential([keras.Input([widths[0]]), *layers, keras.layers.Dense(last)])
        return model, model.layers, model.trainable_variables

    def replaceable(self):
        from tensorflow.python.eager import context, execute, record
        from tensorflow.python.eager.polymorphic_function import function_context
        from tensorflow.python.framework import ops
        from tensorflow.python.ops import script_ops

        return [
            list(context.context().op_callbacks),
            execute.execute,
            execute.record_gradient,
            function_context.make_function_context,
            self.framework.config.functions_run_eagerly(),
            record.record_operation,
            record.could_possibly_record(),
            ops._EagerTensorBase._numpy,
            script_ops.py_func_common,
            self.framework.GradientTape.stop_recording,
            self.framework.GradientTape._push_tape,
        ]


BACKENDS = {"torch": TorchBackend, "tensorflow": TensorFlowBackend}


def made(framework):
    """Make the backend of a framework, or skip the test where that isn't installed."""
    pytest.importorskip(framework)
    return BACKENDS[framework]()


class ForeignTensor:
    """Stands for a tensor of the other framework, which a process of the tests can't import."""
