"""The oracle: every trick in NumPy, as a value and a vector-Jacobian product.

Written to be read and checked by eye, not to be fast. ``f_vjp(cotangent, ...)`` returns the
gradient that a framework must produce when ``cotangent`` arrives at the output of ``f``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
