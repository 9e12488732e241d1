import torch
from sklearn.datasets import load_digits
from torch import nn, optim

torch.manual_seed(786)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target)


class EfficientNet(nn.Module):
    def __init__(self):
        super().__init__()
        self._conv_stem = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self._bn0 = nn.BatchNorm2d(32)
        self._conv_head = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self._bn1 = nn.BatchNorm2d(64)
        self._fc = nn.Linear(64, 10)

    def forward(self, inputs):
        x = torch.relu(self._bn0(self._conv_stem(inputs)))
        x = torch.relu(self._bn1(self._conv_head(x)))
        return self._fc(x.amax(dim=(2, 3)))


model_transfer = EfficientNet()
criterion_transfer = nn.CrossEntropyLoss()
optimizer_transfer = optim.Adam(model_transfer._fc.parameters(), lr=0.01)

for name, param in model_transfer.named_parameters():
    if "bn" not in name:
        param.requires_grad = False

for param in model_transfer._fc.parameters():
    param.requires_grad = True


def train(n_epochs, model, optimizer, criterion):
    for epoch in range(1, n_epochs + 1):
        train_loss = 0.0
        model.train()
        for batch_idx in range(20):
            data = images[64 * batch_idx : 64 * batch_idx + 64]
            target = labels[64 * batch_idx : 64 * batch_idx + 64]
            optimizer.zero_grad()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
            train_loss += (1 / (batch_idx + 1)) * (float(loss) - train_loss)
        model.eval()
        with torch.no_grad():
            correct = (model(images[1280:]).argmax(1) == labels[1280:]).float().mean()
        print(f"Epoch: {epoch} Training Loss: {train_loss:.6f} Validation Accuracy: {100 * correct:.1f}%")


train(6, model_transfer, optimizer_transfer, criterion_transfer)
