import torch
from torch import nn

torch.manual_seed(0)
vocab, width, rank = 24, 48, 4


class LoraLinear(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 2.0 * x @ self.lora_a.T @ self.lora_b.T


class TinyLlama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, width).requires_grad_(False)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.lm_head = nn.Linear(width, vocab)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.lm_head(x + self.mlp(x))


def get_peft_model(model):
    model.requires_grad_(False)
    model.mlp[0], model.mlp[2] = LoraLinear(model.mlp[0]), LoraLinear(model.mlp[2])
    model.lm_head = LoraLinear(model.lm_head)
    return model


class Trainer:
    def __init__(self, model, learning_rate=0.05):
        self.model = model
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=learning_rate)

    def train(self, batches, logging_steps=50):
        for step, (tokens, labels) in enumerate(batches, 1):
            logits = self.model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            loss.backward()
            self.optimizer.step()
            if step % logging_steps == 0:
                print(f"step {step} loss {loss.item():.4f}")


def batches(steps=300):
    follows = torch.randperm(vocab)
    for _ in range(steps):
        tokens = torch.randint(0, vocab, (16, 8))
        yield tokens, follows[tokens]


Trainer(get_peft_model(TinyLlama())).train(batches())
