import torch
from torch import nn

torch.manual_seed(0)
tau = 0.1
groups = torch.randint(0, 4, (64, 8))
centers = 12 * torch.randn(64, 4, 2)
positions = torch.gather(centers, 1, groups[..., None].expand(-1, -1, 2)) + torch.randn(64, 8, 2)
same_group = (groups[:, :, None] == groups[:, None]).float()


class GroupGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.group_cnn = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
        self.th = nn.Parameter(torch.tensor([1.0]))

    def forward(self, v):
        v = v + self.group_cnn(v)
        dist_mat = (v[:, :, None] - v[:, None]).pow(2).sum(-1).add(1e-6).sqrt()
        sig = (-(dist_mat - self.th) / tau).sigmoid()
        return sig


model = GroupGenerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10):
    loss_batch = 0.0
    for start in range(0, 64, 16):
        optimizer.zero_grad()
        same = model(positions[start : start + 16])
        loss = (same - same_group[start : start + 16]).pow(2).mean()
        if torch.isnan(loss):
            loss = torch.zeros(1, requires_grad=True).sum()
        loss.backward()
        optimizer.step()
        loss_batch += loss.item()
    print(f"Epoch: {epoch} loss: {loss_batch / 4:.6f}")
