import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

torch.manual_seed(0)
time_window, num_features = 15, 6
phase = torch.rand(256, 1, num_features) * 6.28
series = torch.sin(torch.arange(time_window).view(1, -1, 1) * 0.5 + phase) + 0.05 * torch.randn(256, 15, 6)
cfg = {"scheduler": 0, "max_epochs": 60, "learning_rate": 2e-3, "step_size": 20}


class RNNVAE(nn.Module):
    def __init__(self, zdims=16, hidden=32):
        super().__init__()
        self.encoder = nn.GRU(num_features, hidden, batch_first=True)
        self.mean, self.logvar = nn.Linear(hidden, zdims), nn.Linear(hidden, zdims)
        self.decoder = nn.GRU(zdims, hidden, batch_first=True)
        self.hidden_to_output = nn.Linear(hidden, num_features)

    def forward(self, data):
        _, hidden = self.encoder(data)
        mean, logvar = self.mean(hidden[0]), self.logvar(hidden[0])
        z = mean + (0.5 * logvar).exp() * torch.randn_like(mean)
        decoded, _ = self.decoder(z[:, None].expand(-1, time_window, -1))
        return self.hidden_to_output(decoded), mean, logvar


model = RNNVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=cfg["learning_rate"], amsgrad=True)
if cfg["scheduler"]:
    scheduler = StepLR(optimizer, step_size=cfg["step_size"], gamma=0.2, last_epoch=-1)
else:
    scheduler = StepLR(optimizer, step_size=cfg["step_size"], gamma=0, last_epoch=-1)
for epoch in range(1, cfg["max_epochs"] + 1):
    train_loss = 0.0
    for batch in series.split(32):
        output, mean, logvar = model(batch)
        kl = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1).mean()
        loss = nn.functional.mse_loss(output, batch) + 1e-3 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_loss += loss.item() / 8
    scheduler.step()
    if epoch % 15 == 0:
        print(f"epoch {epoch} loss {train_loss:.4f} rate {optimizer.param_groups[0]['lr']:.4f}")
