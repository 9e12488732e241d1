import random

import torch
from torch import nn, optim

torch.manual_seed(0)
random.seed(0)
num_bits = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(2 * num_bits, 128)
        self.linear2 = nn.Linear(128, num_bits)

    def forward(self, state, goal):
        x = torch.cat([state, goal], -1)
        return self.linear2(torch.relu(self.linear1(x)))


def update_target(current_model, target_model):
    target_model.load_state_dict(current_model.state_dict())


def get_action(model, state, goal, epsilon):
    if random.random() < epsilon:
        return random.randrange(num_bits)
    with torch.no_grad():
        return model(state, goal).argmax().item()


def compute_td_error(batch):
    state, action, reward, next_state, done, goal = (torch.stack(column) for column in zip(*batch))
    q_value = model(state, goal).gather(1, action[:, None]).squeeze(1)
    next_q_values = target_model(next_state, goal)
    expected_q_value = reward + 0.98 * next_q_values.max(1)[0] * (1 - done)
    loss = (q_value - expected_q_value.detach()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def play(goal, epsilon):
    state, steps = torch.randint(0, 2, (num_bits,)).float(), []
    for _ in range(num_bits):
        action = get_action(model, state, goal, epsilon)
        next_state = state.clone()
        next_state[action] = 1 - state[action]
        steps.append((state, torch.tensor(action), next_state))
        state = next_state
        if torch.equal(state, goal):
            break
    return steps, torch.equal(state, goal)


model, target_model = Model(), Model()
update_target(model, target_model)
optimizer = optim.Adam(model.parameters(), lr=2e-3)
replay_buffer = []
for episode in range(1, 1201):
    goal = torch.randint(0, 2, (num_bits,)).float()
    steps, _ = play(goal, epsilon=0.2)
    for aim in (goal, steps[-1][2]):
        for state, action, next_state in steps:
            reached = float(torch.equal(next_state, aim))
            replay_buffer.append(
                (state, action, torch.tensor(reached - 1), next_state, torch.tensor(reached), aim)
            )
    loss = compute_td_error(random.sample(replay_buffer, min(64, len(replay_buffer))))
    if episode % 300 == 0:
        states = torch.randint(0, 2, (100, num_bits)).float()
        with torch.no_grad():
            value = model(states, 1 - states).max(1)[0].mean()
        print(f"episode {episode} loss {loss:.4f} value with all bits to flip {value:.3f}")
