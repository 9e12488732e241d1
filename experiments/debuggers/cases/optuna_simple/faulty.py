import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
images = torch.randn(400, 30)
labels = (images[:, :5].sum(1) + 1.5 * torch.randn(400) > 0).long()
train_loader = [(images[i : i + 20], labels[i : i + 20]) for i in range(0, 200, 20)]
valid_loader = [(images[i : i + 20], labels[i : i + 20]) for i in range(200, 400, 20)]


def define_model(n_layers, n_units, p):
    layers = []
    in_features = 30
    for _ in range(n_layers):
        layers += [nn.Linear(in_features, n_units), nn.ReLU(), nn.Dropout(p)]
        in_features = n_units
    layers += [nn.Linear(in_features, 2), nn.LogSoftmax(dim=1)]
    return nn.Sequential(*layers)


def objective(epochs):
    model = define_model(2, 128, 0.8)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for epoch in range(epochs):
        train_loss = 0.0
        for data, target in train_loader:
            optimizer.zero_grad()
            output = model(data)
            loss = F.nll_loss(output, target)
            loss.backward()
            optimizer.step()
            train_loss += loss.item() / len(train_loader)
        model.eval()
        valid_loss = 0.0
        with torch.no_grad():
            for data, target in valid_loader:
                valid_loss += F.nll_loss(model(data), target).item() / len(valid_loader)
        print(f"epoch {epoch} train loss {train_loss:.4f} valid loss {valid_loss:.4f}")


objective(25)
