from .devices import resolve_device as resolve_device
from .devices import set_seed as set_seed
from .muzero import MuZeroLearner as MuZeroLearner
from .pong import PongPolicy as PongPolicy

__all__ = ["MuZeroLearner", "PongPolicy", "resolve_device", "set_seed"]
