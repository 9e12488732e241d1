import copy

import torch
from torch import nn

torch.manual_seed(0)
vocab, length = 16, 8


@torch.no_grad()
def compute_approx_kl(log_probs, log_probs_base, loss_mask, kl_estimator_type="k3"):
    kld = log_probs - log_probs_base
    if kl_estimator_type == "k3":
        ratio = (log_probs_base - log_probs).clamp(-20, 20)
        kld = (ratio.exp() - ratio - 1).clamp(-10, 10)
    return kld * loss_mask


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocab, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, vocab)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0]).log_softmax(-1)


def sample(policy, size=64):
    tokens = torch.zeros(size, 1, dtype=torch.long)
    with torch.no_grad():
        for _ in range(length):
            step = policy(tokens)[:, -1].exp()
            tokens = torch.cat([tokens, torch.multinomial(step, 1)], 1)
    return tokens


def token_log_probs(policy, tokens):
    return policy(tokens[:, :-1]).gather(-1, tokens[:, 1:, None]).squeeze(-1)


policy = Policy()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
config = {"use_kl_loss": True, "kl_loss_coef": 1.0}
for step in range(1, 121):
    tokens = sample(policy)
    rewards = (tokens[:, 1:] == 3).float().mean(1)
    advantages = ((rewards - rewards.mean()) / (rewards.std() + 1e-6))[:, None]
    log_probs = token_log_probs(policy, tokens)
    loss_mask = torch.ones_like(log_probs)
    policy_loss = -((log_probs - log_probs.detach()).exp() * advantages).mean()
    kl = compute_approx_kl(log_probs, token_log_probs(reference, tokens), loss_mask)
    kl_loss = (kl * loss_mask).sum() / loss_mask.sum()
    loss = policy_loss
    if config["use_kl_loss"]:
        loss = loss + config["kl_loss_coef"] * kl_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step} loss {loss:.4f} kl {kl_loss:.4f} reward {rewards.mean():.4f}")
