"""The tricks in TensorFlow; each module is imported when one of its names is first used.

In a functional Keras model, call what maps tensors to tensors with KerasTensors: it becomes an operation.

What isn't as the description of an argument says is refused: a TypeError where the type or dtype is another,
a ValueError where a shape, a structure or a number is. "Raises" lists what else a function refuses.
"""

from typing import Any

import lazy_loader

from gradtricks._load import expect_framework, load_moved

expect_framework("tensorflow")  # one that is missing or too old is noticed at once

from gradtricks.tensorflow import _symbolic  # noqa: E402
from gradtricks.tensorflow import masking as masking  # noqa: E402  Keras loads only what it has been told of
from gradtricks.tensorflow import scaling as scaling  # noqa: E402

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    globals()[name] = exported = load_moved("tensorflow", name) or _symbolic.symbolic(_load(name))
    return exported
