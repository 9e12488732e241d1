from .learners import resolve_device as resolve_device
from .learners import set_seed as set_seed
from .muzero import MuZeroLearner as MuZeroLearner
from .ppo import PPOLearner as PPOLearner
from .reinforce import PongPolicy as PongPolicy

__all__ = ["MuZeroLearner", "PPOLearner", "PongPolicy", "resolve_device", "set_seed"]
