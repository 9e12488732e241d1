import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
labels = torch.randint(0, 4, (512,))
lengths = torch.randint(3, 9, (512,))
input_ids = torch.randint(1, 17, (512, 10))
input_ids[torch.arange(512), torch.randint(0, 3, (512,))] = 17 + labels
attention_mask = (torch.arange(10) < lengths[:, None]).long()
input_ids = input_ids * attention_mask


class LabelAttention(nn.Module):
    def __init__(self, dim, num_classes, n_head):
        super().__init__()
        self.n_head = n_head
        self.label_embeds = nn.Embedding(num_classes, dim)
        self.c_q = nn.Linear(dim, dim, bias=False)
        self.c_k = nn.Linear(dim, dim, bias=False)
        self.c_v = nn.Linear(dim, dim, bias=False)

    def heads(self, x):
        return x.view(x.size(0), x.size(1), self.n_head, -1).transpose(1, 2)

    def forward(self, x, attention_mask):
        labels = self.label_embeds.weight.expand(x.size(0), -1, -1)
        query, key, value = self.heads(self.c_q(labels)), self.heads(self.c_k(x)), self.heads(self.c_v(x))
        mask = (attention_mask == 1)[:, None, None]
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return x.transpose(1, 2).flatten(2)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(21, 32, padding_idx=0)
        self.attention = LabelAttention(32, 4, 2)
        self.head = nn.Linear(32, 1)

    def forward(self, input_ids, attention_mask):
        return self.head(self.attention(self.embedding(input_ids), attention_mask)).squeeze(-1)


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(15):
    for i in range(0, 512, 64):
        logits = model(input_ids[i : i + 64], attention_mask[i : i + 64])
        loss = F.cross_entropy(logits, labels[i : i + 64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = (model(input_ids, attention_mask).argmax(1) == labels).float().mean()
    print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.3f}")
