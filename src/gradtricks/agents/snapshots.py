"""A training's whole state in one file, for trainings whose every part can be saved."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradtricks.agents.checkpoints import load_checkpoint, save_checkpoint

Arrays = dict[str, NDArray[Any]]

_SECONDS_BETWEEN = 20.0  # learning on costs more than saving by then


class Part(Protocol):
    """What can be saved."""

    def state(self) -> Arrays:
        """Return all that is needed to go on; what happens later doesn't change it."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""


class Snapshots:
    """Saves the parts of a training now and then, and gives them back to an attempt that goes on.

    Args:
        path: The file; None saves nothing.
        training: What must be equal for a file to be of this training: anything that JSON can say.
        parts: Under their names.
    """

    def __init__(self, path: Path | None, training: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
        """Keep the arguments."""
        self._path, self._training, self._parts = path, dict(training), parts
        self._last_saved = 0.0

    def restore(self) -> int:
        """Give the parts what the file holds, if it is there.

        Returns:
            How many moves the earlier attempt had made.

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
            part.restore(_under(arrays, name))
        self._last_saved = float(about["seconds"])
        return int(about["moves"])

    def save_if_due(self, moves: int, seconds: float) -> None:
        """Write the file, unless that was done a few seconds ago.

        Args:
            moves: Made so far.
            seconds: Of training so far.
        """
        if self._path is None or seconds - self._last_saved < _SECONDS_BETWEEN:
            return
        self._last_saved = seconds
        arrays = {
            f"{name}/{key}": value
            for name, part in self._parts.items()
            for key, value in part.state().items()
        }
        save_checkpoint(self._path, arrays, {"training": self._training, "moves": moves, "seconds": seconds})


class Chance:
    """A random generator as a part of a training.

    Args:
        rng: The generator.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        """Keep it."""
        self._rng = rng

    def state(self) -> Arrays:
        """Return where the generator stands.

        Returns:
            Its state as the bytes of JSON, since it has integers of 128 bits.
        """
        text = json.dumps(self._rng.bit_generator.state)
        return {"state": np.frombuffer(text.encode(), np.uint8)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned.

        Args:
            state: Of a generator of the same kind.
        """
        self._rng.bit_generator.state = json.loads(state["state"].tobytes())


def _under(arrays: Arrays, name: str) -> Arrays:
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
