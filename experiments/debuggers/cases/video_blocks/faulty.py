import copy
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

warnings.simplefilter("ignore")
torch.manual_seed(0)
frames, width = 6, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.spatial = nn.Linear(width, width)
        self.attn_temp = nn.Linear(frames, frames)

    def forward(self, hidden):
        hidden = torch.tanh(self.spatial(hidden))
        return hidden + self.attn_temp(hidden.transpose(1, 2)).transpose(1, 2)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Linear(8, width)
        self.down_blocks = nn.ModuleList(Block() for _ in range(2))
        self.up_blocks = nn.ModuleList(Block() for _ in range(2))
        self.conv_out = nn.Linear(width, 8)

    def forward(self, sample):
        hidden = self.conv_in(sample)
        for block in self.down_blocks:
            hidden = checkpoint(block, hidden, use_reentrant=True)
        for block in self.up_blocks:
            hidden = block(hidden)
        return self.conv_out(hidden)


unet = UNet()
unet.requires_grad_(False)
film = copy.deepcopy(unet)
for block in [*film.down_blocks, *film.up_blocks]:
    nn.init.orthogonal_(block.attn_temp.weight)
for name, parameter in unet.named_parameters():
    if "attn_temp" in name or "conv_out" in name:
        parameter.requires_grad_(True)
trained = [parameter for parameter in unet.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=3e-3)
before = unet.down_blocks[0].attn_temp.weight.clone()
for step in range(1, 601):
    clip = torch.randn(32, frames, 8)
    target = film(clip)
    loss = nn.functional.mse_loss(unet(clip), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 150 == 0:
        moved = (unet.down_blocks[0].attn_temp.weight - before).abs().max().item()
        print(f"step {step} loss {loss:.4f} down block moved by {moved:.4f}")
