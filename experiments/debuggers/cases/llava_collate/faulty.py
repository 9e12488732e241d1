import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(0)
lengths = torch.randint(4, 20, (512,))
instances = [torch.randint(0, 12, (int(n),)) for n in lengths]
labels = torch.tensor([int((ids == 3).float().mean() > 1 / 12) for ids in instances])


def collate_fn(instances):
    ori_length = [len(example) for example in instances]
    input_ids = pad_sequence(instances, batch_first=True, padding_value=0)
    attention_mask = torch.zeros_like(input_ids).bool()
    for length in ori_length:
        attention_mask[:length] = True
    return input_ids, attention_mask


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 32)
        self.query = nn.Parameter(torch.randn(1, 1, 32))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        query = self.query.expand(len(x), 1, 32)
        x, _ = self.attention(query, x, x, key_padding_mask=~attention_mask, need_weights=False)
        return self.head(x.squeeze(1))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(12):
    total = 0.0
    for i in range(0, 512, 32):
        loss = F.cross_entropy(model(*collate_fn(instances[i : i + 32])), labels[i : i + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() / 16
    with torch.no_grad():
        short = [ids for ids in instances if len(ids) == 4]
        alone = model(*collate_fn(short))
        beside = model(*collate_fn([*short, torch.ones(40, dtype=torch.long)]))[:-1]
    print(
        f"epoch {epoch} loss {total:.4f} change beside a longer sentence {(alone - beside).abs().mean():.4f}"
    )
