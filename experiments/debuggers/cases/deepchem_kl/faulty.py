import torch
from torch import nn

torch.manual_seed(0)
latent = torch.randn(512, 2)
data = torch.tanh(latent @ torch.randn(2, 12)) + 0.3 * torch.randn(512, 12)


class VAE_KLDivergence:
    def __call__(self, logvar, mu):
        return 0.5 * torch.mean(mu.pow(2) + logvar.pow(2) - logvar.pow(2).log() - 1, dim=1)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 12))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.decoder(z), mu, logvar


model = VAE()
kl_loss = VAE_KLDivergence()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(30):
    total = 0.0
    for i in range(0, 512, 64):
        reconstruction, mu, logvar = model(data[i : i + 64])
        loss = (reconstruction - data[i : i + 64]).pow(2).mean() + kl_loss(logvar, mu).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / 8
    if epoch % 5 == 4:
        _, mu, logvar = model(data)
        gaussian = torch.distributions.Normal(mu, torch.exp(0.5 * logvar))
        exact = torch.distributions.kl_divergence(gaussian, torch.distributions.Normal(0.0, 1.0)).mean()
        print(f"epoch {epoch} loss {total:.4f} exact KL {exact:.4f} size of logvar {logvar.abs().mean():.3f}")
