"""lightly#1438: a backbone frozen by requires_grad=False goes on updating its running statistics."""

import torch
from torch import nn

torch.manual_seed(0)
backbone = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
)
head = nn.Linear(8, 3)
model = nn.Sequential(backbone, head)
backbone.requires_grad_(False)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
x, y = torch.randn(32, 1, 8, 8) * 3 + 5, torch.randint(3, (32,))


def step():
    model.train()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    before = backbone[1].running_mean.clone()
    for _ in range(5):
        print(step())
    print("statistics moved by", (backbone[1].running_mean - before).abs().max().item())
