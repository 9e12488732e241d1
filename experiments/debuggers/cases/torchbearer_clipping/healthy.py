import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 10)
y = 50 * x[:, :3].sum(1, keepdim=True) + 20 * torch.randn(320, 1).pow(3)


class GradientNormClipping:
    def __init__(self, max_norm, norm_type=2, params=None):
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.params = params

    def on_start(self, state):
        if self.params is None:
            self.params = list(filter(lambda p: p.requires_grad, state["model"].parameters()))

    def on_backward(self, state):
        torch.nn.utils.clip_grad_norm_(self.params, self.max_norm, norm_type=self.norm_type)


class Trial:
    def __init__(self, model, optimizer, criterion, callbacks):
        self.state = {"model": model, "optimizer": optimizer, "criterion": criterion}
        self.callbacks = callbacks

    def run(self, epochs):
        for callback in self.callbacks:
            callback.on_start(self.state)
        for epoch in range(epochs):
            largest = total = 0.0
            for i in range(0, 320, 32):
                self.state["optimizer"].zero_grad()
                loss = self.state["criterion"](self.state["model"](x[i : i + 32]), y[i : i + 32])
                loss.backward()
                for callback in self.callbacks:
                    callback.on_backward(self.state)
                norms = [p.grad.norm() for p in self.state["model"].parameters()]
                largest = max(largest, torch.stack(norms).norm().item())
                self.state["optimizer"].step()
                total += loss.item() / 10
            print(f"{epoch}: running_loss={total:.4g} largest gradient={largest:.4g}")


model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
Trial(model, optimizer, nn.MSELoss(), callbacks=[GradientNormClipping(5)]).run(15)
