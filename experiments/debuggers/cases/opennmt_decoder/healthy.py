import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
source = torch.randint(2, 4, (512, 6))
target = torch.cat([torch.ones(512, 1, dtype=torch.long), source], dim=1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_lut = nn.Embedding(10, 16)
        self.rnn = nn.GRU(16, 64, batch_first=True)

    def forward(self, input):
        _, hidden = self.rnn(self.word_lut(input))
        return hidden[0]


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_lut = nn.Embedding(10, 16)
        self.rnn = StackedGRU()

    def forward(self, input, hidden):
        emb = self.word_lut(input)
        outputs = []
        h = hidden
        for emb_t in emb.split(1, dim=1):
            emb_t = emb_t.squeeze(1)
            output, h = self.rnn(emb_t, h)
            outputs += [output]
        return torch.stack(outputs, dim=1)


class StackedGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(16, 64)

    def forward(self, input, hidden):
        h = self.cell(input, hidden)
        return h, h


encoder, decoder, generator = Encoder(), Decoder(), nn.Linear(64, 10)
modules = nn.ModuleList([encoder, decoder, generator])
optimizer = torch.optim.Adam(modules.parameters(), lr=5e-3)
for epoch in range(20):
    total = 0.0
    for i in range(0, 512, 64):
        out = generator(decoder(target[i : i + 64, :-1], encoder(source[i : i + 64])))
        loss = F.cross_entropy(out.flatten(0, 1), target[i : i + 64, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / 8
    print(f"epoch {epoch} loss {total:.4f} perplexity {math.exp(total):.3f}")
