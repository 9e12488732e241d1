import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
train_dataloader = DataLoader(TensorDataset(images[:1200], labels[:1200]), batch_size=40, shuffle=True)
valid_dataloader = DataLoader(TensorDataset(images[1200:], labels[1200:]), batch_size=40)


class MMDL(nn.Module):
    def __init__(self):
        super().__init__()
        self.upper = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.lower = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(128, 10))

    def forward(self, inputs):
        return self.head(torch.cat([self.upper(inputs[0]), self.lower(inputs[1])], dim=1))


def validate(model, criterion):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for images, target in valid_dataloader:
            model.train()
            out = model([images[:, :32], images[:, 32:]])
            total += criterion(out, target).item() * len(target)
    return total / 597


model = MMDL()
criterion = nn.CrossEntropyLoss()
op = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for epoch in range(8):
    model.train()
    total = 0.0
    for images, target in train_dataloader:
        op.zero_grad()
        out = model([images[:, :32], images[:, 32:]])
        loss = criterion(out, target)
        total += loss.item() * len(target)
        loss.backward()
        op.step()
    first, second = validate(model, criterion), validate(model, criterion)
    print(f"Epoch {epoch} train loss: {total / 1200:.4f} valid loss: {first:.4f}, once more: {second:.4f}")
