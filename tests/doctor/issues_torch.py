"""Public issues, each replayed as a small training in PyTorch with the mistake that its thread is about.

A script returns what `diagnose` takes: a step, the model and the optimizer.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.utils.checkpoint import checkpoint

from cases import nothing, registry

CASES, CURES, issue, fault = registry()  # a fault is one that no thread is about


def data():
    """A batch of two classes."""
    torch.manual_seed(0)
    x = torch.randn(16, 8)
    return x, (x[:, 0] > 0).long()


def network(*between):
    """Two layers."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *between, nn.Linear(16, 2))


def usual(model, optimizer=None, loss=None, *, clip=nothing, after=nothing):
    """The usual step, by plain descent on a cross-entropy unless told otherwise."""
    optimizer, (x, y) = optimizer or SGD(model.parameters(), lr=0.1), data()

    def step():
        optimizer.zero_grad()
        value = loss() if loss else functional.cross_entropy(model(x), y)
        value.backward()
        clip()
        optimizer.step()
        after()

    return step, model, optimizer


@issue("https://github.com/huggingface/transformers/issues/21381", "cut by a checkpoint", "checkpoint(")
def checkpoint_after_frozen_layers():
    x, y = data()
    frozen, head, last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
    frozen.requires_grad_(False)

    def loss():
        hidden = checkpoint(head, frozen(x), use_reentrant=True)
        return functional.cross_entropy(last(hidden), y)

    return usual(nn.ModuleList([frozen, head, last]), loss=loss)


@issue("https://github.com/pytorch/ao/pull/1124", "rounded away", "optimizer.step()")
def bfloat16_weights():
    x, y = data()
    model = network().bfloat16()
    optimizer = AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
    return usual(model, optimizer, lambda: functional.cross_entropy(model(x.bfloat16()).float(), y))


@issue("https://github.com/VGraphRNN/VGRNN/issues/4", "clip after the update", "clip_grad_norm_")
def clip_after_step():
    model = network()
    return usual(model, after=lambda: nn.utils.clip_grad_norm_(model.parameters(), 10))


def scaled(model, optimizer, loss, clip=nothing):
    """Return the step of a training whose loss is scaled."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step():
        optimizer.zero_grad()
        scaler.scale(loss()).backward()
        clip()
        scaler.step(optimizer)
        scaler.update()

    return step, model, optimizer


def clipped_while_scaled(optimizer, **options):
    """Return such a step that clips the gradients before they are unscaled."""
    x, y = data()
    model = network()
    return scaled(
        model,
        optimizer(model.parameters(), lr=1e-3, **options),
        lambda: functional.cross_entropy(model(x), y),
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    )


@issue("https://github.com/milesial/Pytorch-UNet/issues/468", "clip before unscaling", "clip_grad_norm_")
def clip_before_unscaling():
    return clipped_while_scaled(RMSprop)


@fault("clip before unscaling", "clip_grad_norm_")
def clip_before_a_fused_step():
    return clipped_while_scaled(Adam, fused=True)  # which unscales by itself


@fault("not finite, backward", "(model(x) ** 2).sum(1)")
def root_of_zero_under_a_scaler():
    x, _ = data()
    x[0] = 0
    model = nn.Linear(8, 2, bias=False)
    return scaled(model, SGD(model.parameters(), lr=0.1), lambda: (model(x) ** 2).sum(1).sqrt().mean())


@fault("not finite, backward", "pow(0.5)")
def root_of_zero_before_a_fused_step():
    x, _ = data()
    model = network()
    return scaled(
        model,
        Adam(model.parameters(), fused=True),
        lambda: (0 * model(x)).pow(2).sum(1).pow(0.5).mean(),
    )


@issue("https://github.com/yandex-research/tabm/issues/20", "clip of nothing", "clip_grad_norm_")
def clip_before_backward():
    x, y = data()
    model = network()

    def loss():
        value = functional.cross_entropy(model(x), y)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return value

    return usual(model, AdamW(model.parameters()), loss)


@issue("https://github.com/facebookresearch/nwm/issues/16", "never zeroed", "backward()")
def never_zeroed():
    x, y = data()
    model = network()
    optimizer = AdamW(model.parameters())

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step, model, optimizer


@issue("https://github.com/eriklindernoren/Keras-GAN/issues/253", "coupled samples", "autograd.grad")
def gradient_penalty_with_batch_normalization():
    x, _ = data()
    critic = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def loss():
        mixed = (x + torch.rand(16, 1) * (torch.randn(16, 8) - x)).requires_grad_()
        value = critic(mixed)
        (slope,) = torch.autograd.grad(value, mixed, torch.ones_like(value), create_graph=True)
        return critic(x).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()

    return usual(critic, Adam(critic.parameters(), lr=1e-4), loss)


@issue("https://github.com/richzhang/PerceptualSimilarity/issues/69", "not finite, backward", "torch.sqrt")
def root_of_zero():
    x, y = data()
    x[0] = 0
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 2, bias=False))

    def loss():
        features = model(x)
        size = torch.sqrt(torch.sum(features**2, dim=1, keepdim=True))
        return functional.cross_entropy(features / (size + 1e-10), y)

    return usual(model, loss=loss)


@issue("https://github.com/huggingface/diffusers/issues/1009", "frozen but moving", "grad")
def masked_rows_decay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 2))
    tokens, y = torch.arange(12), torch.arange(12) % 2

    def mask():
        model[0].weight.grad.data[:11, :] = model[0].weight.grad.data[:11, :].fill_(0)

    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    return usual(model, optimizer, lambda: functional.cross_entropy(model(tokens), y), clip=mask)


def in_parts(model, loss, parts):
    """A step that adds up the gradients of several parts, and clips them, for else Adam heeds no factor."""
    optimizer = AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        for part in parts:
            loss(part).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step, model, optimizer


@issue(
    "https://github.com/huggingface/transformers/issues/24725", "parts of unequal weight", "cross_entropy("
)
def accumulated_means_of_unequal_length():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
    samples = [torch.randint(12, (11,)), torch.randint(12, (101,))]

    def loss(tokens):
        return functional.cross_entropy(model(tokens[:-1]), tokens[1:]) / len(samples)

    return in_parts(model, loss, samples)


@issue("https://github.com/karpathy/nanoGPT/issues/206", "parts not averaged", "cross_entropy(")
def accumulated_means_not_divided():
    x, y = data()
    model = network()
    return in_parts(
        model, lambda rows: functional.cross_entropy(model(x[rows]), y[rows]), torch.arange(16).split(4)
    )


@issue("https://github.com/pytorch/pytorch/issues/68425", "not finite, backward", "torch.exp")
def where_around_exp():
    x, y = data()
    x[0] = 60
    model = nn.Linear(8, 1)
    nn.init.constant_(model.weight, 1.0)

    def loss():
        a = model(x)[:, 0]
        b = torch.where(a <= 0, torch.exp(a), 1 + a)
        return functional.mse_loss(b, y.float())

    return usual(model, SGD(model.parameters(), lr=1e-4), loss)


@issue("https://github.com/shubhamagarwal92/mmd/issues/14", "training in evaluation mode", "model.eval()")
def evaluation_mode_never_left():
    model = network(nn.Dropout(0.5))

    def validate():
        model.eval()
        with torch.no_grad():
            model(data()[0])

    return usual(model, after=validate)


@issue(
    "https://github.com/udacity/deep-learning-v2-pytorch/issues/3", "evaluation in training mode", "model(x)"
)
def dropout_while_validating():
    x, y = data()
    model = network(nn.Dropout(0.2))

    def validate():
        with torch.no_grad():
            return (model(x).argmax(-1) == y).float().mean().item()

    return usual(model, Adam(model.parameters()), after=validate)


@issue("https://github.com/keras-team/keras/issues/4175", "zero everywhere", "round")
def rounded_in_the_loss():
    x, y = data()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    return usual(model, loss=lambda: functional.mse_loss(torch.round(model(x)[:, 0]), y.float()))


@issue("https://github.com/pytorch/pytorch/issues/59925", "not registered", "layer(x)")
def layers_in_a_list():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(8, 8) for _ in range(2)]
            self.last = nn.Linear(8, 2)

        def forward(self, x):
            for layer in self.layers:
                x = torch.relu(layer(x))
            return self.last(x)

    return usual(Net())


@issue("https://github.com/spro/practical-pytorch/issues/9", "not in the optimizer", "")
def model_made_twice():
    return usual(network(), SGD(network().parameters(), lr=0.005))


@issue("https://github.com/zjunlp/HVPNeT/issues/5", "not in the optimizer", "")
def group_never_appended():
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 3e-5}]
    {"params": model[2].parameters(), "lr": 5e-2}
    return usual(model, AdamW(groups))


@issue("https://github.com/pytorch/pytorch/issues/40967", "twice in the optimizer", "")
def parameter_twice():
    model = network()
    return usual(model, SGD([*model.parameters(), *model[2].parameters()], lr=0.1))


@issue(
    "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/5",
    "not finite, forward",
    "softmax",
)
def attention_with_nothing_to_attend_to():
    torch.manual_seed(0)
    model = nn.ModuleDict({"embed": nn.Embedding(12, 8), "out": nn.Linear(8, 12)})
    tokens = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])

    def loss():
        x = model["embed"](tokens)
        scores = x @ x.transpose(1, 2)
        scores = scores.masked_fill((tokens == 0)[:, None], float("-inf"))
        mixed = torch.softmax(scores, -1) @ x
        return functional.cross_entropy(model["out"](mixed).flatten(0, 1), tokens.flatten())

    return usual(model, Adam(model.parameters()), loss)


@issue("https://github.com/lucidrains/deep-cross-attention/issues/2", "zero everywhere", "relu")
def zeros_before_relu():
    x, y = data()
    model = network()
    nn.init.zeros_(model[0].weight)
    model[0].bias = None

    def loss():
        hidden = torch.relu(model[0](x))
        return functional.cross_entropy(model[2](hidden), y)

    return usual(model, loss=loss)


@issue("https://github.com/keras-team/keras/issues/16663", "cut", "argsort")
def sorted_orders_compared():
    x, y = data()
    model = nn.Linear(8, 1)

    def loss():
        order = torch.argsort(torch.argsort(model(x)[:, 0]))
        return (order - torch.argsort(torch.argsort(y))).abs().float().sum()

    return usual(model, loss=loss)


@issue("https://github.com/huggingface/trl/issues/3452", "loss of 0", "backward()")
def advantages_that_cancel():
    x, _ = data()
    model = network()
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]).reshape(2, 4)

    def loss():
        advantages = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-4)
        answers = torch.distributions.Categorical(logits=model(x).reshape(2, 4, 2, 2).detach()).sample()
        log_probs = model(x).log_softmax(-1).reshape(2, 4, 2, 2).gather(-1, answers[..., None])[..., 0]
        ratio = (log_probs - log_probs.detach()).exp()
        return -(ratio * advantages[..., None]).mean(-1).mean()

    return usual(model, Adam(model.parameters(), lr=1e-3), loss)


@fault("loss of 0", "backward()")
def advantages_that_cancel_in_a_bias():
    torch.manual_seed(0)
    x, rewards = torch.randn(16, 8), torch.rand(16)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss():
        advantages = (rewards - rewards.mean()) / rewards.std()
        out = model(x)[:, 0]
        return -((out - out.detach()).exp() * advantages).mean()  # of which the bias gets 1e-7, from rounding

    return usual(model, SGD(model.parameters(), lr=1e-2), loss)


def cancelled_by(rewards):
    """Return a training whose advantages are rewards less the mean of each row."""
    x, _ = data()
    model, given = network(), torch.tensor(rewards)

    def loss():
        advantages = (given - given.mean(-1, keepdim=True)).flatten()
        log_pi = model(x[: len(advantages)]).log_softmax(-1)[:, 0]
        return -(advantages * log_pi).mean()

    return usual(model, loss=loss)


@issue("https://github.com/modelscope/ms-swift/issues/4547", "zero factor", "given.mean")
def rewards_that_are_equal():
    return cancelled_by([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])


@fault("zero factor", "given.mean")
def groups_of_one():
    return cancelled_by([[1.0], [0.0], [1.0]])


@fault("zero factor", "losses * nothing")
def weights_of_zeros():
    x, targets = data()
    model, nothing = network(), torch.zeros(len(targets))

    def loss():
        losses = functional.cross_entropy(model(x), targets, reduction="none")
        return (losses * nothing).sum()

    return usual(model, loss=loss)


@fault("zero factor", "targets == -1")
def a_mask_of_zeros():
    x, targets = data()
    model = network()

    def loss():
        counted = (targets == -1).float()
        return (functional.cross_entropy(model(x), targets, reduction="none") * counted).sum()

    return usual(model, loss=loss)


@fault("learning rate of 0", "optimizer.step()")
def learning_rate_of_zero():
    model = network()
    return usual(model, Adam(model.parameters(), lr=0.0))


@fault("not finite, data", "model(x)")
def spoilt_batch():
    x, y = data()
    x[3, 2] = float("nan")
    model = nn.Linear(8, 2)
    return usual(model, loss=lambda: functional.cross_entropy(model(x), y))


@fault("vanishing", "")
def many_sigmoids():
    layers = [layer for _ in range(12) for layer in (nn.Linear(8, 8), nn.Sigmoid())]
    model = nn.Sequential(*layers, nn.Linear(8, 2))
    return usual(model, Adam(model.parameters()))


@fault("vanishing", "model(moment, hidden)")
def too_many_moments():
    model, x = nn.RNNCell(4, 8), torch.randn(200, 3, 4)

    def loss():
        hidden = torch.zeros(3, 8)
        for moment in x:
            hidden = model(moment, hidden)
        return hidden.pow(2).mean()

    return usual(model, Adam(model.parameters()), loss)


@fault("exploding", "hidden @ model.weight")
def many_moments():
    x, _ = data()
    model = nn.Linear(8, 8, bias=False)
    nn.init.orthogonal_(model.weight, gain=3.0)

    def loss():
        hidden = 1e-3 * x
        for _ in range(20):
            hidden = hidden @ model.weight
        return 1e-6 * (hidden**2).mean()

    return usual(model, SGD(model.parameters(), lr=1e-9), loss)


@issue(
    "https://github.com/huggingface/pytorch-image-models/pull/1978",
    "evaluation in training mode",
    "scaled_dot_product_attention(",
)
def attention_drops_in_evaluation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.last = nn.Linear(1, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.project(x.unsqueeze(-1))
            h = functional.scaled_dot_product_attention(h, h, h, dropout_p=0.1)
            return self.last(h.mean(1))

    model = Net()

    def validate():
        model.eval()
        with torch.no_grad():
            model(data()[0])
        model.train()

    return usual(model, after=validate)


@issue("https://github.com/tqjxlm/Simple-DQN-Pytorch/issues/1", "coupled samples", ".mean()")
def advantages_averaged_over_the_batch():
    x, y = data()
    model = network()

    def loss():
        advantages = model(x)
        values = advantages - advantages.mean()
        return functional.mse_loss(values[torch.arange(16), y], x[:, 0])

    return usual(model, loss=loss)


@issue("https://github.com/pytorch/tutorials/pull/1644", "logits expected", "model(x)")
def rectified_logits():
    x, y = data()
    model = nn.Sequential(network(), nn.ReLU())
    return usual(model, loss=lambda: functional.cross_entropy(model(x), y))


@issue(
    "https://github.com/AnubhavGupta3377/Text-Classification-Models-Pytorch/issues/9",
    "log-probabilities expected",
    "nll_loss",
)
def probabilities_without_a_logarithm():
    x, y = data()
    model = network(nn.Identity())
    return usual(model, loss=lambda: functional.nll_loss(model(x).softmax(1), y))


@fault("log-probabilities expected", "nll_loss")
def log_softmax_over_the_batch():
    x, y = data()
    model = network()
    return usual(model, loss=lambda: functional.nll_loss(functional.log_softmax(model(x), 0), y))


@issue("https://github.com/google-deepmind/open_spiel/pull/828", "clip unused", "clip_grad_norm_")
def the_other_head_is_clipped():
    x, y = data()
    policy, value = nn.Linear(8, 2), nn.Linear(8, 1)
    optimizers = [SGD(each.parameters(), lr=0.1) for each in (policy, value)]

    def step():
        for optimizer, loss in zip(
            optimizers, (functional.cross_entropy(policy(x), y), value(x).square().mean())
        ):
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(value.parameters(), 1.0) if value.weight.grad is not None else 0
            optimizer.step()

    return step, [policy, value], optimizers


@issue("https://github.com/pytorch/examples/issues/88", "state not carried", "cell(")
def each_step_begins_anew():
    x, y = data()
    first, cell, last = nn.Linear(8, 8), nn.GRUCell(4, 8), nn.Linear(8, 2)

    def loss():
        start = first(x)
        states = [cell(part, start) for part in x.view(16, 2, 4).repeat(1, 2, 1).unbind(1)]
        return functional.cross_entropy(last(sum(states)), y)

    return usual(nn.ModuleList([first, cell, last]), loss=loss)


@fault("never zeroed", "backward()")
def never_zeroed_by_hand():
    x, y = data()
    model = network()

    def step():
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad

    return step, model, SGD(model.parameters(), lr=0.1)


@fault("never updated", "backward()")
def never_updated():
    x, y = data()
    model = network()

    def step():
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()

    return step, model, SGD(model.parameters(), lr=0.1)


@fault("no backward pass", "")
def no_backward_pass():
    x, y = data()
    model = network()
    return lambda: functional.cross_entropy(model(x), y), model, SGD(model.parameters(), lr=0.1)


@fault("backward fails", "backward()")
def edited_in_place():
    x, _ = data()
    model = nn.Linear(8, 2)

    def loss():
        odds = model(x).exp()
        odds += 1
        return odds.log().mean()

    return usual(model, loss=loss)


@fault("backward fails", "backward()")
def one_graph_for_all_steps():
    x, _ = data()
    model = nn.Linear(8, 2)
    loss = model(x).exp().mean()
    return usual(model, loss=lambda: loss)


@fault("frozen but moving", "optimizer.step()")
def frozen_after_some_steps():
    x, y = data()
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    model[0].requires_grad_(False)

    def step():
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step, model, optimizer


@fault("not in the graph", "")
def a_layer_that_nobody_calls():
    x, y = data()
    model = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 2)])
    return usual(model, loss=lambda: functional.cross_entropy(model[0](x), y))


@fault("clip after the update", "clip_grad_value_")
def values_clipped_after_step():
    model = network()
    return usual(model, after=lambda: nn.utils.clip_grad_value_(model.parameters(), 1e-3))


@issue(
    "https://github.com/pytorch/pytorch/issues/16045",
    "broadcast",
    "(model(x) - y)",
    cure=("predictions.squeeze(1)", "(model(x) - y)", "(model(x).squeeze(1) - y)"),
)
def a_column_less_a_row():
    x, _ = data()
    y, model = x[:, 0] - x[:, 1], nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return usual(model, loss=lambda: ((model(x) - y) ** 2).mean())


@fault("broadcast", "huber_loss", cure=("targets.unsqueeze(1)", "), y)", "), y.unsqueeze(1))"))
def a_column_against_a_row():
    x, _ = data()
    y, model = x[:, 0] - x[:, 1], nn.Linear(8, 1)
    return usual(model, loss=lambda: functional.huber_loss(model(x), y))


@issue(
    "https://github.com/bowang-lab/Transformer-GCN-QA/pull/32",
    "logits expected",
    "cross_entropy(",
    cure=("what goes into the softmax", "network(), nn.Softmax(1)", "network()"),
)
def softmax_twice():
    (x, y), model = data(), nn.Sequential(network(), nn.Softmax(1))
    return usual(model, loss=lambda: functional.cross_entropy(model(x), y))


@fault("logits expected", "bce(model(x)", cure=("sigmoid", "model(x).sigmoid()", "model(x)"))
def sigmoid_twice():
    (x, y), model = data(), nn.Sequential(nn.Linear(8, 1))
    bce = functional.binary_cross_entropy_with_logits
    return usual(model, loss=lambda: bce(model(x).sigmoid().view(-1), y.float()))


@issue(
    "https://github.com/rosinality/stylegan2-pytorch/issues/32",
    "dead term",
    "autograd.grad(",
    cure=("create_graph=True", "retain_graph=True", "create_graph=True"),
)
def gradient_penalty_without_a_graph():
    x, _ = data()
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def loss():
        mixed = (x + torch.rand(16, 1)).requires_grad_()
        value = critic(mixed)
        (slope,) = torch.autograd.grad(value, mixed, torch.ones_like(value), retain_graph=True)
        return critic(x).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()

    return usual(critic, Adam(critic.parameters(), lr=1e-4), loss)


@fault("dead term", "argmax")
def an_accuracy_in_the_loss():
    (x, y), model = data(), network()

    def loss():
        logits = model(x)
        return functional.cross_entropy(logits, y) - (logits.argmax(1) == y).float().mean()

    return usual(model, loss=loss)


@issue(
    "https://github.com/sgadgil6/cnslab_fmri/issues/4",
    "kept graph",
    "cell(x, hidden[-1])",
    cure=("h.detach()", "(x, hidden[-1])", "(x, hidden[-1].detach())"),
)
def hidden_state_kept_with_its_graph():
    (x, y), model, hidden = data(), nn.ModuleList([nn.GRUCell(8, 4), nn.Linear(4, 2)]), [torch.zeros(16, 4)]

    def loss():
        cell, last = model
        hidden.append(cell(x, hidden[-1]))
        return functional.cross_entropy(last(hidden[-1]), y)

    return usual(model, loss=loss)


@issue(
    "https://github.com/lightly-ai/lightly/issues/1438",
    "drifting statistics",
    "model.train()",
    cure=("backbone.eval()", "model.train()", "model.train(); backbone.eval()"),
)
def statistics_of_a_frozen_backbone():
    x, y = data()
    backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16)).requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(16, 2))

    def loss():
        model.train()
        return functional.cross_entropy(model(x), y)

    return usual(model, SGD(model[1].parameters(), 0.1), loss)


@issue(
    "https://github.com/rixwew/pytorch-fm/issues/21",
    "evaluation in training mode",
    "functional.dropout(",
    cure=("training=self.training", "dropout(x)", "dropout(x, training=self.training)"),
)
def functional_dropout_in_an_evaluation():
    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(functional.dropout(x))

    model = Net(8, 2)

    def evaluate():
        model.eval()
        with torch.no_grad():
            model(data()[0])
        model.train()

    return usual(model, after=evaluate)


@issue(
    "https://github.com/pytorch/pytorch/issues/6411",
    "padding not 0",
    "xavier_uniform_",
    cure=("weight.data[padding_idx] = 0", "_(weight)", "_(weight); weight.data[0] = 0"),
)
def padding_row_written_over():
    tokens = torch.arange(12).reshape(4, 3) % 8
    model = nn.Sequential(nn.Embedding(8, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 2))
    optimizer, weight = SGD(model.parameters(), 0.1), model[0].weight

    def step():
        nn.init.xavier_uniform_(weight)
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens), tokens[:, 0] % 2).backward()
        optimizer.step()

    return step, model, optimizer


@issue(
    "https://github.com/jankrepl/deepdow/pull/106",
    "cut",
    "sample()",
    cure=(".rsample()", ".sample()", ".rsample()"),
)
def sample_in_a_network():
    (x, y), model = data(), nn.ModuleList([nn.Linear(8, 4), nn.Linear(4, 2)])

    def loss():
        draw = torch.distributions.Normal(model[0](x), 1.0).sample()
        return functional.cross_entropy(model[1](draw), y)

    return usual(model, loss=loss)


@issue(
    "https://github.com/showlab/Olaf-World/issues/8",
    "cut",
    "(code - z).detach()",
    cure=("mse(code, z.detach())", "mse(q, z.detach())", "mse(code, z.detach())"),
)
def codebook_inside_a_straight_through_value():
    (x, _), mse = data(), functional.mse_loss
    model = nn.ModuleList([nn.Linear(8, 4), nn.Embedding(6, 4), nn.Linear(4, 8)])

    def loss():
        z = model[0](x)
        code = model[1](torch.cdist(z, model[1].weight).argmin(1))
        q = z + (code - z).detach()
        return mse(model[2](q), x) + mse(q, z.detach()) + 0.25 * mse(z, q.detach())

    return usual(model, loss=loss)


def in_float16(size):
    """Return what a network makes of data, and what becomes of a loss of that size."""
    x, _ = data()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = Adam(model.parameters())

    def loss():
        with torch.autocast("cpu", torch.float16):
            out = model(1e-2 * x).float()
        return size * ((out - 1e-4 * x[:, :1]) ** 2).mean()

    return model, optimizer, loss


@fault("underflow", "backward()", cure=("GradScaler", "loss().backward()", "(loss() * 2.0**16).backward()"))
def float16_without_a_scale():
    model, optimizer, loss = in_float16(1e-3)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step, model, optimizer


@fault("underflow", "backward()", cure=("GradScaler", "loss().backward()", "(loss() * 2.0**20).backward()"))
def float16_that_keeps_nothing():
    model, optimizer, loss = in_float16(3e-6)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step, model, optimizer


def rounding(weights, updates):
    """Add updates to weights in bfloat16, by plain descent."""
    model = nn.ParameterList([torch.tensor(weights, dtype=torch.bfloat16)])

    def loss():
        model[0].data.copy_(torch.tensor(weights))
        return (model[0] * torch.tensor(-updates)).sum()

    return usual(model, SGD(model.parameters(), lr=1.0), loss)


@fault("not finite, forward", "torch.nan")
def nan_written_into_what_was_finite():
    x, y = data()
    model = network()

    def loss():
        out = 2 * model(x)
        out[0, 0] = torch.nan
        return functional.cross_entropy(out, y)

    return usual(model, loss=loss)


@fault("not finite, forward", "div_")
def division_in_place_by_zero():
    x, y = data()
    model = network()

    def loss():
        out = 2 * model(x)
        out[:1].div_(0)  # a part of it, which shares its memory
        return functional.cross_entropy(out, y)

    return usual(model, loss=loss)


@fault("not finite, backward", "sqrt()")
def root_of_zero_beside_memory_that_holds_anything():
    x, y = data()
    model = network()

    def loss():
        torch.use_deterministic_algorithms(True)  # which fills such memory with NaN
        buffer, factor = torch.empty(2 * len(x), *x.shape[1:]), torch.empty(())
        torch.use_deterministic_algorithms(False)
        torch.mul(x, factor.fill_(2), out=buffer[: len(x)])
        fit = functional.cross_entropy(model(buffer[: len(x)]), y)
        return fit + (0 * fit).sqrt()

    return usual(model, loss=loss)


@fault("not finite, forward", "log()")
def logarithm_of_zero_after_a_constant_that_no_one_takes():
    x, y = data()
    model = network()

    def loss():
        count = torch.ones(())
        assert count.item() == 1  # what is a number now may come back anywhere
        scale = torch.where(count > 0, count, torch.full_like(count, torch.nan))
        assert scale.item() == 1
        return scale * functional.cross_entropy(model(x), y) + (0 * model(x)).log().mean()

    return usual(model, loss=loss)


@fault("no backward pass", "backward()")
def model_that_is_frozen():
    x, y = data()
    model = network().requires_grad_(False)
    return usual(model, loss=lambda: functional.cross_entropy(model(x), y))
