"""The tricks in PyTorch; each module is imported when one of its names is first used.

What isn't as the description of an argument says is refused: a TypeError where the type or dtype is another,
a ValueError where a shape, a structure or a number is. "Raises" lists what else a function refuses.
"""

from typing import Any

import lazy_loader

from gradtricks._load import expect_framework, load_moved

expect_framework("torch")  # one that is missing or too old is noticed at once

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    return load_moved("torch", name) or _load(name)
