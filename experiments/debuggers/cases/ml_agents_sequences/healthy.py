import torch
from torch import nn

torch.manual_seed(0)
sequence_length, num_actions = 16, 4


def masked_mean(tensor, masks):
    return (tensor * masks).sum() / masks.sum().clamp(min=1.0)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(num_actions, 32, batch_first=True)
        self.logits = nn.Linear(32, num_actions)
        self.value = nn.Linear(32, 1)

    def forward(self, observation):
        hidden, _ = self.memory(observation)
        return torch.distributions.Categorical(logits=self.logits(hidden)), self.value(hidden).squeeze(-1)


def collect(policy, agents=64):
    lengths = torch.randint(2, sequence_length // 2, (agents, 1))
    masks = (torch.arange(sequence_length) < lengths).float()
    wanted = torch.randint(0, num_actions, (agents, sequence_length))
    observation = nn.functional.one_hot(wanted, num_actions).float() * masks[..., None]
    with torch.no_grad():
        dist, values = policy(observation)
        actions = dist.sample() * masks.long()
        reward = (actions == wanted).float() * masks
        advantages = reward - masked_mean(reward, masks) - 0.0 * values
    return observation, actions, dist.log_prob(actions), reward, advantages, masks


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for update in range(1, 81):
    observation, actions, old, reward, advantages, masks = collect(policy)
    for _ in range(3):
        dist, values = policy(observation)
        ratio = (dist.log_prob(actions) - old).exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        value_loss = masked_mean((values - reward) ** 2, masks)
        policy_loss = -masked_mean(surrogate, masks)
        entropy_loss = masked_mean(dist.entropy(), masks)
        loss = policy_loss + 0.5 * value_loss - 0.03 * entropy_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if update % 20 == 0:
        got = masked_mean(reward, masks)
        print(f"update {update} loss {loss:.4f} entropy {entropy_loss:.4f} reward {got:.4f}")
