"""The tricks in PyTorch; each module is imported when one of its names is first used.

What isn't as the description of an argument says is refused: a TypeError where the type or dtype is another,
a ValueError where a shape, a structure or a number is. "Raises" lists what else a function refuses.
"""

import lazy_loader

from gradtricks._load import expect_framework

expect_framework("torch")  # one that is missing or too old is noticed at once

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
