"""The agents in PyTorch; each module is imported when one of its names is first used."""

import lazy_loader

from gradtricks.agents.torch import learners as learners  # a missing framework is noticed at once

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
