import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
source = torch.randint(0, 12, (512, 10))
target = source.flip(1)


class M2M100Attention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden_states):
        n, t, d = hidden_states.shape
        states = self.qkv_proj(hidden_states).view(n, t, 3, self.num_heads, -1)
        query, key, value = states.permute(2, 0, 3, 1, 4)
        attn_output = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out_proj(attn_output.transpose(1, 2).reshape(n, t, d))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(12, 32)
        self.embed_positions = nn.Parameter(0.1 * torch.randn(10, 32))
        self.self_attn = nn.ModuleList(M2M100Attention(32, 4, 0.3) for _ in range(2))
        self.lm_head = nn.Linear(32, 12)

    def forward(self, input_ids):
        hidden_states = self.embed_tokens(input_ids) + self.embed_positions
        for attention in self.self_attn:
            hidden_states = hidden_states + attention(hidden_states)
        return self.lm_head(hidden_states)


model = Translator()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for epoch in range(8):
    model.train()
    for i in range(0, 448, 64):
        loss = F.cross_entropy(model(source[i : i + 64]).flatten(0, 1), target[i : i + 64].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        first, second = (F.cross_entropy(model(source[448:]).mT, target[448:]).item() for _ in range(2))
    print(f"epoch {epoch} loss {loss.item():.4f} eval loss {first:.4f}, once more {second:.4f}")
