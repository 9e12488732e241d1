"""The agents in TensorFlow."""

from gradtricks.agents.tensorflow.devices import resolve_device, set_seed
from gradtricks.agents.tensorflow.muzero import MuZeroLearner
from gradtricks.agents.tensorflow.pong import PongPolicy

__all__ = ["MuZeroLearner", "PongPolicy", "resolve_device", "set_seed"]
