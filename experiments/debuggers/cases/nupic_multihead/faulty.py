import torch
from torch import nn

torch.manual_seed(0)
num_tasks, num_epochs = 5, 8
tasks = []
for _ in range(num_tasks):
    x = torch.randn(256, 20)
    tasks.append((x, (torch.tanh(x @ torch.randn(20, 2)).prod(1) > 0).long()))


class MultiHeadNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(64, 2) for _ in range(num_tasks))

    def forward(self, x, task):
        return self.heads[task](self.body(x))


def train_epoch(task):
    x, y = tasks[task]
    for batch in torch.randperm(256).split(32):
        loss = nn.functional.cross_entropy(net(x[batch], task), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def accuracy(task):
    x, y = tasks[task]
    with torch.no_grad():
        return (net(x, task).argmax(1) == y).float().mean().item()


net = MultiHeadNet()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
order = []
for epoch in range(num_epochs):
    for task in range(num_tasks):
        order.append((task, train_epoch(task)))
for task, loss in order[num_epochs - 1 :: num_epochs]:
    print(f"task {task} loss {loss:.4f}")
print(f"loss {loss:.4f} first task {accuracy(0):.3f} last task {accuracy(num_tasks - 1):.3f}")
