import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
bars = torch.randn(512, 10).cumsum(1)
steps = torch.randint(0, 3, (512,))
rewards = (bars[:, -1] - bars[:, 0]) * torch.tensor([0.0, 1.0, -0.5])[steps] + 0.1 * torch.randn(512)


class SimpleFFDQN(nn.Module):
    def __init__(self, obs_len, actions_n):
        super().__init__()
        self.fc_val = nn.Sequential(nn.Linear(obs_len, 64), nn.ReLU(), nn.Linear(64, 1))
        self.fc_adv = nn.Sequential(nn.Linear(obs_len, 64), nn.ReLU(), nn.Linear(64, actions_n))

    def forward(self, x):
        val = self.fc_val(x)
        adv = self.fc_adv(x)
        return val + adv - adv.mean(dim=1, keepdim=True)


net = SimpleFFDQN(10, 3)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(30):
    total = 0.0
    for i in range(0, 512, 32):
        q_values = net(bars[i : i + 32]).gather(1, steps[i : i + 32, None]).squeeze(1)
        loss = F.mse_loss(q_values, rewards[i : i + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / 16
    with torch.no_grad():
        together = net(bars[:32])
        alone = torch.cat([net(bar[None]) for bar in bars[:32]])
    if epoch % 5 == 4:
        print(f"epoch {epoch} loss {total:.4f} values alone differ by {(together - alone).abs().mean():.4f}")
