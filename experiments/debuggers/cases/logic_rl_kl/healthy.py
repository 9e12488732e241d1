import copy

import torch
from torch import nn

torch.manual_seed(0)
kl_loss_coef = 0.3
prompts = torch.randn(32, 8)
wanted = torch.randint(0, 6, (32,))
actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 6))
ref_policy = copy.deepcopy(actor).requires_grad_(False)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)


def kl_penalty(logprob, ref_logprob):
    ratio = ref_logprob - logprob
    return ratio.exp() - ratio - 1


def update_policy():
    distribution = torch.distributions.Categorical(logits=actor(prompts)[:, None].expand(-1, 16, -1))
    responses = distribution.sample()
    reference = torch.distributions.Categorical(logits=ref_policy(prompts)[:, None].expand(-1, 16, -1))
    rewards = (responses == wanted[:, None]).float() + 0.3 * (responses % 2)
    advantages = rewards - rewards.mean(1, keepdim=True)
    log_prob = distribution.log_prob(responses)
    pg_loss = -(advantages * log_prob).mean()
    kl_loss = kl_penalty(log_prob, reference.log_prob(responses)).mean()
    policy_loss = pg_loss + kl_loss * kl_loss_coef
    actor_optimizer.zero_grad()
    policy_loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
    actor_optimizer.step()
    return (
        policy_loss.item(),
        torch.distributions.kl_divergence(distribution, reference).mean(),
        rewards.mean(),
    )


for step in range(300):
    loss, kl, reward = update_policy()
    if step % 50 == 49:
        print(f"step {step} loss {loss:.4f} KL from the reference {kl:.4f} reward {reward:.3f}")
