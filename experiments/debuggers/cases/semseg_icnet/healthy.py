import warnings

import torch
from torch import nn
from torch.nn import functional as F

warnings.simplefilter("ignore")
torch.manual_seed(0)
cfg = {"loss": {"name": "cross_entropy", "size_average": True}, "optimizer": {"lr": 0.01, "momentum": 0.9}}


def cross_entropy2d(input, target, size_average=True):
    n, c, h, w = input.size()
    input = input.permute(0, 2, 3, 1).reshape(-1, c)
    return F.cross_entropy(input, target.reshape(-1), ignore_index=250, size_average=size_average)


class ICNet(nn.Module):
    def __init__(self, n_classes=4):
        super().__init__()
        self.low = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.high = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.classification = nn.Conv2d(32, n_classes, 1)

    def forward(self, x):
        low = F.interpolate(self.low(x), scale_factor=2)
        return self.classification(torch.cat([low, self.high(x)], 1))


def load_images(size=8):
    labels = torch.randint(0, 4, (size, 4, 4)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    images = colors[labels].permute(0, 3, 1, 2) + 0.5 * torch.randn(size, 3, 32, 32)
    return images, labels


colors = torch.randn(4, 3)
model = ICNet()
optimizer = torch.optim.SGD(model.parameters(), **cfg["optimizer"])
options = {key: value for key, value in cfg["loss"].items() if key != "name"}
for i in range(1, 81):
    images, labels = load_images()
    outputs = model(images)
    loss = cross_entropy2d(outputs, labels, **options)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 20 == 0:
        right = (outputs.argmax(1) == labels).float().mean()
        print(f"Iter {i} Loss: {loss:.4f} pixels right {right:.3f}")
