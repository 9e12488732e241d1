"""Watching training steps of PyTorch without changing them."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
import torch.utils.checkpoint
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from gradtricks.doctor.operations import BAD, SourceLine, calling_line
from gradtricks.doctor.recording import replaced
from gradtricks.doctor.reports import Cause, GradientReport
from gradtricks.doctor.torch._by_hand import ByHand
from gradtricks.doctor.torch._graph import (
    FREED,
    is_floating,
    is_freed,
    same_draws,
    saving_nodes,
    status_of,
    statuses_of,
    tensors_of,
)
from gradtricks.doctor.torch._late import LateRecorder
from gradtricks.doctor.torch._layers import Layers
from gradtricks.doctor.torch._scalers import on_scale, on_step
from gradtricks.doctor.torch._strangers import Strangers
from gradtricks.doctor.torch._updates import Updates, parameters_of
from gradtricks.doctor.torch.tracing import eagerly, explained
from gradtricks.doctor.watching import EnoughSeen, Watching

_ADDING = ("zero_", "_foreach_zero_", "add_", "sub_", "detach_", "requires_grad_", "copy_")
# Properties that hold no tensor, and are asked for all the time.
_PLAIN = ("shape", "dtype", "device", "ndim", "requires_grad", "grad_fn", "is_leaf", "is_nested")


class Watch(Watching, TorchFunctionMode):
    """Watches what a training does: its operations, backward passes, clips, modes and updates."""

    recorder: LateRecorder
    patience_s, most = 20.0, 50

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer] = (), *, limit: int | None = 0) -> None:
        super().__init__(limit)
        self.deaf, self.stepping, self.failed = 0, 0, False
        self.scaled_pass = False  # whether the last backward pass was of a scaled loss, and is that still
        self.strangers, self.constants = Strangers(), set[float]()
        self.names: dict[torch.Tensor, str] = {}
        self.updates, self.layers = Updates(self.history, self.names), Layers(self)
        self.by_hand = ByHand()
        for optimizer in optimizers:
            self.updates.meet(optimizer)
        self.begin()

    def add(self, model: torch.nn.Module, prefix: str = "") -> None:
        self.models.append(model)
        for name, parameter in model.named_parameters():
            if is_floating(parameter) and parameter not in self.names:
                self.names[parameter] = prefix + name
                kind = self.history.trainable if parameter.requires_grad else self.history.frozen
                kind.append(prefix + name)
                self.recorder.add_input(parameter)
        self.updates.count()

    def begin(self) -> None:
        """Forget the operations of the update before."""
        self.recorder = LateRecorder(list(self.names))
        self.recorder.constants = self.constants
        self.layers.begin()
        self.silent, self.scaled = [], []

    def __enter__(self) -> "Watch":
        clips, scaler = torch.nn.utils.clip_grad, torch.amp.grad_scaler.GradScaler
        self.stack = ExitStack()
        self.stack.enter_context(eagerly())
        for handle in (
            register_optimizer_step_pre_hook(self.before_update),
            register_optimizer_step_post_hook(self.after_update),
            register_module_forward_pre_hook(self.layers.before),
            register_module_forward_hook(self.layers.after, always_call=True),
        ):
            self.stack.callback(handle.remove)
        for owner, name, note in (
            (clips, "_get_total_norm", self.note_clip),
            (clips, "_clip_grads_with_norm_", None),
            (torch.utils.checkpoint, "check_backward_validity", self.note_checkpoint),
            (scaler, "unscale_", self.note_unscaling),
        ):
            self.stack.enter_context(replaced(owner, name, self.unheard(getattr(owner, name), note)))
        for owner, name, heard in (*self.layers.stand_ins(), *self.updates.stand_ins()):
            self.stack.enter_context(replaced(owner, name, heard))
        self.stack.enter_context(replaced(scaler, "scale", on_scale(self, scaler.scale)))
        self.stack.enter_context(replaced(scaler, "step", on_step(self, scaler.step)))
        engine = "_engine_run_backward"  # what both backward and grad call
        heard = self.on_backward(getattr(torch.autograd, engine))
        self.stack.enter_context(replaced(torch.autograd, engine, heard))
        super().__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        super().__exit__(kind, error, trace)
        self.stack.close()
        # What a backward pass failed of is in the history.
        meant = isinstance(error, EnoughSeen) or (self.failed and isinstance(error, RuntimeError))
        self.look_back(None if meant else error)
        self.end_step()
        held = {p for optimizer in self.updates.optimizers for p in parameters_of(optimizer)}
        self.history.unregistered += self.strangers.places(held.union(self.names))
        self.by_hand.end(self.history)
        return meant

    def end_step(self) -> None:
        """Keep what was run without gradients, and used for none."""
        self.history.events += [event for event, _ in self.silent]
        self.begin()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        short = getattr(func, "__name__", "")
        if self.deaf or (short == "__get__" and getattr(func.__self__, "__name__", "") in _PLAIN):
            return func(*args, **(kwargs or {}))
        if short == "requires_grad_" or getattr(func, "__self__", None) is torch.Tensor.requires_grad:
            self.updates.note_freezing(args, calling_line())
        in_place = short.endswith("_") and short[:2] != "__" and short not in _ADDING
        in_place = in_place or short in ("__setitem__", "__imul__")
        edited = self.updates.before_edit(args) if in_place else {}
        result = self.recorder.__torch_function__(func, types, args, kwargs)
        if edited:
            self.updates.note_edit(short, args, edited, calling_line(), self.history.events)
        return result

    def unheard(self, original: Callable[..., Any], note: Callable[..., Any] | None) -> Callable[..., Any]:
        """Return a function that is noted, and whose operations aren't recorded."""

        def run(*args: Any, **options: Any) -> Any:
            self.deaf += 1
            try:
                if note:
                    note(*args)
                return original(*args, **options)
            finally:
                self.deaf -= 1

        return run

    def on_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs the engine of autograd."""

        def run(
            outputs: Any, incoming: Any, retain: Any, create: Any, inputs: Any, *rest: Any, **options: Any
        ) -> Any:
            if self.deaf:
                return original(outputs, incoming, retain, create, inputs, *rest, **options)
            place, error = calling_line(), ""
            self.deaf = 1
            try:
                self.by_hand.before_pass(place)
                if self.updates.before_backward():
                    self.note("reset", place=place)
                # With inputs, nobody says which nodes the engine asks.
                nodes = [] if inputs else saving_nodes(outputs)
                if not inputs and is_freed(outputs):
                    raise RuntimeError("Trying to backward through the graph a second time")
                # The graph is kept, so that it can be asked again where a gradient isn't well.
                found = original(outputs, incoming, True, create, inputs, *rest, **options)
                for node in () if retain else nodes:
                    node.metadata[FREED] = True
            except RuntimeError as failure:
                error, self.failed = str(failure).splitlines()[0], True
                raise
            else:
                if options.get("accumulate_grad", False):
                    read = self.recorder.leaves_read()
                    others = self.strangers.find(read, self.names, self.recorder)
                    self.note_backward(list(outputs), place, self.updates.reached() + ("",) * bool(others))
                    maker = self.recorder.makers().get(self.recorder.read(outputs[0]))
                    self.history.events[-1].source = maker.place if maker else None
                    self.layers.look(outputs[0])
                    if not (self.history.updates or self.history.skips):
                        self.by_hand.after_pass(read)
                else:
                    self.note_grad(inputs or (), found, place)
            finally:
                self.look(outputs, place, error)
                self.deaf = 0
            if self.limit and self.by_hand.updates and self.has_seen_enough(self.by_hand.updates):
                raise EnoughSeen
            return found

        return run

    def look(self, outputs: Any, place: SourceLine | None, error: str) -> None:
        gradients = {p: p.grad for p in self.names if p.requires_grad}
        statuses = dict(zip(gradients, statuses_of(list(gradients.values()))))
        self.updates.after_backward(statuses)
        losses = self.as_it_was(list(outputs))
        self.scaled_pass = any(loss is not output for loss, output in zip(losses, outputs))
        loss = "fine" if error else next((s for s in map(status_of, losses) if s in BAD), "fine")
        named = {self.names[p]: status for p, (status, _) in statuses.items()}
        self.judge(named, losses, loss, place, error)
        if "backward through the graph a second time" in error:
            self.history.unwell[-1].stale = self.recorder.stale(outputs)

    def explain(self, outputs: list[Any]) -> GradientReport | None:
        try:
            # Under anomaly detection, to ask again would fail again.
            with same_draws(), torch.autograd.set_detect_anomaly(False):
                return explained(self.recorder, list(self.names.values()) if outputs else [], outputs)
        except RuntimeError:  # a reentrant checkpoint can't be asked again
            return None

    def largest(self, gradients: list[Any]) -> list[float]:
        return [size for _, size in statuses_of(gradients)]

    def note_grad(self, inputs: Any, found: Any, place: SourceLine | None) -> None:
        """Note that gradients were asked for by themselves."""
        given = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor)]
        reached = [p for p, gradient in zip(given, found) if gradient is not None and p in self.names]
        self.history.reached |= {self.names[p] for p in reached}
        samples = [tensor for tensor in given if tensor not in self.names and tensor.ndim > 1]
        normalized = self.layers.normalized
        if normalized and any(len(tensor) > 1 for tensor in samples):
            self.note("coupled", place=place, subjects=tuple(dict.fromkeys(normalized)))

    def note_clip(self, gradients: Any, *options: Any) -> None:
        names = {id(p.grad): name for p, name in self.names.items() if p.grad is not None}
        given = tuple(names[id(each)] for each in gradients if id(each) in names)
        self.note("clip", size=len(gradients), subjects=given)

    def note_unscaling(self, scaler: Any, *optimizer: Any) -> None:
        """Note that the scaling of the loss is undone."""
        self.scaled_pass = False
        if scaler.is_enabled() and scaler.get_scale() != 1:
            self.note("unscale")

    def skip(self, optimizer: torch.optim.Optimizer) -> None:
        self.updates.meet(optimizer)
        self.note_skip(len(self.updates.optimizers))

    def note_checkpoint(self, inputs: Any) -> None:
        """Note a reentrant checkpoint that passes no gradient on."""
        if not any(tensor.requires_grad for tensor in tensors_of(list(inputs))):
            self.note("checkpointed")

    def before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """See what the optimizer is given."""
        self.stepping += 1
        if self.stepping > 1:
            return  # of an optimizer that another one wraps
        self.deaf += 1
        closure = any(map(callable, [*args, *kwargs.values()]))
        # A scaler leaves both to an optimizer that can unscale by itself, as fused ones do.
        scale, skipped = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if scale is not None and scale != 1:
            self.note("unscale")
        self.skipping = skipped is not None and bool(skipped)
        if self.scaled_pass:
            self.scaled_pass = False
            seen = "the optimizer took gradients of a scaled loss, and nobody had undone the scaling"
            self.history.tell(Cause("scaled gradients used", (), seen, calling_line()))
        if not self.skipping:
            self.updates.before(optimizer, calling_line())
            self.by_hand = ByHand()
        self.deaf -= closure  # what a closure runs is the user's
        self.closed = closure

    def after_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """See what it made of that."""
        self.stepping -= 1
        if self.stepping:
            return
        self.deaf += self.closed
        if not self.skipping:
            self.updates.after(optimizer)
        self.deaf -= 1
        if self.skipping:
            self.skip(optimizer)
            return
        update = self.history.updates[-1]
        given = tuple(weight.name for weight in update.weights if weight.gradient != "none")
        self.note("update", place=update.place, subjects=given)
        if not self.history.chain:
            matrices = {p: name for p, name in self.names.items() if p.ndim > 1}
            sizes = self.updates.sizes
            self.history.chain = {n: sizes[p] for p, n in matrices.items() if sizes.get(p)}
        self.end_update(len(self.updates.optimizers))
