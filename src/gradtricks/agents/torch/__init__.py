"""The agents in PyTorch."""

from gradtricks.agents.torch.devices import resolve_device, set_seed
from gradtricks.agents.torch.muzero import MuZeroLearner
from gradtricks.agents.torch.pong import PongPolicy

__all__ = ["MuZeroLearner", "PongPolicy", "resolve_device", "set_seed"]
