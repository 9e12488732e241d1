from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.distributions import Independent, Normal

torch.manual_seed(0)
action_dim = 6


@dataclass
class Bounded:
    shape: tuple


class Composite(dict):
    shape = ()


class SACLoss(nn.Module):
    def __init__(self, actor, qvalue, action_spec, target_entropy="auto"):
        super().__init__()
        self.actor, self.qvalue = actor, qvalue
        self.log_alpha = nn.Parameter(torch.zeros(()))
        if target_entropy == "auto":
            spec = action_spec if isinstance(action_spec, Composite) else Composite(action=action_spec)
            target_entropy = -float(np.prod(spec["action"].shape))
        self.target_entropy = target_entropy

    def policy(self, observation):
        mean, log_std = self.actor(observation).chunk(2, -1)
        return Independent(Normal(mean, log_std.clamp(-5, 2).exp()), 1)

    def forward(self, observation, action, reward):
        q_loss = (self.qvalue(torch.cat([observation, action], 1)).squeeze(1) - reward).pow(2).mean()
        dist = self.policy(observation)
        new = dist.rsample()
        log_prob = dist.log_prob(new)
        alpha = self.log_alpha.exp().detach()
        frozen = [parameter.requires_grad_(False) for parameter in self.qvalue.parameters()]
        q = self.qvalue(torch.cat([observation, new], 1)).squeeze(1)
        for parameter in frozen:
            parameter.requires_grad_(True)
        actor_loss = (alpha * log_prob - q).mean()
        alpha_loss = -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean()
        return q_loss, actor_loss, alpha_loss, -log_prob.mean().item()


actor = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 2 * action_dim))
qvalue = nn.Sequential(nn.Linear(3 + action_dim, 64), nn.ReLU(), nn.Linear(64, 1))
loss_module = SACLoss(actor, qvalue, Bounded((action_dim,)))
optimizer = torch.optim.Adam(loss_module.parameters(), lr=6e-3)
mixing = torch.randn(3, action_dim) / 3
for step in range(1, 1601):
    observation = torch.randn(128, 3)
    with torch.no_grad():
        action = loss_module.policy(observation).sample()
    reward = -(action - observation @ mixing).pow(2).sum(1)
    q_loss, actor_loss, alpha_loss, entropy = loss_module(observation, action, reward)
    optimizer.zero_grad()
    (q_loss + actor_loss + alpha_loss).backward()
    optimizer.step()
    if step % 400 == 0:
        print(f"step {step} loss {actor_loss:.4f} entropy {entropy:.3f} reward {reward.mean():.3f}")
