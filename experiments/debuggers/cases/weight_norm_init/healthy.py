import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

torch.manual_seed(0)
depth, width = 16, 48


def make_layer(inputs, outputs):
    layer = weight_norm(nn.Linear(inputs, outputs, bias=False))
    with torch.no_grad():
        layer.weight = nn.init.orthogonal_(torch.empty(outputs, inputs), gain=1.2)
    return layer


class DeepNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(make_layer(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x).squeeze(-1)


model = DeepNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
direction, average = torch.randn(width) / width**0.5, 1.0
for step in range(1, 301):
    x = torch.randn(64, width)
    output = model(x)
    loss = nn.functional.mse_loss(output, torch.tanh(2 * x @ direction))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average = 0.95 * average + 0.05 * loss.item()
    if step % 75 == 0:
        print(f"step {step} loss {average:.4f} deviation of the outputs {output.std():.4f}")
