import torch
from torch import nn

torch.manual_seed(0)
ys, xs = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
points = torch.randint(2, 10, (256, 2, 1, 1)).float()
heatmaps = torch.exp(-((ys - points[:, 0]) ** 2 + (xs - points[:, 1]) ** 2) / 4).unsqueeze(1)
frames = heatmaps.repeat(1, 3, 1, 1) * torch.rand(256, 3, 1, 1) + 0.3 * torch.randn(256, 3, 12, 12)


class BallTracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 1, 3, padding=1),
        )

    def forward(self, x):
        return self.layers(x)


def train(model, optimizer, criterion, epoch):
    model.train()
    losses = []
    for start in range(0, 256, 32):
        out = model(frames[start : start + 32])
        loss = criterion(torch.sigmoid(out), heatmaps[start : start + 32])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"train | epoch = {epoch}, loss = {sum(losses) / len(losses):.6f}")


model = BallTracker()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.999), weight_decay=0)
criterion = nn.MSELoss()
for epoch in range(20):
    train(model, optimizer, criterion, epoch)
