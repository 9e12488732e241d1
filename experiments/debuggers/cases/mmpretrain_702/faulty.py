import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target)


class VGG(nn.Module):
    def __init__(self, frozen_stages=-1):
        super().__init__()
        self.frozen_stages = frozen_stages
        self.stages = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
                nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            ]
        )

    def _freeze_stages(self):
        for stage in self.stages[: self.frozen_stages]:
            stage.eval()
            for param in stage.parameters():
                param.requires_grad = False

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x.flatten(1)

    def train(self, mode=True):
        super().train(mode)
        if self.frozen_stages > 0:
            self._freeze_stages()
        return self


model = nn.Sequential(VGG(frozen_stages=1), nn.Linear(128, 10))
pretrained = model[0].stages[0][0].weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(5):
    for i in range(0, 1280, 64):
        loss = F.cross_entropy(model(images[i : i + 64]), labels[i : i + 64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drift = (model[0].stages[0][0].weight - pretrained).abs().max()
    print(f"epoch {epoch} loss {loss.item():.4f} change of the frozen stage {drift:.4f}")
