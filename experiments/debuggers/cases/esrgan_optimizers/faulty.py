import torch
from torch import nn, optim

torch.manual_seed(0)


def low_and_high(n):
    gt = torch.sin(torch.rand(n, 1) * 6.28 + torch.linspace(0, 3, 8)) + 0.3 * torch.randn(n, 8)
    return gt.view(n, 4, 2).mean(2), gt


def train(g_model, d_model, pixel_criterion, adversarial_criterion, g_opt, d_opt):
    for batch_index in range(300):
        lr, gt = low_and_high(64)
        real_label = torch.ones(64, 1)
        fake_label = torch.zeros(64, 1)
        for d_parameters in d_model.parameters():
            d_parameters.requires_grad = False
        g_model.zero_grad(set_to_none=True)
        sr = g_model(lr)
        pixel_loss = pixel_criterion(sr, gt)
        adversarial_loss = adversarial_criterion(d_model(sr), real_label)
        g_loss = pixel_loss + 0.005 * adversarial_loss
        g_loss.backward()
        g_opt.step()
        for d_parameters in d_model.parameters():
            d_parameters.requires_grad = True
        d_model.zero_grad(set_to_none=True)
        d_loss_gt = adversarial_criterion(d_model(gt), real_label)
        d_loss_sr = adversarial_criterion(d_model(sr.detach().clone()), fake_label)
        d_loss = d_loss_gt + d_loss_sr
        d_loss.backward()
        d_opt.step()
        if batch_index % 50 == 49:
            print(f"{batch_index}: pixel {pixel_loss.item():.4f} g {g_loss.item():.4f} d {d_loss.item():.4f}")


def define_optimizer(g_model, d_model):
    g_optimizer = optim.Adam(g_model.parameters(), 1e-3, (0.9, 0.999))
    d_optimizer = optim.Adam(d_model.parameters(), 1e-3, (0.9, 0.999))
    return g_optimizer, d_optimizer


g_model = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 8))
d_model = nn.Sequential(
    nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
)
g_optimizer, d_optimizer = define_optimizer(g_model, d_model)
train(g_model, d_model, nn.L1Loss(), nn.BCEWithLogitsLoss(), g_optimizer, g_optimizer)
