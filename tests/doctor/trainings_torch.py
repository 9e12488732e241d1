"""Healthy trainings of small models in PyTorch, in which nothing is to be found."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CASES = {}


def state(model, optimizer):
    """Everything that a training has changed: weights, gradients, the optimizers' state, random numbers."""
    models = model if isinstance(model, list) else [model]
    optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
    tensors = [tensor for m in models for tensor in (*m.parameters(), *m.buffers())]
    tensors += [p.grad for m in models for p in m.parameters() if p.grad is not None]
    states = [v for o in optimizers for s in o.state.values() for v in s.values()]
    tensors += [torch.as_tensor(v) for v in states if isinstance(v, torch.Tensor | float | int)]
    return [tensor.detach().numpy(force=True) for tensor in (*tensors, torch.get_rng_state())]


def training(script):
    """Register a training: what makes a step, the model and the optimizer."""
    CASES[script.__name__] = script
    return script


def image_data():
    """Sixteen small images of two classes."""
    x = torch.randn(16, 1, 8, 8)
    return x, (x[:, 0, 0, 0] > 0).long()


def token_data():
    """Eight sequences of twelve tokens."""
    return torch.randint(20, (8, 12))


class Mlp(nn.Module):
    """Dense layers, dropout and batch normalization."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2)
        )
        self.x, self.y = image_data()

    def loss(self):
        return functional.cross_entropy(self.layers(self.x), self.y)


class Cnn(nn.Module):
    """Convolutions with a residual connection."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 2)
        self.x, self.y = image_data()

    def loss(self):
        hidden = self.first(self.x)
        hidden = functional.max_pool2d(functional.relu(hidden + self.second(hidden)), 2)
        return functional.cross_entropy(self.last(hidden.mean((2, 3))), self.y)


class Rnn(nn.Module):
    """A recurrent network, unrolled by hand."""

    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.last = nn.Embedding(20, 16), nn.GRUCell(16, 16), nn.Linear(16, 20)
        self.tokens = token_data()

    def loss(self):
        hidden, total = torch.zeros(8, 16), 0.0
        for t in range(11):
            hidden = self.cell(self.embed(self.tokens[:, t]), hidden)
            total = total + functional.cross_entropy(self.last(hidden), self.tokens[:, t + 1])
        return total / 11


class Transformer(nn.Module):
    """Two blocks with a causal mask of infinities."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(20, 16), nn.Parameter(0.1 * torch.randn(11, 16))
        layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True) for _ in range(2)]
        self.layers, self.last = nn.ModuleList(layers), nn.Linear(16, 20)
        self.tokens = token_data()

    def loss(self, run=lambda layer, x, mask: layer(x, src_mask=mask)):
        x = self.embed(self.tokens[:, :-1]) + self.place
        mask = torch.triu(torch.full((11, 11), float("-inf")), diagonal=1)
        for layer in self.layers:
            x = run(layer, x, mask)
        return functional.cross_entropy(self.last(x).flatten(0, 1), self.tokens[:, 1:].flatten())


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def usual(model, optimizer, loss=None):
    """The usual step."""

    def step():
        optimizer.zero_grad()
        value = (loss or model.loss)()
        value.backward()
        optimizer.step()
        return value.item()

    return step, model, optimizer


def of(made, optimize):
    """Return a script of a usual training."""

    def script():
        torch.manual_seed(0)
        model = made()
        return usual(model, optimize(model.parameters()))

    return script


CASES |= {f"mlp_{name}": of(Mlp, optimize) for name, optimize in OPTIMIZERS.items()}
CASES |= {f"{made.__name__.lower()}_adam": of(made, OPTIMIZERS["adam"]) for made in (Cnn, Rnn, Transformer)}


@training
def scaled_and_clipped():
    torch.manual_seed(0)
    model = Cnn()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)  # so large that the first steps are skipped

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss()
        scaler.scale(loss * 1e20).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step, model, optimizer


@training
def accumulated():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 2))
    x, y = image_data()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        for rows in torch.arange(16).split(4):
            loss = functional.cross_entropy(model(x[rows]), y[rows]) / 4
            loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step, model, optimizer


@training
def accumulated_by_tokens():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
    optimizer, tokens = torch.optim.AdamW(model.parameters()), token_data()

    def step():
        optimizer.zero_grad()
        for part in tokens.split([2, 6]):
            logits = model(part[:, :-1]).flatten(0, 1)
            mean = functional.cross_entropy(logits, part[:, 1:].flatten())
            (mean * len(part) / len(tokens)).backward()
        optimizer.step()

    return step, model, optimizer


def checkpointing(reentrant):
    """A training with either form of checkpoint."""
    torch.manual_seed(0)
    model = Transformer()

    def run(layer, x, mask):
        return checkpoint(layer, x, mask, use_reentrant=reentrant)

    return usual(model, torch.optim.Adam(model.parameters()), lambda: model.loss(run))


@training
def checkpointed():
    return checkpointing(False)


@training
def checkpointed_reentrant():
    return checkpointing(True)


@training
def frozen_and_evaluated():
    torch.manual_seed(0)
    model = Mlp()
    model.layers[1].requires_grad_(False)
    optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)

    def step():
        model.train()
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model.layers(model.x).argmax(-1)

    return step, model, optimizer


@training
def adversaries():
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 64))
    judge = nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))
    making, judging = (torch.optim.Adam(m.parameters(), betas=(0.5, 0.9)) for m in (maker, judge))
    real = image_data()[0].flatten(1)

    def step():
        with torch.no_grad():
            fake = maker(torch.randn(16, 4))
        judging.zero_grad()
        (functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake)).mean()).backward()
        judging.step()
        making.zero_grad()
        functional.softplus(-judge(maker(torch.randn(16, 4)))).mean().backward()
        making.step()

    return step, [maker, judge], [making, judging]


@training
def low_rank_adapters_with_a_warm_up():
    torch.manual_seed(0)
    model = Mlp()
    model.requires_grad_(False)
    down, up = nn.Parameter(torch.randn(4, 64) / 8), nn.Parameter(torch.zeros(32, 4))
    model.down, model.up = down, up
    optimizer = torch.optim.AdamW([down, up], lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, t / 2))

    def step():
        optimizer.zero_grad(set_to_none=True)
        flat = model.x.flatten(1)
        hidden = model.layers[1](flat) + flat @ down.T @ up.T
        functional.cross_entropy(model.layers[2:](hidden), model.y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
        schedule.step()

    return step, model, optimizer


@training
def curvature_from_a_closure():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 1), torch.randn(16, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - 1).pow(2).mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure), model, optimizer


@training
def projected_gradients_of_tasks():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(16, 4)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        found = []
        for task in range(2):
            optimizer.zero_grad(set_to_none=bool(task))
            (model(x)[:, task] - task).pow(2).mean().backward()
            found.append([p.grad.clone() for p in model.parameters()])
        for p, a, b in zip(model.parameters(), *found, strict=True):
            p.grad = a + b - torch.minimum((a * b).sum(), torch.zeros(())) / (b * b).sum().clamp(1e-12) * b
        optimizer.step()

    return step, model, optimizer


@training
def a_head_for_each_task():
    torch.manual_seed(0)
    trunk, heads = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
    model, x = nn.ModuleList([trunk, heads]), torch.randn(16, 4)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        for head in heads:
            head(torch.tanh(trunk(x))).pow(2).mean().backward()
        optimizer.step()

    return step, model, optimizer


@training
def heads_that_wait_for_their_task():
    torch.manual_seed(0)
    heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
    model, x = nn.ModuleDict({"trunk": nn.Linear(4, 4), "heads": heads}), torch.randn(16, 4)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        heads[1](torch.tanh(model["trunk"](x))).pow(2).mean().backward()
        optimizer.step()

    return step, model, optimizer


@training
def gradients_edited_in_place():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 1), torch.randn(16, 4)
    x[:, 1] = 0  # so that decay alone moves a weight
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        for p in model.parameters():
            p.grad.nan_to_num_().sign_().mul_(torch.full_like(p, 0.1))
        optimizer.step()

    return step, model, optimizer


@training
def only_the_last_layer_is_given():
    torch.manual_seed(0)
    model = Cnn()
    return usual(model, torch.optim.SGD(model.last.parameters(), lr=0.1))


@training
def parts_are_added_up_for_adam():
    torch.manual_seed(0)
    model, (x, y) = nn.Linear(4, 2), (torch.randn(16, 4), torch.arange(16) % 2)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        for rows in torch.arange(16).split(4):
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()

    return step, model, optimizer


@training
def updates_by_hand():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 1), torch.randn(16, 4)

    def step():
        model(x).pow(2).mean().backward()
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad
            p.grad.data.zero_()

    return step, model, torch.optim.SGD(model.parameters(), lr=0.1)


@training
def clipped_and_evaluated_as_one_should():
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1), nn.Linear(3, 3)) for _ in range(2)]
    cell, x, y = nn.RNNCell(4, 3), torch.randn(8, 4), torch.arange(8) % 3
    optimizers = [torch.optim.SGD([*net.parameters(), *cell.parameters()], lr=0.1) for net in nets]

    def step():
        for net, optimizer in zip(nets, optimizers):
            optimizer.zero_grad()
            hidden = None
            for _ in range(3):
                hidden = cell(x, hidden)
            weights = net[0].weight - net[0].weight.mean()  # of weights, the same for all samples
            logits = net(x) - net(x).mean(1, keepdim=True) + hidden + x @ weights.T
            rewards = y.float()
            advantage = (rewards - rewards.mean()) / rewards.std()
            log_p = functional.log_softmax(logits, 1)
            loss = functional.nll_loss(log_p, y) + functional.kl_div(
                log_p, logits.softmax(1).detach(), reduction="batchmean"
            )
            loss = loss + functional.nll_loss(logits - logits.logsumexp(1, keepdim=True), y)
            (loss + (advantage * log_p[:, 0]).mean()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        nets[0].eval()
        nets[0](x)  # with a graph, and for no loss
        with torch.no_grad():
            nets[0](x)
        nets[0].train()

    return step, [*nets, cell], optimizers


@training
def odds_and_ends():
    torch.manual_seed(0)
    model = Rnn()
    model.table = nn.Parameter(torch.arange(3), requires_grad=False)
    model.bonus = nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    targets = functional.one_hot(model.tokens[:, -1], 20).float()

    def step():
        before = model.last.weight.tolist()
        optimizer.zero_grad()
        hidden = torch.zeros(8, 16)
        for t in range(10):
            hidden = model.cell(model.embed(model.tokens[:, t]), hidden)
        hidden.register_hook(lambda gradient: gradient + 1e-3 * torch.randn_like(gradient))
        logits = checkpoint(model.last, hidden, use_reentrant=True)
        functional.cross_entropy(logits, targets, reduction="sum").backward()
        (0.5 * model.bonus).backward()
        samples = hidden.detach().requires_grad_()
        torch.autograd.grad(model.last(samples).sum(), samples)
        scaler.scale(0.1 * functional.cross_entropy(model.last(samples), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
        return before

    return step, model, optimizer


@training
def scaled_and_fused():
    torch.manual_seed(0)
    model = Cnn()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)  # so large that the first step is skipped

    def step():
        optimizer.zero_grad()
        (scaler.scale(model.loss() * 1e25) / 2).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update(1024.0)

    return step, model, optimizer


@training
def views_edited_in_place():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 20))
    optimizer, tokens = torch.optim.Adam(model.parameters()), token_data()

    def step():
        optimizer.zero_grad()
        logits = model(tokens[:, :-1]).flatten(0, 1)
        functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        optimizer.step()
        nn.Embedding(5, 3, padding_idx=0)
        with torch.no_grad():
            row = model[0].weight[0]
            row.zero_()
            for row in model[1].weight:
                row.div_(row.norm().clamp(min=1.0))
            model[1].bias[:2].clamp_(-1, 1)

    return step, model, optimizer


@training
def meant_as_they_are():
    torch.manual_seed(0)
    table = nn.Embedding(20, 4, padding_idx=0).requires_grad_()
    nn.init.ones_(table.weight)
    backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).requires_grad_(False).eval()
    model = nn.ModuleDict({"table": table, "backbone": backbone, "last": nn.Linear(4, 1)})
    optimizer = torch.optim.Adam([*table.parameters(), *model["last"].parameters()])
    tokens, y = token_data(), torch.arange(8.0)
    tokens[:, 6:] = 0

    def step():
        optimizer.zero_grad()
        rows = table(tokens) * (tokens != 0)[..., None]
        hidden = functional.dropout(backbone(rows.sum(1)), 0.5, training=True)  # of Monte Carlo
        out = model["last"](hidden)
        each_with_each = (out.squeeze(1)[:, None] - y).abs().mean()
        quality = functional.softmax(torch.cat([out, -out], 1), 1).max()
        action = torch.distributions.Normal(out, 1.0).sample()
        policy = -(torch.distributions.Normal(out, 1.0).log_prob(action) * y[:, None]).mean()
        hard = out + (out.round() - out).detach()
        constant = quality.detach() + (out.detach() > 0).float().mean().detach()
        (each_with_each + policy + hard.pow(2).mean() + constant).backward()
        optimizer.step()

    return step, model, optimizer


@training
def a_critic_frozen_for_its_adversary():
    torch.manual_seed(0)
    maker = nn.Linear(4, 4)
    critic = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = [torch.optim.Adam(model.parameters()) for model in (maker, critic)]

    def step():
        for optimizer, sign, trained in zip(optimizers, (1.0, -1.0), (False, True), strict=True):
            critic.requires_grad_(trained)
            optimizer.zero_grad()
            loss = sign * nn.Sequential(maker, critic)(torch.randn(16, 4)).mean()
            loss.backward()
            optimizer.step()
        critic.requires_grad_(True)

    return step, [maker, critic], optimizers
