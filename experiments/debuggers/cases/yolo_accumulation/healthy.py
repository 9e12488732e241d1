import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
imgs = torch.randn(640, 12)
boxes = torch.stack([imgs[:, :3].sum(1), imgs[:, 3:6].prod(1)], dim=1) + 0.5 * torch.randn(640, 2)
gradient_accumulations = 4

model = nn.Sequential(nn.Linear(12, 64), nn.LeakyReLU(0.1), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
num_steps = 0
for epoch in range(10):
    model.train()
    total = 0.0
    for batch_i in range(40):
        batches_done = 40 * epoch + batch_i
        batch = slice(16 * batch_i, 16 * batch_i + 16)
        loss = F.mse_loss(model(imgs[batch]), boxes[batch])
        loss.backward()
        if batches_done % gradient_accumulations == 0:
            # Accumulates gradient before each step
            optimizer.step()
            optimizer.zero_grad()
            num_steps += 1
        total += loss.item() / 40
    print(f"[Epoch {epoch}] loss {total:.4f} batches {batches_done + 1} steps {num_steps}")
