import torch
from torch import nn

torch.manual_seed(0)
prompts = torch.randn(16, 8)
answers = torch.randint(0, 10, (16,))
policy = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)


def populate_advantages(rewards):
    advantages = []
    for group in rewards:
        mean, std = group.mean(), group.std(unbiased=False)
        advantages.append((group - mean) / (std + 1e-4))
    return torch.stack(advantages)


for step in range(150):
    distribution = torch.distributions.Categorical(logits=policy(prompts)[:, None].expand(-1, 8, -1))
    actions = distribution.sample()
    rewards = (actions == answers[:, None]).float() + 0.01 * torch.randn(16, 8)
    advantages = populate_advantages(rewards)
    loss = -(advantages * distribution.log_prob(actions)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 0.3)
    optimizer.step()
    if step % 25 == 24:
        print(f"step {step} loss {loss:.4f} reward {rewards.mean():.3f} advantage {advantages.mean():.3f}")
