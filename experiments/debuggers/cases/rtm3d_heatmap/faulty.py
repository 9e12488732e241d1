import torch
from torch import nn

torch.manual_seed(0)
images = torch.randn(128, 1, 12, 12)
peaks = images.flatten(1).argmax(1)
targets = torch.zeros(128, 144)
targets[torch.arange(128), peaks] = 1.0
targets = targets.view(128, 1, 12, 12)
images = images + 40 * targets


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        x = self.backbone(x)
        heatmap = torch.sigmoid(self.head(x))
        return heatmap


def focal_loss(pred, gt):
    positive = gt.eq(1).float()
    negative = gt.lt(1).float()
    positive_loss = torch.log(pred) * torch.pow(1 - pred, 2) * positive
    negative_loss = torch.log(1 - pred) * torch.pow(pred, 2) * negative
    return -(positive_loss.sum() + negative_loss.sum()) / positive.sum()


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for epoch in range(40):
    total = 0.0
    for start in range(0, 128, 32):
        pred = model(images[start : start + 32])
        loss = focal_loss(pred, targets[start : start + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"Epoch: [{epoch}/40] Loss {total / 4:.4e}")
