import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
alpha, temperature = 0.9, 4.0
rule = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 5)).requires_grad_(False)


def make_data(size):
    x = 2 * torch.randn(size, 12)
    return TensorDataset(x, (3 * rule(x)).argmax(1))


def make_net(width):
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 5))


def loss_fn_kd(outputs, labels, teacher_outputs):
    soft = F.log_softmax(outputs / temperature, dim=1)
    target = F.softmax(teacher_outputs / temperature, dim=1)
    kd = F.kl_div(soft, target, reduction="batchmean") * alpha * temperature**2
    return kd + F.cross_entropy(outputs, labels) * (1 - alpha)


def evaluate(model):
    with torch.no_grad():
        return torch.cat([model(x).argmax(1) == y for x, y in valid]).float().mean().item()


train = DataLoader(make_data(1024), batch_size=64, shuffle=True)
valid = DataLoader(make_data(512), batch_size=256)
teacher, student = make_net(128), make_net(32)
optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
for _ in range(30):
    for batch, labels in train:
        optimizer.zero_grad()
        F.cross_entropy(teacher(batch), labels).backward()
        optimizer.step()
print(f"teacher accuracy {evaluate(teacher):.3f}")
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
teacher.eval()
for epoch in range(1, 31):
    average = 0.0
    for i, (batch, labels) in enumerate(train):
        with torch.no_grad():
            output_teacher = teacher(batch)
        loss = loss_fn_kd(student(batch), labels, output_teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average += loss.item() / len(train)
    if epoch % 10 == 0:
        print(f"epoch {epoch} loss {average:.4f} student accuracy {evaluate(student):.3f}")
