import torch
from torch import nn

torch.manual_seed(0)
vocab, length = 20, 8


def make_batch(size=64):
    first = torch.randint(1, vocab, (size, 1))
    tokens = (first + torch.arange(length)) % (vocab - 1) + 1
    is_next = torch.randint(0, 2, (size,))
    tokens[is_next == 0, length // 2 :] = tokens[is_next == 0, length // 2 :].flip(1)
    masked = torch.rand(tokens.shape) < 0.15
    labels = torch.where(masked, tokens, 0)
    return torch.where(masked, vocab, tokens), labels, is_next


class BERTLM(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.token = nn.Embedding(vocab + 1, hidden)
        self.position = nn.Parameter(0.1 * torch.randn(length, hidden))
        layer = nn.TransformerEncoderLayer(hidden, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.next_sentence = nn.Linear(hidden, 2)
        self.mask_lm = nn.Linear(hidden, vocab)

    def forward(self, tokens):
        x = self.encoder(self.token(tokens) + self.position)
        return self.next_sentence(x[:, 0]).log_softmax(-1), self.mask_lm(x).log_softmax(-1)


class BERTTrainer:
    def __init__(self, model):
        self.model = model
        self.criterion = nn.NLLLoss(ignore_index=0)
        self.optim = torch.optim.Adam(model.parameters(), lr=1e-3)

    def iteration(self, steps):
        correct = 0.0
        for i in range(1, steps + 1):
            tokens, labels, is_next = make_batch()
            next_out, mask_out = self.model(tokens)
            next_loss = self.criterion(next_out, is_next)
            mask_loss = self.criterion(mask_out.transpose(1, 2), labels)
            loss = next_loss + mask_loss
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            correct = 0.95 * correct + 0.05 * (next_out.argmax(-1) == is_next).float().mean().item()
            if i % 100 == 0:
                print(f"step {i} next {next_loss:.4f} mask {mask_loss:.4f} avg_acc {correct:.3f}")


BERTTrainer(BERTLM()).iteration(500)
