import torch
from torch import nn

torch.manual_seed(0)
features = torch.randn(256, 300)


def init_(layer):
    nn.init.zeros_(layer.bias.data)
    nn.init.orthogonal_(layer.weight.data, 1)
    return layer


class Critic(nn.Module):
    def __init__(self, feature_count):
        super().__init__()
        self.fc1 = nn.utils.spectral_norm(init_(nn.Linear(feature_count, feature_count)))
        self.act1 = nn.PReLU(feature_count)
        self.fc2 = nn.utils.spectral_norm(init_(nn.Linear(feature_count, feature_count)))
        self.act2 = nn.PReLU(feature_count)
        self.out = init_(nn.Linear(feature_count, 1))

    def forward(self, x):
        return self.out(self.act2(self.fc2(self.act1(self.fc1(x)))))


critic = Critic(300)
optimizer = torch.optim.SGD(critic.parameters(), lr=1e-4)
critic.eval()
with torch.no_grad():
    before = critic(features).abs().mean()
critic.train()
for step in range(5):
    real, fake = features[:128] + 0.5, features[128:] - 0.5
    loss = torch.relu(1 - critic(real)).mean() + torch.relu(1 + critic(fake)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
critic.eval()
with torch.no_grad():
    after = critic(features).abs().mean()
print(f"size of outputs before the training {before:.4f} and after it {after:.4f}")
