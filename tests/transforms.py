"""Every way in which the frameworks differentiate, each as value and vector-Jacobian product.

A function that is right under all of them has the same gradient as its reference whichever way it is asked.
Forward modes are asked for the whole Jacobian, column by column, so that one reference serves all: keep the
inputs of such tests below about ten elements.
"""

from functools import partial

import numpy as np

from backends import COMPILER, TRACER

# By what a test is about: a trick, the edits beneath it, which know no rank and take no gradients by
# themselves, or the gradient of a gradient.
FIRST_ORDER, OF_THE_EDITS, SECOND_ORDER = [], [], []


class Way:
    """One way of taking a gradient."""

    framework, order = "", 1
    rtol = 1e-10  # how near to the reference a float64 result has to be

    def __init_subclass__(cls, name="", edits_only=False):
        cls.name, cls.id = name, f"{cls.framework}-{name}"
        cls.takes_tangents = any(word in name for word in ("jvp", "dual", "jacfwd", "accumulator"))
        if name and cls.order == 2:
            SECOND_ORDER.append(cls)
        elif name:
            OF_THE_EDITS.append(cls)
            FIRST_ORDER.extend([] if edits_only else [cls])

    def __init__(self, backend):
        self.backend, self.tricks = backend, backend.tricks

    def value_and_vjp(self, function, inputs, cotangent):
        """Return the value of ``function(*inputs)`` and the gradients of ``inputs``, as arrays."""
        tensors = [self.backend.tensor(np.asarray(x, np.float64)) for x in inputs]
        value, gradients = self.differentiate(function, tensors, self.backend.tensor(cotangent))
        return self.backend.array(value), [self.backend.array(gradient) for gradient in gradients]

    def differentiate(self, function, tensors, cotangent):
        """Return the value and the gradients, as tensors."""
        raise NotImplementedError

    def differentiate_columns(self, tensors, cotangent, jvp):
        """Return the same from the columns of the Jacobians, by ``jvp(tensors, tangents)``."""
        gradients, cotangent = [], self.backend.array(cotangent)
        for index, tensor in enumerate(tensors):
            gradient = []
            for unit in _basis(tuple(tensor.shape)):
                tangents = [self.backend.framework.zeros_like(t) for t in tensors]
                tangents[index] = self.backend.tensor(unit)
                value, column = jvp(tuple(tensors), tuple(tangents))
                gradient.append(np.sum(self.backend.array(column) * cotangent))
            gradients.append(self.backend.tensor(np.reshape(gradient, tuple(tensor.shape))))
        return value, gradients

    def differentiate_twice(self, batched, function, tensors, cotangent):
        """Return the same from a batch of two, whose other cotangent is twice as large."""
        stack = self.backend.framework.stack
        twice = [stack([tensor, tensor]) for tensor in tensors]
        values, gradients = batched(stack([2 * cotangent, cotangent]), *twice)
        alone = self.vjp(function)(2 * cotangent, *tensors)[1]
        for gradient, expected in zip(gradients, alone):
            np.testing.assert_allclose(gradient[0], expected, rtol=self.rtol)
        return values[1], [gradient[1] for gradient in gradients]


def _basis(shape):
    """Return the unit arrays of a shape."""
    size = int(np.prod(shape))
    return np.eye(size).reshape(size, *shape)


# PyTorch


class TorchWay(Way):
    framework = "torch"

    def __init__(self, backend):
        super().__init__(backend)
        self.torch = backend.framework
        self.torch.compiler.reset()

    def vjp(self, function):
        """Return ``(cotangent, *tensors) -> (value, gradients)`` in functional form."""

        def value_and_gradients(cotangent, *tensors):
            value, pull = self.torch.func.vjp(function, *tensors)
            return value, pull(cotangent.to(value.dtype))

        return value_and_gradients

    def compile(self, function):
        # Dynamo and AOT autograd trace the transforms; what inductor makes of a trace is TorchCompile's.
        return self.torch.compile(function, fullgraph=True, backend=TRACER)


class TorchEager(TorchWay, name="eager"):
    def differentiate(self, function, tensors, cotangent):
        tensors = [tensor.requires_grad_() for tensor in tensors]
        value = function(*tensors)
        return value, self.torch.autograd.grad(value, tensors, cotangent.to(value.dtype))


class TorchCompile(TorchEager, name="compile"):
    compiler = TRACER

    def differentiate(self, function, tensors, cotangent):
        compiled = self.torch.compile(function, fullgraph=True, backend=self.compiler)
        return super().differentiate(compiled, tensors, cotangent)


class TorchInductor(TorchCompile, name="compile by Inductor", edits_only=True):
    compiler = COMPILER


class TorchAutocast(TorchEager, name="autocast"):
    rtol = 1e-2  # bfloat16 keeps eight bits

    def differentiate(self, function, tensors, cotangent):
        with self.torch.autocast("cpu", self.torch.bfloat16):
            value, gradients = super().differentiate(function, [t.float() for t in tensors], cotangent)
        return value.double(), [gradient.double() for gradient in gradients]


class TorchCheckpoint(TorchWay, name="checkpoint"):
    reentrant = False

    def differentiate(self, function, tensors, cotangent):
        from torch.utils.checkpoint import checkpoint

        tensors = [tensor.requires_grad_() for tensor in tensors]
        value = checkpoint(function, *tensors, use_reentrant=self.reentrant)
        value.backward(cotangent.to(value.dtype))  # the reentrant form refuses autograd.grad
        return value, [tensor.grad for tensor in tensors]


class TorchReentrantCheckpoint(TorchCheckpoint, name="reentrant checkpoint"):
    reentrant = True


class TorchSaveOnCpu(TorchEager, name="save_on_cpu"):
    def differentiate(self, function, tensors, cotangent):
        with self.torch.autograd.graph.save_on_cpu():
            return super().differentiate(function, tensors, cotangent)


class TorchBatchedCotangents(TorchEager, name="is_grads_batched"):
    def differentiate(self, function, tensors, cotangent):
        tensors = [tensor.requires_grad_() for tensor in tensors]
        value = function(*tensors)
        cotangents = self.torch.stack([2 * cotangent, cotangent]).to(value.dtype)
        together = self.torch.autograd.grad(
            value, tensors, cotangents, is_grads_batched=True, retain_graph=True
        )
        alone = self.torch.autograd.grad(value, tensors, cotangents[0])
        for gradient, expected in zip(together, alone):
            np.testing.assert_allclose(gradient[0], expected, rtol=self.rtol)
        return value, [gradient[1] for gradient in together]


class TorchWithoutValues(TorchEager, name="without values", edits_only=True):
    def differentiate(self, function, tensors, cotangent):
        from torch._subclasses.fake_tensor import FakeTensorMode

        def known(*arguments):
            value, gradients = super(TorchWithoutValues, self).differentiate(function, *arguments)
            return value, gradients, [(tensor.shape, tensor.dtype) for tensor in (value, *gradients)]

        blank = [tensor.clone() for tensor in (*tensors, cotangent)]
        value, gradients, expected = known(tensors, cotangent)
        fake, meta = FakeTensorMode(), [tensor.to("meta") for tensor in blank]
        assert known(meta[:-1], meta[-1])[-1] == expected
        blank = [fake.from_tensor(tensor) for tensor in blank]
        with fake:
            assert known(blank[:-1], blank[-1])[-1] == expected
        return value, gradients


class TorchTraced(TorchWay, name="make_fx of func.vjp"):
    def differentiate(self, function, tensors, cotangent):
        from torch.fx.experimental.proxy_tensor import make_fx

        others = [self.torch.ones_like(tensor) for tensor in (cotangent, *tensors)]
        return make_fx(self.vjp(function))(*others)(cotangent, *tensors)


class TorchExported(TorchEager, name="export"):
    def differentiate(self, function, tensors, cotangent):
        class Model(self.torch.nn.Module):
            def forward(self, *inputs):
                return function(*inputs)

        exported = self.torch.export.export(Model(), tuple(tensors)).module()
        return super().differentiate(exported, tensors, cotangent)


class TorchVjp(TorchWay, name="func.vjp"):
    def differentiate(self, function, tensors, cotangent):
        return self.vjp(function)(cotangent, *tensors)


class TorchCompiledVjp(TorchWay, name="compile of func.vjp"):
    def differentiate(self, function, tensors, cotangent):
        return self.compile(self.vjp(function))(cotangent, *tensors)


class TorchVmap(TorchWay, name="vmap of func.vjp"):
    def batched(self, function):
        return self.torch.func.vmap(self.vjp(function))

    def differentiate(self, function, tensors, cotangent):
        return self.differentiate_twice(self.batched(function), function, tensors, cotangent)


class TorchCompiledVmap(TorchVmap, name="compile of vmap of func.vjp"):
    def batched(self, function):
        return self.compile(super().batched(function))


class TorchJvp(TorchWay, name="func.jvp"):
    def differentiate(self, function, tensors, cotangent):
        return self.differentiate_columns(tensors, cotangent, partial(self.torch.func.jvp, function))


class TorchCompiledJvp(TorchWay, name="compile of func.jvp"):
    def differentiate(self, function, tensors, cotangent):
        jvp = self.compile(lambda p, t: self.torch.func.jvp(function, p, t))
        return self.differentiate_columns(tensors, cotangent, jvp)


class TorchDual(TorchWay, name="dual numbers"):
    def differentiate(self, function, tensors, cotangent):
        forward_ad = self.torch.autograd.forward_ad

        def jvp(primals, tangents):
            with forward_ad.dual_level():
                duals = [forward_ad.make_dual(*pair) for pair in zip(primals, tangents)]
                value, tangent = forward_ad.unpack_dual(function(*duals))
            return value, self.torch.zeros_like(value) if tangent is None else tangent

        return self.differentiate_columns(tensors, cotangent, jvp)


class TorchJacobian(TorchWay, name="func.jacrev"):
    def jacobian(self, function, index):
        return self.torch.func.jacrev(function, argnums=index)

    def differentiate(self, function, tensors, cotangent):
        value = function(*tensors)
        gradients = []
        for index, tensor in enumerate(tensors):
            jacobian = self.jacobian(function, index)(*tensors)
            flat = jacobian.reshape(value.numel(), tensor.numel())
            gradients.append((cotangent.to(flat.dtype).reshape(-1) @ flat).reshape(tensor.shape))
        return value, gradients


class TorchForwardJacobian(TorchJacobian, name="func.jacfwd"):
    def jacobian(self, function, index):
        return self.torch.func.jacfwd(function, argnums=index)


class TorchVectorizedJacobian(TorchJacobian, name="vectorized jacobian", edits_only=True):
    strategy = "reverse-mode"

    def jacobian(self, function, index):
        def whole(*tensors):
            def varied(tensor):
                return function(*tensors[:index], tensor, *tensors[index + 1 :])

            return self.torch.autograd.functional.jacobian(
                varied, tensors[index], vectorize=True, strategy=self.strategy
            )

        return whole


class TorchVectorizedForwardJacobian(
    TorchVectorizedJacobian, name="vectorized jacobian by jvp", edits_only=True
):
    strategy = "forward-mode"


class TorchCompiledJacobian(TorchJacobian, name="compile of func.jacrev"):
    def jacobian(self, function, index):
        return self.compile(super().jacobian(function, index))


# TensorFlow


class TensorFlowWay(Way):
    framework = "tensorflow"

    def __init__(self, backend):
        super().__init__(backend)
        self.tf = backend.framework

    def vjp(self, function):
        """Return ``(cotangent, *tensors) -> (value, gradients)``."""

        def value_and_gradients(cotangent, *tensors):
            with self.tf.GradientTape() as tape:
                tape.watch(tensors)
                value = function(*tensors)
            return value, tape.gradient(value, tensors, self.tf.cast(cotangent, value.dtype))

        return value_and_gradients


class TensorFlowTape(TensorFlowWay, name="tape"):
    def differentiate(self, function, tensors, cotangent):
        return self.vjp(function)(cotangent, *tensors)


class TensorFlowFunction(TensorFlowWay, name="function"):
    jit_compile = False

    def known(self, tensor):
        return tensor.shape

    def differentiate(self, function, tensors, cotangent):
        signature = [self.tf.TensorSpec(self.known(t), t.dtype) for t in (cotangent, *tensors)]
        graph = self.tf.function(self.vjp(function), signature, jit_compile=self.jit_compile)
        return graph(cotangent, *tensors)


class TensorFlowXla(TensorFlowFunction, name="xla"):
    jit_compile = True


class TensorFlowUnknownShapes(TensorFlowFunction, name="function of unknown shapes"):
    def known(self, tensor):
        return [None] * tensor.shape.rank


class TensorFlowUnknownRanks(TensorFlowUnknownShapes, name="function of unknown ranks", edits_only=True):
    def known(self, tensor):
        return None


class TensorFlowUnknownShapesInXla(TensorFlowUnknownShapes, name="xla of unknown shapes", edits_only=True):
    jit_compile = True


class TensorFlowRecompute(TensorFlowTape, name="recompute_grad", edits_only=True):
    def differentiate(self, function, tensors, cotangent):
        return super().differentiate(self.tf.recompute_grad(function), tensors, cotangent)


class TensorFlowGather(TensorFlowTape, name="gather"):  # whose gradient is tf.IndexedSlices
    def differentiate(self, function, tensors, cotangent):
        def gathered(*inputs):
            value = function(*inputs)
            # A scalar has no rows, so nothing sparse comes back to it.
            return (
                self.tf.gather(value, self.tf.range(self.tf.shape(value)[0])) if value.shape.rank else value
            )

        return super().differentiate(gathered, tensors, cotangent)


class TensorFlowPersistentTape(TensorFlowWay, name="persistent tape"):
    def differentiate(self, function, tensors, cotangent):
        with self.tf.GradientTape(persistent=True) as tape:
            tape.watch(tensors)
            value = function(*tensors)
        cotangent = self.tf.cast(cotangent, value.dtype)
        first, again = (tape.gradient(value, tensors, cotangent) for _ in range(2))
        for one, other in zip(first, again):
            np.testing.assert_array_equal(one, other)
        return value, first


class TensorFlowAccumulator(TensorFlowWay, name="accumulator"):
    def jvp(self, function):
        def value_and_tangent(primals, tangents):
            with self.tf.autodiff.ForwardAccumulator(primals, tangents) as accumulator:
                value = function(*primals)
            return value, accumulator.jvp(value, unconnected_gradients="zero")

        return value_and_tangent

    def differentiate(self, function, tensors, cotangent):
        return self.differentiate_columns(tensors, cotangent, self.jvp(function))


class TensorFlowAccumulatorInFunction(TensorFlowAccumulator, name="accumulator in a function"):
    def jvp(self, function):
        return self.tf.function(super().jvp(function))


class TensorFlowAccumulatorOfFunction(TensorFlowAccumulator, name="accumulator around a function"):
    def jvp(self, function):
        return super().jvp(self.tf.function(function))


class TensorFlowVectorizedMap(TensorFlowWay, name="vectorized_map"):
    def differentiate(self, function, tensors, cotangent):
        def batched(*rows):
            return self.tf.vectorized_map(lambda slices: self.vjp(function)(*slices), rows)

        return self.differentiate_twice(batched, function, tensors, cotangent)


class TensorFlowTapeAroundMap(TensorFlowWay, name="tape around vectorized_map"):
    def differentiate(self, function, tensors, cotangent):
        twice = [self.tf.stack([tensor, tensor]) for tensor in tensors]
        with self.tf.GradientTape() as tape:
            tape.watch(twice)
            values = self.tf.vectorized_map(lambda slices: function(*slices), tuple(twice))
        cotangents = self.tf.cast(self.tf.stack([2 * cotangent, cotangent]), values.dtype)
        gradients = tape.gradient(values, twice, cotangents)
        return values[1], [gradient[1] for gradient in gradients]


class TensorFlowJacobian(TensorFlowWay, name="batch_jacobian"):
    def differentiate(self, function, tensors, cotangent):
        gradients = []
        for index, tensor in enumerate(tensors):
            batch = tensor[None]
            with self.tf.GradientTape() as tape:
                tape.watch(batch)
                value = function(*tensors[:index], batch[0], *tensors[index + 1 :])
                row = self.tf.reshape(value, [1, -1])
            jacobian = tape.batch_jacobian(row, batch)[0]
            weights = self.tf.reshape(self.tf.cast(cotangent, jacobian.dtype), [1, -1])
            flat = self.tf.reshape(jacobian, [weights.shape[1], -1])
            gradients.append(self.tf.reshape(weights @ flat, tensor.shape))
        return value, gradients


# The gradient of <vjp(cotangent), directions>


class SecondWay(Way):
    """One way of taking the gradient of a gradient."""

    order = 2

    def second_vjp(self, function, inputs, cotangent, directions):
        """Return the gradients of ``sum(vjp(function)(cotangent) * directions)``, as arrays."""
        tensors, directions = (
            [self.backend.tensor(np.asarray(x, np.float64)) for x in arrays]
            for arrays in (inputs, directions)
        )
        gradients = self.differentiate(function, tensors, self.backend.tensor(cotangent), directions)
        return [self.backend.array(gradient) for gradient in gradients]


class TorchDoubleBackward(SecondWay, TorchWay, name="double backward"):
    def differentiate(self, function, tensors, cotangent, directions):
        tensors = [tensor.requires_grad_() for tensor in tensors]
        grad = self.torch.autograd.grad
        first = grad(function(*tensors), tensors, cotangent, create_graph=True)
        along = sum((g * d).sum() for g, d in zip(first, directions))
        if not along.requires_grad:
            return [self.torch.zeros_like(tensor) for tensor in tensors]
        return grad(along, tensors, allow_unused=True, materialize_grads=True)


class TorchReverseOverReverse(SecondWay, TorchWay, name="func.vjp of func.vjp"):
    def second(self, function, cotangent):
        def gradients(*tensors):
            return self.vjp(function)(cotangent, *tensors)[1]

        return lambda tensors, directions: self.torch.func.vjp(gradients, *tensors)[1](tuple(directions))

    def differentiate(self, function, tensors, cotangent, directions):
        return self.second(function, cotangent)(tensors, directions)


class TorchCompiledReverseOverReverse(TorchReverseOverReverse, name="compile of func.vjp of func.vjp"):
    def second(self, function, cotangent):
        return self.compile(super().second(function, cotangent))


class TorchForwardOverReverse(SecondWay, TorchWay, name="func.jvp of func.vjp"):  # what func.hessian does
    def differentiate(self, function, tensors, cotangent, directions):
        def along(*tensors):
            gradients = self.vjp(function)(cotangent, *tensors)[1]
            return sum((g * d).sum() for g, d in zip(gradients, directions))

        jvp = partial(self.torch.func.jvp, along)
        return self.differentiate_columns(tensors, self.backend.tensor(1.0), jvp)[1]


class TensorFlowNestedTapes(SecondWay, TensorFlowWay, name="nested tapes"):
    def second(self, function):
        def gradients(cotangent, tensors, directions):
            with self.tf.GradientTape() as tape:
                tape.watch(tensors)
                first = self.vjp(function)(cotangent, *tensors)[1]
                along = sum(self.tf.reduce_sum(g * d) for g, d in zip(first, directions))
            return tape.gradient(along, tensors, unconnected_gradients="zero")

        return gradients

    def differentiate(self, function, tensors, cotangent, directions):
        return self.second(function)(cotangent, tensors, directions)


class TensorFlowNestedTapesInFunction(TensorFlowNestedTapes, name="nested tapes in a function"):
    def second(self, function):
        return self.tf.function(super().second(function))


class TensorFlowNestedTapesInXla(TensorFlowNestedTapes, name="nested tapes in xla"):
    def second(self, function):
        return self.tf.function(super().second(function), jit_compile=True)


class TensorFlowAccumulatorOverTape(SecondWay, TensorFlowWay, name="accumulator over a tape"):
    def differentiate(self, function, tensors, cotangent, directions):
        def jvp(primals, tangents):
            with self.tf.autodiff.ForwardAccumulator(primals, tangents) as accumulator:
                first = self.vjp(function)(cotangent, *primals)[1]
                along = sum(self.tf.reduce_sum(g * d) for g, d in zip(first, directions))
            return along, accumulator.jvp(along, unconnected_gradients="zero")

        return self.differentiate_columns(tensors, self.backend.tensor(1.0), jvp)[1]


class TensorFlowAccumulatorInAccumulator(SecondWay, TensorFlowWay, name="accumulator in an accumulator"):
    def jvp(self, function, cotangent, directions):
        accumulator = self.tf.autodiff.ForwardAccumulator

        def along_and_tangent(primals, tangents):
            with accumulator(primals, tangents) as outer:
                with accumulator(primals, tuple(directions)) as inner:
                    value = function(*primals)
                first = inner.jvp(value, unconnected_gradients="zero")
                along = self.tf.reduce_sum(self.tf.cast(cotangent, first.dtype) * first)
            return along, outer.jvp(along, unconnected_gradients="zero")

        return along_and_tangent

    def differentiate(self, function, tensors, cotangent, directions):
        jvp = self.jvp(function, cotangent, directions)
        return self.differentiate_columns(tensors, self.backend.tensor(1.0), jvp)[1]


class TensorFlowAccumulatorsInFunction(
    TensorFlowAccumulatorInAccumulator, name="accumulator in an accumulator in a function"
):
    def jvp(self, function, cotangent, directions):
        return self.tf.function(super().jvp(function, cotangent, directions))


def numerical_second_vjp(vjp, inputs, cotangent, directions, step=1e-6):
    """Return what ``SecondWay.second_vjp`` has to, to about 1e-6, of a reference's ``vjp``."""
    return numerical_vjp(partial(vjp, cotangent), inputs, directions, step)


def numerical_vjp(function, inputs, cotangents, step=1e-6):
    """Return the gradient of each input by central differences.

    The function returns one array or several, each with its cotangent.
    """

    def along(*arrays):
        values = function(*arrays)
        values = values if isinstance(values, tuple | list) else [values]
        return sum(np.sum(value * cotangent) for value, cotangent in zip(values, cotangents))

    gradients = []
    for index, x in enumerate(inputs):
        x = np.asarray(x, np.float64)
        moved = [
            [*inputs[:index], x + sign * step * unit, *inputs[index + 1 :]]
            for unit in _basis(x.shape)
            for sign in (1, -1)
        ]
        values = [along(*arrays) for arrays in moved]
        gradients.append((np.subtract(values[::2], values[1::2]) / (2 * step)).reshape(x.shape))
    return gradients
