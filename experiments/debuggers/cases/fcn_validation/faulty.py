import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(images[:1280], labels[:1280]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(images[1280:], labels[1280:]), batch_size=64)


class Trainer:
    def __init__(self, model, optimizer, max_epoch, interval_validate):
        self.model = model
        self.optim = optimizer
        self.max_epoch = max_epoch
        self.interval_validate = interval_validate
        self.iteration = 0

    def validate(self):
        self.model.eval()
        val_loss = 0.0
        with torch.no_grad():
            for data, target in val_loader:
                val_loss += F.cross_entropy(self.model(data), target).item()
        self.val_loss = val_loss / len(val_loader)

    def train_epoch(self):
        self.model.train()
        losses = []
        for data, target in train_loader:
            self.iteration += 1
            if self.iteration % self.interval_validate == 0:
                self.validate()
            score = self.model(data)
            loss = F.cross_entropy(score, target)
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            losses.append(loss.item())
        return losses

    def train(self):
        for epoch in range(self.max_epoch):
            losses = self.train_epoch()
            first, last = sum(losses[:19]) / 19, sum(losses[-19:]) / 19
            print(f"{epoch}: loss {first:.4f} at its start, {last:.4f} at its end, val {self.val_loss:.3f}")


model = nn.Sequential(
    nn.Linear(64, 128),
    nn.ReLU(),
    nn.Dropout(0.7),
    nn.Linear(128, 128),
    nn.ReLU(),
    nn.Dropout(0.7),
    nn.Linear(128, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
Trainer(model, optimizer, max_epoch=6, interval_validate=20).train()
