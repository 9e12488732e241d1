import torch
from torch import nn

torch.manual_seed(0)
cities, batch_size = 8, 128


class Actor(nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(2, size), nn.ReLU(), nn.Linear(size, size))
        self.query = nn.Sequential(nn.Linear(2, size), nn.ReLU(), nn.Linear(size, size))

    def forward(self, points):
        keys = self.encode(points)
        rows, visited = torch.arange(len(points)), torch.zeros(points.shape[:2], dtype=torch.bool)
        at, tour, log_prob = torch.zeros(len(points), dtype=torch.long), [], 0.0
        for step in range(cities):
            if step:
                logits = (keys * self.query(points[rows, at])[:, None]).sum(-1) / 8
                policy = torch.distributions.Categorical(logits=logits.masked_fill(visited, -1e9))
                at = policy.sample()
                log_prob = log_prob + policy.log_prob(at)
            visited = visited.scatter(1, at[:, None], True)
            tour.append(at)
        path = points[rows[:, None], torch.stack(tour, 1)]
        return (path - path.roll(-1, 1)).norm(dim=-1).sum(1), log_prob


actor = Actor()
critic = nn.Sequential(nn.Flatten(), nn.Linear(2 * cities, 64), nn.ReLU(), nn.Linear(64, 1))
actor_optim = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_optim = torch.optim.Adam(critic.parameters(), lr=1e-3)
length = error = 0.0
for step in range(1, 601):
    points = torch.rand(batch_size, cities, 2)
    reward, log_prob = actor(points)
    value = critic(points).squeeze(1)
    actor_loss = ((reward - value) * log_prob).mean()
    critic_loss = nn.functional.mse_loss(value, reward.detach())
    actor_optim.zero_grad()
    critic_optim.zero_grad()
    (actor_loss + critic_loss).backward()
    actor_optim.step()
    critic_optim.step()
    length, error = 0.98 * length + 0.02 * reward.mean().item(), 0.98 * error + 0.02 * critic_loss.item()
    if step % 150 == 0:
        print(f"step {step} loss {actor_loss:.4f} critic {error:.4f} tour {length:.4f}")
