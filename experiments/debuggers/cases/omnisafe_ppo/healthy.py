import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
entropy_coef, clip = 0.2, 0.2


class GaussianActor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        nn.init.normal_(self.mean[2].weight, std=0.01)
        self.log_std = nn.Parameter(torch.full((1,), -1.5))
        nn.init.constant_(self.mean[2].bias, -0.3)

    def forward(self, observation):
        return Normal(self.mean(observation), self.log_std.exp())


def reward_of(action):
    near, far = torch.exp(-((action + 0.3) ** 2) / 0.1), 2 * torch.exp(-((action - 1.2) ** 2) / 0.1)
    return (near + far).squeeze(-1)


def loss_pi(actor, observation, action, log_prob, advantage):
    distribution = actor(observation)
    ratio = torch.exp(distribution.log_prob(action).sum(-1) - log_prob)
    loss = -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    loss -= entropy_coef * distribution.entropy().mean()
    return loss


actor = GaussianActor()
optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
for epoch in range(1, 201):
    observation = torch.randn(256, 2)
    with torch.no_grad():
        distribution = actor(observation)
        action = distribution.sample()
        log_prob = distribution.log_prob(action).sum(-1)
    reward = reward_of(action)
    advantage = reward - reward.mean()
    for _ in range(5):
        loss = loss_pi(actor, observation, action, log_prob, advantage)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 50 == 0:
        std = actor.log_std.exp().item()
        print(f"epoch {epoch} loss {loss:.4f} reward {reward.mean():.4f} deviation {std:.4f}")
