import torch
from torch import nn

torch.manual_seed(0)
latent_dims, batch_size = 4, 64


class GAN:
    def __init__(self, lr=2e-3):
        self.generator = nn.Sequential(nn.Linear(latent_dims, 32), nn.ReLU(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.optim_generator = torch.optim.Adam(self.generator.parameters(), lr, (0.5, 0.999))
        self.optim_discriminator = torch.optim.Adam(self.discriminator.parameters(), lr, (0.5, 0.999))
        self.criterion = nn.BCEWithLogitsLoss()

    def update_discriminator(self, real, fake):
        real_loss = self.criterion(self.discriminator(real), torch.ones(len(real), 1))
        real_loss.backward()
        fake_loss = self.criterion(self.discriminator(fake.detach()), torch.zeros(len(fake), 1))
        fake_loss.backward()
        self.optim_discriminator.step()
        return (real_loss + fake_loss).item()

    def update_generator(self, fake):
        self.generator.zero_grad()
        loss = self.criterion(self.discriminator(fake), torch.ones(len(fake), 1))
        loss.backward()
        self.optim_generator.step()
        return loss.item()

    def step(self, real):
        fake = self.generator(torch.randn(len(real), latent_dims))
        return self.update_discriminator(real, fake), self.update_generator(fake)


gan = GAN()
distance = 0.0
for i in range(1, 1201):
    real = torch.tensor([2.0, -1.0]) + 0.3 * torch.randn(batch_size, 2)
    d_loss, g_loss = gan.step(real)
    with torch.no_grad():
        center = gan.generator(torch.randn(256, latent_dims)).mean(0)
    distance = 0.99 * distance + 0.01 * (center - torch.tensor([2.0, -1.0])).norm().item()
    if i % 300 == 0:
        print(f"step {i} d loss {d_loss:.4f} g loss {g_loss:.4f} distance of the means {distance:.3f}")
