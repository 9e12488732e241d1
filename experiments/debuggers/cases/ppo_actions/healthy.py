import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(0)
action_std = 0.3


class Memory:
    def __init__(self):
        self.actions, self.states, self.logprobs, self.rewards = [], [], [], []


class ActorCritic(nn.Module):
    def __init__(self, state_dim=3, action_dim=1):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(state_dim, 32), nn.Tanh(), nn.Linear(32, action_dim), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(state_dim, 32), nn.Tanh(), nn.Linear(32, 1))

    def act(self, state, memory):
        dist = Normal(self.actor(state), action_std)
        action = dist.sample()
        memory.states.append(state)
        memory.actions.append(action)
        memory.logprobs.append(dist.log_prob(action).sum(-1))
        return action

    def evaluate(self, state, action):
        dist = Normal(self.actor(state), action_std)
        return dist.log_prob(action).sum(-1), self.critic(state).squeeze(-1)


def update(policy, optimizer, memory):
    rewards = torch.stack(memory.rewards)
    rewards = (rewards - rewards.mean()) / (rewards.std() + 1e-5)
    old_states = torch.stack(memory.states).squeeze(1).detach()
    old_actions = torch.squeeze(torch.stack(memory.actions), 1).detach()
    old_logprobs = torch.stack(memory.logprobs).squeeze(1).detach()
    for _ in range(10):
        logprobs, values = policy.evaluate(old_states, old_actions)
        ratios = torch.exp((logprobs - old_logprobs).clamp(-20, 20))
        advantages = rewards - values.detach()
        surrogate = torch.min(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
        loss = (-surrogate + 0.5 * (values - rewards) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


policy = ActorCritic()
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
for iteration in range(1, 31):
    memory = Memory()
    for _ in range(200):
        state = torch.rand(1, 3) * 2 - 1
        with torch.no_grad():
            action = policy.act(state, memory)
        memory.rewards.append(-((action - 0.8 * state[:, :1]) ** 2).sum())
    mean_reward = torch.stack(memory.rewards).mean()
    loss = update(policy, optimizer, memory)
    if iteration % 10 == 0:
        print(f"iteration {iteration} loss {loss:.4f} reward {mean_reward:.4f}")
