import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
shape_basis = torch.randn(4, 30)


def make_meshes(size=128):
    return torch.randn(size, 4) @ shape_basis


class Coma(nn.Module):
    def __init__(self, z=4):
        super().__init__()
        self.enc = nn.Linear(30, 64)
        self.mean = nn.Linear(64, z)
        self.deviation = nn.Linear(64, z)
        self.dec = nn.Sequential(nn.Linear(z, 64), nn.ReLU(), nn.Linear(64, 30))

    def encoder(self, x):
        x = F.elu(self.enc(x))
        return F.relu(self.mean(x)), F.relu(self.deviation(x))

    def forward(self, x):
        mean, deviation = self.encoder(x)
        z = mean + deviation * torch.randn_like(mean)
        return self.dec(z), mean, deviation


coma = Coma()
optimizer = torch.optim.Adam(coma.parameters(), lr=2e-3)
for step in range(1, 1201):
    x = make_meshes()
    out, mean, deviation = coma(x)
    kl = 0.5 * (mean**2 + deviation**2 - 2 * torch.log(deviation + 1e-6) - 1).sum(1).mean()
    rebuilt = F.l1_loss(out, x)
    loss = rebuilt + 1e-3 * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 300 == 0:
        low = mean.min().item()
        print(f"step {step} loss {loss:.4f} reconstruction {rebuilt:.4f} lowest mean {low:.3f}")
