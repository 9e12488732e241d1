"""A training of the tests as a script with TensorFlow, which a tool may look for among its imports."""

import tensorflow  # noqa: F401  # a tool may look for it

from replaying import train

train()
