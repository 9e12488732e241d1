"""Trained weights in a file that is whole or isn't there, and trainings that can be killed and go on."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

Arrays = dict[str, NDArray[Any]]

EVALUATION_SEED = 1_000_000  # of the first game in which an agent is judged; trainings are seeded below
_SECONDS_BETWEEN = 20.0  # learning on costs more than saving by then


class Checkpoint(NamedTuple):
    """What a file holds.

    Attributes:
        arrays: Under their names.
        about: What else is to be known: anything that JSON can say.
    """

    arrays: Arrays
    about: dict[str, Any]


def save_checkpoint(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write a file in the format safetensors, in the place of what was there before, in one step.

    ``about`` is what else is to be known: anything that JSON can say, and NumPy's numbers.
    """
    beside = path.with_name(f"{path.name}.new")
    whole = {name: np.array(array, order="C") for name, array in arrays.items()}
    save_file(whole, beside, metadata={"about": _to_json(about)})
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
        kind: What such files say that they hold.
        weights: Arrays under their names.
        about: What else is known of it: anything that JSON can say, and NumPy's numbers.
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


class Part(Protocol):
    """What can be saved: a learner, games, a memory, a history."""

    def state(self) -> Arrays:
        """Return all that is needed to go on; what happens later doesn't change it."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, of a part made with the same arguments."""


class Snapshots:
    """Saves the parts of a training now and then, and gives them back to an attempt that goes on.

    Args:
        path: The file; None saves nothing.
        training: What must be equal, beside the parts' beginnings, for a file to be of this training:
            anything that JSON can say, and NumPy's numbers.
        parts: Under their names, as they are before the training.
    """

    def __init__(self, path: Path | None, training: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
        """Keep the arguments."""
        self._path, self._parts, self._last_saved = path, parts, 0.0
        start = None if path is None else _digest(self._state())
        self._training = json.loads(_to_json({**training, "start": start}))  # as it will be read

    def restore(self) -> int:
        """Give the parts what the file holds, if it is there.

        Returns:
            How far the earlier attempt had come, as `save_if_due` was told.

        Raises:
            ValueError: The file is damaged, or of another training.
        """
        if self._path is None or not self._path.exists():
            return 0
        arrays, about = load_checkpoint(self._path)
        if about.get("training") != self._training:
            raise ValueError(
                f"{self._path} must be of the same training; got {about.get('training')} where "
                f"{self._training} is wanted; remedy: another path, or remove the file"
            )
        for name, part in self._parts.items():
            mine = {key for key in arrays if key.startswith(f"{name}/")}
            part.restore({key.removeprefix(f"{name}/"): arrays[key] for key in mine})
        self._last_saved = float(about["seconds"])
        return int(about["done"])

    def save_if_due(self, done: int, seconds: float) -> None:
        """Write the file, unless that was done a few seconds ago.

        ``done`` is how far the training has come, in whatever it counts.
        """
        if self._path is None or seconds - self._last_saved < _SECONDS_BETWEEN:
            return
        self._last_saved = seconds
        about = {"training": self._training, "done": done, "seconds": seconds}
        save_checkpoint(self._path, self._state(), about)

    def _state(self) -> Arrays:
        parts = {name: part.state() for name, part in self._parts.items()}
        return {f"{name}/{key}": value for name, state in parts.items() for key, value in state.items()}


class Chance:
    """A random generator as a part of a training."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Keep it."""
        self._rng = rng

    def state(self) -> Arrays:
        """Return the generator's state as the bytes of JSON, since it has integers of 128 bits."""
        text = json.dumps(self._rng.bit_generator.state)
        return {"state": np.frombuffer(text.encode(), np.uint8)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned, of a generator of the same kind."""
        self._rng.bit_generator.state = json.loads(state["state"].tobytes())


def _to_json(about: Mapping[str, Any]) -> str:
    return json.dumps(about, sort_keys=True, default=np.generic.item)


def _digest(arrays: Arrays) -> str:
    parts = (name.encode() + arrays[name].tobytes() for name in sorted(arrays))
    return hashlib.sha256(b"".join(parts)).hexdigest()
