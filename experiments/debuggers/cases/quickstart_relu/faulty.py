import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
digits = load_digits()
training_data = TensorDataset(
    torch.tensor(digits.images / 16, dtype=torch.float32), torch.tensor(digits.target)
)
train_dataloader = DataLoader(training_data, batch_size=64, shuffle=True)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(
            nn.Linear(8 * 8, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
            nn.ReLU(),
        )

    def forward(self, x):
        x = self.flatten(x)
        logits = self.linear_relu_stack(x)
        return logits


def train_loop(dataloader, model, loss_fn, optimizer):
    total, correct = 0.0, 0
    for X, y in dataloader:
        pred = model(X)
        loss = loss_fn(pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
        correct += (pred.argmax(1) == y).sum().item()
    return total / len(training_data), correct / len(training_data)


model = NeuralNetwork()
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for t in range(20):
    loss, accuracy = train_loop(train_dataloader, model, loss_fn, optimizer)
    print(f"Epoch {t + 1} Avg loss: {loss:.4f} Accuracy: {100 * accuracy:.1f}%")
