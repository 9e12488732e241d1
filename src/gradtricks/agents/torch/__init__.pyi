from .devices import resolve_device as resolve_device
from .devices import set_seed as set_seed
from .muzero import MuZeroLearner as MuZeroLearner
from .pong import PongPolicy as PongPolicy
from .ppo import PPOLearner as PPOLearner

__all__ = ["MuZeroLearner", "PPOLearner", "PongPolicy", "resolve_device", "set_seed"]
