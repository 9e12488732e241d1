"""Trained weights in a file that is whole or isn't there."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

Arrays = dict[str, NDArray[Any]]

EVALUATION_SEED = 1_000_000  # of the first game in which an agent is judged; trainings are seeded below


class Checkpoint(NamedTuple):
    """The content of a file.

    Attributes:
        arrays: Under their names.
        about: Facts beside them: anything that JSON can say.
    """

    arrays: Arrays
    about: dict[str, Any]


def save_checkpoint(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write a file in the format safetensors, in the place of what was there before, in one step.

    ``about`` is what else is to be known: anything that JSON can say, and NumPy's numbers.
    """
    beside = path.with_name(f"{path.name}.new")
    whole = {name: np.array(array, order="C") for name, array in arrays.items()}
    save_file(whole, beside, metadata={"about": to_json(about)})
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(path)


def load_checkpoint(path: Path, kind: str | None = None) -> Checkpoint:
    """Read what `save_checkpoint` wrote; ``kind`` is what it must say that it holds, if that matters.

    Raises:
        ValueError: The file is of another kind, or damaged.
        FileNotFoundError: There is none.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["about"])
            names = file.keys()  # an open file isn't iterable itself
            arrays = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} must be a safetensors file that gradtricks wrote; got one that can't be read ({error}); "
            "remedy: train again"
        ) from error
    if kind is not None and about.get("kind") != kind:
        raise ValueError(f"{path} must hold a {kind}; got {about.get('kind', 'something else')!r}")
    return Checkpoint(arrays, about)


class Frozen(ABC):
    """A trained agent that learns no more and can be kept in a file: weights, and what it takes to play.

    Attributes:
        kind: The name of the class in its files.
        weights: Arrays under their names.
        about: Facts about it: anything that JSON can say, and NumPy's numbers.
    """

    kind: ClassVar[str]
    weights: dict[str, NDArray[Any]]
    about: dict[str, Any]

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Return what the constructor takes beside the weights, as JSON can say it."""

    @classmethod
    @abstractmethod
    def _make(cls, weights: Arrays, about: dict[str, Any]) -> Self:
        """Make the agent again from weights and from what the file says, `_settings` in it."""

    def save(self, path: Path) -> None:
        """Write the agent in the format safetensors into a folder that exists."""
        save_checkpoint(path, self.weights, {**self.about, **self._settings(), "kind": self.kind})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ValueError: The file is of another kind, or damaged.
            FileNotFoundError: There is none.
        """
        return cls._make(*load_checkpoint(path, cls.kind))


def to_json(about: Mapping[str, Any]) -> str:
    """Write JSON with sorted keys, NumPy's numbers included."""
    return json.dumps(about, sort_keys=True, default=np.generic.item)
