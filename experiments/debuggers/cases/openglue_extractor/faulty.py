import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
patches = torch.randn(512, 16)
scores = patches[:, :4].pow(2).mean(1, keepdim=True)
superpoint = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
pretraining = torch.optim.Adam(superpoint.parameters(), lr=1e-2)
for _ in range(200):
    pretraining.zero_grad()
    F.mse_loss(superpoint(patches), scores).backward()
    pretraining.step()
weights = {name: value.clone() for name, value in superpoint.state_dict().items()}


class MatchingTrainingModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.superpoint = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
        self.superpoint.load_state_dict(weights)
        self.superglue = nn.Sequential(nn.Linear(34, 32), nn.ReLU(), nn.Linear(32, 1))
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)

    def forward(self, first, second):
        keypoints = [self.superpoint(first), self.superpoint(second)]
        return self.superglue(torch.cat([first, second, *keypoints], dim=1))

    def training_step(self, first, second, same):
        loss = F.binary_cross_entropy_with_logits(self(first, second), same)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


module = MatchingTrainingModule()
for step in range(200):
    same = torch.rand(64, 1).round()
    first = patches[torch.randint(0, 512, (64,))]
    second = torch.where(same > 0, first + 0.1 * torch.randn(64, 16), patches[torch.randint(0, 512, (64,))])
    loss = module.training_step(first, second, same)
    if step % 40 == 39:
        with torch.no_grad():
            error = F.mse_loss(module.superpoint(patches), scores)
        print(f"step {step} loss {loss:.4f} keypoint error {error:.4f}")
