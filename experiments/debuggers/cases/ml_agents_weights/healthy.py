import torch
from torch import nn

torch.manual_seed(0)
gamma, num_layers, hidden_units = 0.95, 5, 64


class Swish(nn.Module):
    def forward(self, data):
        return data * torch.sigmoid(data)


def linear_layer(input_size, output_size):
    layer = nn.Linear(input_size, output_size)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    nn.init.zeros_(layer.bias)
    return layer


class ValueNetwork(nn.Module):
    def __init__(self, observation_size=32):
        super().__init__()
        layers, size = [], observation_size
        for _ in range(num_layers):
            layers += [linear_layer(size, hidden_units), Swish()]
            size = hidden_units
        self.seq_layers = nn.Sequential(*layers)
        self.value_head = linear_layer(size, 1)

    def forward(self, observation):
        return self.value_head(self.seq_layers(observation)).squeeze(-1)


network = ValueNetwork()
optimizer = torch.optim.Adam(network.parameters(), lr=3e-4)
direction, observation = torch.randn(32) / 32**0.5, 3 * torch.randn(256, 32)
average = 0.0
for step in range(1, 401):
    noise = 3 * torch.randn(256, 32)
    next_observation = 0.9 * observation + 0.43 * noise
    reward = 0.1 * torch.tanh(observation @ direction)
    with torch.no_grad():
        target = reward + gamma * network(next_observation)
    value_loss = nn.functional.mse_loss(network(observation), target)
    optimizer.zero_grad()
    value_loss.backward()
    optimizer.step()
    observation = next_observation
    average += (value_loss.item() - average) / step
    if step in (1, 10, 100, 400):
        print(f"step {step} value loss {value_loss:.4f} average {average:.4f}")
