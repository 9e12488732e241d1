import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
gradient_accumulation_steps = 4


def get_batch():
    tokens = torch.randint(0, 8, (16, 21))
    tokens[:, 1::2] = (tokens[:, 0:-1:2] + 1) % 8
    lengths = torch.randint(2, 20, (16,)).sort().values
    labels = tokens[:, 1:].masked_fill(torch.arange(20) >= lengths[:, None], -100)
    return tokens[:, :-1], labels


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(8, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.output = nn.Linear(32, 8)

    def forward(self, tokens):
        return self.output(self.rnn(self.tok_embeddings(tokens))[0])


def flat(parameters):
    return torch.cat([p.grad.flatten() for p in parameters]).clone()


model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(60):
    tokens, labels = get_batch()
    num_tokens = (labels != -100).sum()
    optimizer.zero_grad()
    whole = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
    whole.backward()
    expected = flat(model.parameters())
    optimizer.zero_grad()
    for tokens, labels in zip(tokens.split(4), labels.split(4)):
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        loss = loss / num_tokens
        loss.backward()
    apart = (flat(model.parameters()) - expected).norm() / expected.norm()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step} loss {whole.item():.4f} gradient is off by {100 * apart:.2f} %")
