import torch

torch.manual_seed(0)
x_train = torch.linspace(0, 4, 15).unsqueeze(1)
y_train = 1.7 * x_train + 0.6 + 0.1 * torch.randn(15, 1)

w = torch.randn(1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
learning_rate = 0.02


def linear_model(x):
    return x * w + b


def get_loss(y_, y):
    return torch.mean((y_ - y) ** 2)


for e in range(100):
    y_ = linear_model(x_train)
    loss = get_loss(y_, y_train)
    loss.backward()
    w.data = w.data - learning_rate * w.grad.data
    b.data = b.data - learning_rate * b.grad.data
    print(f"epoch: {e}, loss: {loss.item():.4f}")
