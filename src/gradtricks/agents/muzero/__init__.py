"""MuZero: games, search, training, frozen agents, and what became of those with and without the two scales.

All that an experiment needs is here, but the learner: ``gradtricks.agents.load(backend).MuZeroLearner``.
One training goes through `cartpole` or `boards` (the game), `loop`, `selfplay`, `deciding`, `searching`,
`trees` and `replay`; `gumbel` is another search.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
