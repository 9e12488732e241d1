import torch
from torch import nn

torch.manual_seed(0)


def decaying(base_rate, decay):
    t = 0
    while True:
        yield base_rate / (1.0 + decay * t)
        t += 1


class Optimizer:
    def __init__(self, learn_rate):
        self.schedules = {"learn_rate": learn_rate}
        self.step_schedules()

    def step_schedules(self):
        for key, schedule in self.schedules.items():
            setattr(self, key, next(schedule))


class PyTorchShim:
    def __init__(self, model):
        self._model = model
        self._optimizer = None

    def begin_update(self, inputs):
        output = self._model(inputs)

        def backprop(gradient):
            output.backward(gradient)

        return output.detach(), backprop

    def _create_optimizer(self, sgd):
        return torch.optim.SGD(self._model.parameters(), lr=sgd.learn_rate, momentum=0.9)

    def finish_update(self, sgd):
        if self._optimizer is None:
            self._optimizer = self._create_optimizer(sgd)
        for group in self._optimizer.param_groups:
            group["lr"] = sgd.learn_rate
        self._optimizer.step()
        self._optimizer.zero_grad()


shim = PyTorchShim(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1)))
sgd = Optimizer(decaying(0.02, 0.05))
weights, average = torch.randn(10, 1) / 3, 1.0
for step in range(1, 1001):
    x = torch.randn(8, 10)
    y = torch.sin(x @ weights) + 0.3 * torch.randn(8, 1)
    guess, backprop = shim.begin_update(x)
    backprop(2 * (guess - y) / len(x))
    shim.finish_update(sgd)
    sgd.step_schedules()
    average = 0.99 * average + 0.01 * (guess - y).pow(2).mean().item()
    if step % 250 == 0:
        used = shim._optimizer.param_groups[0]["lr"]
        print(f"step {step} loss {average:.4f} schedule {sgd.learn_rate:.4f} rate in use {used:.4f}")
