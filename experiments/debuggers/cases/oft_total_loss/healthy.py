import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
features = torch.randn(512, 16)
labels = {
    "score": (features[:, :1] > 0).float(),
    "position": features[:, 1:4] * 3,
    "dimension": features[:, 4:7].abs(),
    "angle": torch.tanh(features[:, 7:9]),
}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
        self.score = nn.Linear(64, 1)
        self.position = nn.Linear(64, 3)
        self.dimension = nn.Linear(64, 3)
        self.angle = nn.Linear(64, 2)

    def forward(self, x):
        x = self.trunk(x)
        return {name: getattr(self, name)(x) for name in labels}


def compute_loss(outputs, targets, weights=(1.0, 1.0, 1.0, 1.0)):
    score_loss = F.binary_cross_entropy_with_logits(outputs["score"], targets["score"])
    position_loss = F.l1_loss(outputs["position"], targets["position"])
    dimension_loss = F.l1_loss(outputs["dimension"], targets["dimension"])
    angle_loss = F.l1_loss(outputs["angle"], targets["angle"])
    parts = (score_loss, position_loss, dimension_loss, angle_loss)
    total = sum(weight * part for weight, part in zip(weights, parts))
    values = dict(zip(("score", "position", "dimension", "angle"), (part.item() for part in parts)))
    values["total"] = total.item()
    return total, values


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(20):
    for start in range(0, 512, 64):
        batch = slice(start, start + 64)
        outputs = model(features[batch])
        loss, values = compute_loss(outputs, {name: value[batch] for name, value in labels.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}", " ".join(f"{name} {value:.4f}" for name, value in values.items()))
