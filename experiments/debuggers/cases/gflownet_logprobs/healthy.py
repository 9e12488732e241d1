import torch
from torch import nn

torch.manual_seed(0)
length = 8


class Grid:
    def reward(self, states):
        return 0.1 + 5.0 * (states == length - 1).all(1).float() + 2.0 * (states == 0).all(1).float()

    def mask(self, states):
        full = states >= length - 1
        return torch.cat([full, torch.zeros(len(states), 1, dtype=torch.bool)], dim=1)

    def get_logprobs(self, policy_outputs, actions, mask):
        logits = policy_outputs.clone()
        logits = logits.masked_fill(mask, -1e9)
        logsoftmax = torch.log_softmax(logits, dim=1)
        return logsoftmax.gather(1, actions[:, None]).squeeze(1)


env = Grid()
policy = nn.Sequential(nn.Linear(2 * length, 64), nn.LeakyReLU(), nn.Linear(64, 3))
log_z = nn.Parameter(torch.zeros(()))
optimizer = torch.optim.Adam([{"params": policy.parameters(), "lr": 5e-3}, {"params": [log_z], "lr": 0.05}])


def sample(batch):
    states = torch.zeros(batch, 2, dtype=torch.long)
    done = torch.zeros(batch, dtype=torch.bool)
    forward = torch.zeros(batch)
    backward = torch.zeros(batch)
    for _ in range(2 * length):
        outputs = policy(nn.functional.one_hot(states, length).flatten(1).float())
        mask = env.mask(states)
        actions = torch.distributions.Categorical(logits=outputs.detach().masked_fill(mask, -1e9)).sample()
        forward = forward + env.get_logprobs(outputs, actions, mask) * ~done
        done = done | (actions == 2)
        move = nn.functional.one_hot(actions.clamp(max=1), 2) * ~done[:, None]
        states = states + move
        parents = (states > 0).sum(1).clamp(min=1).float()
        backward = backward - parents.log() * ~done
    return states, forward, backward


for step in range(200):
    states, forward, backward = sample(64)
    loss = (log_z + forward - env.reward(states).log() - backward).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 24:
        print(f"step {step} trajectory balance {loss.item():.4f} log Z {log_z.item():.3f}")
