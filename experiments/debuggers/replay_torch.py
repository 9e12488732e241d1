"""A training of the tests as a script with PyTorch, which a tool may look for among its imports."""

import torch  # noqa: F401  # a tool may look for it

from replaying import train

train()
