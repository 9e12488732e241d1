import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target)
train_loader = [(images[i : i + 64], labels[i : i + 64]) for i in range(0, 1280, 64)]


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.conv2 = nn.Sequential(nn.Conv2d(6, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.fc(self.conv2(self.conv1(x)).flatten(1))


model = LeNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(12):
    total, correct = 0.0, 0
    for data, label in train_loader:
        optimizer.zero_grad()
        pred_score = model(data)
        loss = criterion(pred_score, label)
        loss.backward()
        optimizer.step()
        total += loss.item()
        correct += (pred_score.argmax(1) == label).sum().item()
    print(f"epoch {epoch} loss {total / len(train_loader):.4f} accuracy {correct / 1280:.4f}")
