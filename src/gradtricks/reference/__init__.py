"""The oracle: every trick that has a formula in NumPy, as a value and a vector-Jacobian product.

Written to be read and checked by eye, not to be fast. ``f_vjp(cotangent, ...)`` takes what ``f`` takes, and
returns the gradients that a framework must produce, in the shapes of its arguments, when ``cotangent``
arrives at the output of ``f``. Shapes are any, and options mean what they mean in the frameworks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
