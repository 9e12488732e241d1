import torch
from torch import nn

torch.manual_seed(0)
steps, width = 1000, 16
alphas_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0)
basis = torch.randn(3, width)
train_images, val_images = torch.randn(256, 3) @ basis, torch.randn(16, 3) @ basis


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width + 1, 128), nn.SiLU(), nn.Linear(128, width))

    def forward(self, latents, timesteps):
        return self.net(torch.cat([latents, timesteps[:, None] / steps], 1))


def get_model_prediction_and_target(unet, images):
    noise, timesteps = torch.randn_like(images), torch.randint(0, steps, (len(images),))
    scale = alphas_bar[timesteps, None]
    noisy = scale.sqrt() * images + (1 - scale).sqrt() * noise
    return unet(noisy, timesteps), noise


class EveryDreamValidator:
    def __init__(self, seed=555):
        self.seed = seed

    def do_validation(self, unet):
        unet.eval()
        loss = self._calculate_validation_loss(unet)
        unet.train()
        return loss

    def _calculate_validation_loss(self, unet):
        with torch.no_grad():
            prediction, target = get_model_prediction_and_target(unet, val_images)
        return nn.functional.mse_loss(prediction, target).item()


unet, validator = UNet(), EveryDreamValidator()
optimizer = torch.optim.AdamW(unet.parameters(), lr=2e-3)
for epoch in range(1, 81):
    for batch in torch.randperm(256).split(32):
        prediction, target = get_model_prediction_and_target(unet, train_images[batch])
        loss = nn.functional.mse_loss(prediction, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 20 == 0:
        first, second = validator.do_validation(unet), validator.do_validation(unet)
        print(f"epoch {epoch} loss {loss:.4f} validation {first:.4f}, once more {second:.4f}")
