import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
classes, prototypes = 4, torch.randn(4, 3, 8, 8)


def image_folder(per_class):
    target = torch.arange(classes).repeat_interleave(per_class)
    return TensorDataset(prototypes[target] + 1.5 * torch.randn(len(target), 3, 8, 8), target)


class SlimmableConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
        self.classifier = nn.Linear(16 * 16, classes)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.features(x), 2)
        return self.classifier(x.flatten(1))


train_loader = DataLoader(image_folder(800), batch_size=64, shuffle=True)
val_loader = DataLoader(image_folder(50), batch_size=250)
model, criterion = SlimmableConv(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
for epoch in range(2):
    model.train()
    losses = []
    for images, target in train_loader:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(images).argmax(1) == target for images, target in val_loader])
    print(f"epoch {epoch} loss {losses[-1]:.4f} top1 {right.float().mean():.3f}")
