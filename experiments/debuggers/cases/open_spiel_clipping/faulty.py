import torch
from torch import nn

torch.manual_seed(0)
best = torch.arange(6) % 3


class PolicyGradient:
    def __init__(self, max_norm):
        self.max_norm = max_norm
        self.torso = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.policy_logits_layer = nn.Linear(32, 3)
        self.value_head = nn.Linear(32, 1)
        torso = list(self.torso.parameters())
        self.critic_optimizer = torch.optim.SGD(torso + list(self.value_head.parameters()), lr=1e-3)
        self.pi_optimizer = torch.optim.SGD(torso + list(self.policy_logits_layer.parameters()), lr=1e-2)

    def act(self, states):
        return torch.distributions.Categorical(logits=self.policy_logits_layer(self.torso(states)))

    def critic_update(self, states, returns):
        loss = (self.value_head(self.torso(states)).squeeze(1) - returns).pow(2).mean()
        self.critic_optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.value_head.parameters(), self.max_norm)
        self.critic_optimizer.step()

    def pi_update(self, states, actions, returns):
        values = self.value_head(self.torso(states)).squeeze(1).detach()
        loss = -(self.act(states).log_prob(actions) * (returns - values)).mean()
        self.pi_optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.value_head.parameters(), self.max_norm)
        self.pi_optimizer.step()
        return loss.item(), torch.stack([p.grad.norm() for p in self.policy_logits_layer.parameters()]).norm()


agent = PolicyGradient(max_norm=1.0)
largest = 0.0
for update in range(200):
    cards = torch.randint(0, 6, (64,))
    states = nn.functional.one_hot(cards, 6).float()
    actions = agent.act(states).sample()
    returns = 100.0 * (actions == best[cards]).float() - 50
    agent.critic_update(states, returns)
    loss, norm = agent.pi_update(states, actions, returns)
    largest = max(largest, norm.item())
    if update % 25 == 24:
        print(f"update {update} loss {loss:.3f} return {returns.mean():.2f} largest gradient {largest:.3f}")
