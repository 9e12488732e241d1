import torch
from torch import nn

torch.manual_seed(0)
num_envs, horizon, gamma, lam = 32, 32, 0.98, 0.95


class Envs:
    def __init__(self):
        self.position, self.clock = torch.zeros(num_envs), torch.zeros(num_envs)

    def observe(self):
        return torch.stack([self.position / 5, self.clock / 40], 1)

    def step(self, actions):
        self.position = (self.position + 2 * actions - 1).clamp(min=0)
        self.clock = self.clock + 1
        terminations = (self.position >= 5).float()
        truncations = (self.clock >= 40).float() * (1 - terminations)
        final = self.observe()
        alive = 1 - torch.maximum(terminations, truncations)
        self.position, self.clock = self.position * alive, self.clock * alive
        return terminations, terminations, truncations, final


actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
envs = Envs()
for update in range(1, 121):
    rows = []
    with torch.no_grad():
        for _ in range(horizon):
            observation = envs.observe()
            policy = torch.distributions.Categorical(logits=actor(observation))
            action = policy.sample()
            rewards, terminations, truncations, final = envs.step(action)
            dones = torch.maximum(terminations, truncations)
            final_values = critic(final).squeeze(1) * dones
            rewards = rewards + gamma * final_values
            value = critic(observation).squeeze(1)
            rows.append((observation, action, policy.log_prob(action), value, rewards, dones))
        advantage, next_value, returns = torch.zeros(num_envs), critic(envs.observe()).squeeze(1), []
        for _, _, _, value, rewards, dones in reversed(rows):
            delta = rewards + gamma * next_value * (1 - dones) - value
            advantage = delta + gamma * lam * advantage * (1 - dones)
            returns.insert(0, advantage + value)
            next_value = value
    observation, action, old, value, _, _ = (torch.stack(column).flatten(0, 1) for column in zip(*rows))
    target = torch.cat(returns)
    for _ in range(4):
        policy = torch.distributions.Categorical(logits=actor(observation))
        ratio, gain = (policy.log_prob(action) - old).exp(), target - value
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        critic_loss = (critic(observation).squeeze(1) - target).pow(2).mean()
        optimizer.zero_grad()
        (policy_loss + critic_loss).backward()
        optimizer.step()
    if update % 30 == 0:
        print(
            f"update {update} loss {policy_loss:.4f} critic {critic_loss:.4f} mean value {target.mean():.3f}"
        )
