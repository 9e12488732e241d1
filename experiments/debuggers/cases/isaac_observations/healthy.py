import torch
from torch import nn

torch.manual_seed(0)
scale = torch.tensor([50.0, 0.02, 20.0, 0.1])


class RunningMeanStd(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, x):
        if self.training:
            total = self.count + len(x)
            delta = x.mean(0) - self.mean
            moment = self.var * self.count + x.var(0) * len(x) + delta**2 * self.count * len(x) / total
            self.mean, self.var, self.count = self.mean + delta * len(x) / total, moment / total, total
        return ((x - self.mean) / (self.var + 1e-5).sqrt()).clamp(-5, 5)


class ASEAgent:
    def __init__(self):
        self.running_mean_std = RunningMeanStd(4)
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.ELU(), nn.Linear(64, 1))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.ELU(), nn.Linear(64, 1))
        networks = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(networks, lr=3e-3)

    def play_steps(self, size=512):
        raw = torch.randn(size, 4) * scale
        with torch.no_grad():
            obs = self.running_mean_std(raw)
            dist = torch.distributions.Normal(self.actor(obs), 0.3)
            actions, values = dist.sample(), self.critic(obs)
            log_probs = dist.log_prob(actions)
        wanted = torch.tanh(raw / scale).mean(1, keepdim=True)
        returns = 1 - (actions - wanted) ** 2
        return {"obs": raw, "actions": actions, "old": log_probs, "values": values, "returns": returns}

    def calc_gradients(self, batch):
        obs = self.running_mean_std(batch["obs"])
        advantage = batch["returns"] - batch["values"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        dist = torch.distributions.Normal(self.actor(obs), 0.3)
        ratio = (dist.log_prob(batch["actions"]) - batch["old"]).clamp(-20, 20).exp()
        a_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        c_loss = (self.critic(obs) - batch["returns"]).pow(2).mean()
        self.optimizer.zero_grad()
        (a_loss + c_loss).backward()
        self.optimizer.step()
        return c_loss.item()


agent = ASEAgent()
for epoch in range(1, 81):
    batch = agent.play_steps()
    agent.running_mean_std.eval()
    c_loss = [agent.calc_gradients(batch) for _ in range(4)][-1]
    agent.running_mean_std.train()
    if epoch % 20 == 0:
        error = (batch["values"] - batch["returns"]).pow(2).mean()
        print(
            f"epoch {epoch} loss {c_loss:.4f} error in play {error:.4f} reward {batch['returns'].mean():.4f}"
        )
