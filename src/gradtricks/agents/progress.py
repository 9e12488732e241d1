"""Trainings that can be killed: they go on from a file, and end as if nothing had happened."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradtricks.agents.checkpoints import load_checkpoint, save_checkpoint
from gradtricks.agents.history import History

_SECONDS_BETWEEN = 20.0  # playing on costs more than saving by then


class Learner(Protocol):
    """What can be saved."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that the learner would need to go on."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""


class Progress:
    """What a training did so far, and from its file what an earlier attempt did.

    EnvPool has no way to save an emulator's state, but an emulator does the same again when the same actions
    are played. So a checkpoint holds them all, and an attempt that goes on plays them again without learning,
    before it learns on.

    Args:
        path: The file; None saves nothing.
        training: What must be equal for a file to be of this training: anything that JSON can say.
        learner: Gets back its state when the earlier attempt's last update is reached.
        history: Likewise.
        rng: Likewise; what chooses the actions.

    Raises:
        ValueError: The file is damaged, or of another training.
    """

    def __init__(
        self,
        path: Path | None,
        training: Mapping[str, Any],
        learner: Learner,
        history: History,
        rng: np.random.Generator,
    ) -> None:
        """Read the file if it is there."""
        start = _digest(learner.state()) if path is not None else None
        self._path = path
        self._training = {**training, "learner": type(learner).__module__, "start": start}
        self._learner, self._history, self._rng = learner, history, rng
        self._saved = load_checkpoint(path) if path is not None and path.exists() else None
        self._actions: list[NDArray[np.uint8]] = []
        self._updates, self._updates_before, self._position = 0, 0, 0
        self._last_saved = 0.0
        if self._saved is not None:
            if self._saved.about.get("training") != self._training:
                raise ValueError(
                    f"{path} must be of the same training; got {self._saved.about.get('training')} where "
                    f"{self._training} is wanted; remedy: another path, or remove the file"
                )
            self._actions = list(self._saved.arrays["actions"])
            self._updates_before = self._saved.about["updates"]

    def actions_made_before(self) -> NDArray[np.int64] | None:
        """Return what was done at this point by the attempt before, or None where nobody has been yet."""
        if self._position == len(self._actions):
            return None
        self._position += 1
        return self._actions[self._position - 1].astype(np.int64)

    def add_actions(self, actions: NDArray[np.int64]) -> None:
        """Note what is done now.

        Args:
            actions: ``[N]``.
        """
        self._actions.append(actions.astype(np.uint8))
        self._position += 1

    def made_before(self, observations: NDArray[Any]) -> bool:
        """Say whether the update that is due now was made by the attempt before.

        Args:
            observations: Of the games, to see that they did the same again.

        Returns:
            True where it must not be made again; after the last such one everything is as it was.

        Raises:
            ValueError: The games didn't do the same again.
        """
        self._updates += 1
        if self._saved is None or self._updates > self._updates_before:
            return False
        if self._updates == self._updates_before:
            arrays, about = self._saved
            if not np.array_equal(arrays["observations"], observations):
                raise ValueError(
                    f"the games must do the same again when the same actions are played, but those of "
                    f"{self._path} did something else; remedy: the same games, or remove the file"
                )
            self._learner.restore(_part(arrays, "learner"))
            self._history.restore_updates(_part(arrays, "history"))
            self._rng.bit_generator.state = about["rng"]
            self._last_saved = self._history.seconds[-1]
            self._saved = None
        return True

    def save_if_due(self, observations: NDArray[Any]) -> None:
        """Write the file after an update, unless that was done a few seconds ago.

        Args:
            observations: Of the games now.
        """
        now = self._history.seconds[-1]
        if self._path is None or now - self._last_saved < _SECONDS_BETWEEN:
            return
        self._last_saved = now
        arrays = {"actions": np.stack(self._actions), "observations": observations}
        arrays |= {f"learner/{name}": value for name, value in self._learner.state().items()}
        arrays |= {f"history/{name}": value for name, value in self._history.updates().items()}
        about = {"training": self._training, "updates": self._updates, "rng": self._rng.bit_generator.state}
        save_checkpoint(self._path, arrays, about)


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def _part(arrays: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
