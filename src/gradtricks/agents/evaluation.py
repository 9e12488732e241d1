"""What a trained Pong player is worth: frozen, in games with seeds of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number
from gradtricks.agents.checkpoints import load_checkpoint, save_checkpoint
from gradtricks.agents.history import sample_actions
from gradtricks.agents.pong import CELLS, NO_CELL, PongGames
from gradtricks.agents.ppo import check_weights, mirror_cells

Array = NDArray[np.float64]

EVALUATION_SEED = 1_000_000  # of the first game; trainings are seeded below
TEMPERATURE = 0.5  # in training, the cost of entropy keeps a policy less sure than it could be
_KIND = "Pong policy"
_LARGEST = 127  # of 8 bits
_LONGEST_GAME = 108_000  # screen frames, half an hour, where ALE's protocol ends a game
_SIDE_BY_SIDE = 25  # a court whose games are over waits for the others; with few courts, that is rarely long


class Evaluation(NamedTuple):
    """Games played to their end.

    Attributes:
        returns: ``[G]``, points won minus points lost, from -21 to 21.
        decisions: ``[G]``, how long each game was.
    """

    returns: Array
    decisions: NDArray[np.int64]


class FrozenPolicy:
    """A trained network in plain NumPy: no framework is needed to play.

    Args:
        weights: Those of `gradtricks.agents.ppo.draw_weights`, and ``scale`` ``[units]`` where ``cells`` are
            to be multiplied with it.
        mirror: The weights are of half a network, whose other half sees the court upside down.
        about: What else is known of it: anything that JSON can say.

    Raises:
        ValueError: A name is missing or unknown, or a shape is wrong.
    """

    def __init__(
        self, weights: Mapping[str, NDArray[Any]], *, mirror: bool, about: Mapping[str, Any] | None = None
    ) -> None:
        """Spread the weights out for playing."""
        self.weights, self.mirror, self.about = dict(weights), bool(mirror), dict(about or {})
        self._wide = {name: value.astype(np.float64) for name, value in weights.items()}
        scale = self._wide.pop("scale", np.ones(()))
        check_weights(self._wide)
        self._wide["cells"] *= scale

    @classmethod
    def freeze(
        cls,
        weights: Mapping[str, NDArray[np.floating]],
        *,
        mirror: bool,
        about: Mapping[str, Any] | None = None,
    ) -> "FrozenPolicy":
        """Round the weights of the cells to 8 bits, by one scale for each hidden unit.

        Args:
            weights: From a learner's ``state()``.
            mirror: Likewise.
            about: Likewise.

        Returns:
            The policy that is saved and played, a quarter as large.
        """
        kept = {name: weights[name] for name in ("cells", "bias", "heads")}
        check_weights(kept)
        scale = np.abs(kept["cells"]).max(axis=0) / _LARGEST
        rounded = np.rint(kept["cells"] / np.where(scale > 0, scale, 1)).astype(np.int8)
        return cls({**kept, "cells": rounded, "scale": scale}, mirror=mirror, about=about)

    @classmethod
    def load(cls, path: Path) -> "FrozenPolicy":
        """Read what `save` wrote.

        Args:
            path: Of the file.

        Returns:
            The policy.

        Raises:
            ValueError: The file is of another kind, or damaged.
            FileNotFoundError: There is none.
        """
        arrays, about = load_checkpoint(path)
        if about.get("kind") != _KIND:
            raise ValueError(f"{path} must hold a {_KIND}; got {about.get('kind', 'something else')!r}")
        return cls(arrays, mirror=about["mirror"], about=about)

    def save(self, path: Path) -> None:
        """Write the policy in the format safetensors.

        Args:
            path: Of the file; its folder exists.
        """
        save_checkpoint(path, self.weights, {**self.about, "kind": _KIND, "mirror": self.mirror})

    def logits(self, observations: NDArray[np.int32]) -> Array:
        """Say what the policy thinks of each action.

        Args:
            observations: ``[N, 80]``, see `gradtricks.agents.pong.CELLS`.

        Returns:
            ``[N, 3]``, unnormalised log-probabilities.
        """
        outputs = self._half(observations)
        if self.mirror:
            outputs = outputs + self._half(_MIRRORED[observations])[:, [0, 2, 1, 3]]
        return outputs[:, :3]

    def _half(self, observations: NDArray[np.int32]) -> Array:
        from gradtricks._core.kernels.pong import sum_rows  # a compiler is dear to import

        hidden = np.tile(self._wide["bias"], (len(observations), 1))
        sum_rows(self._wide["cells"], observations, NO_CELL, hidden)
        outputs: Array = np.maximum(hidden, 0) @ self._wide["heads"]
        return outputs


_MIRRORED = mirror_cells()


def evaluate(
    policy: FrozenPolicy,
    *,
    games: int = 100,
    seed: int = EVALUATION_SEED,
    frame_skip: int = 4,
    sticky: float = 0.0,
    temperature: float = TEMPERATURE,
) -> Evaluation:
    """Play games from their beginnings to their ends.

    There are 25 courts at most, and it is fixed before how many games are played on each, so that short games
    don't count more often than long ones.

    Args:
        policy: Who plays.
        games: How many.
        seed: Of the games and of the choice of actions.
        frame_skip: Screen frames per decision.
        sticky: Probability with which the emulator repeats the last action instead, at each frame.
        temperature: Divides the logits before actions are drawn: 1 draws as in training, and 0 always takes
            the likeliest. A game begins after at most 30 idle frames, so that with 0 and without ``sticky``
            there are at most 30 games.

    Returns:
        The games in the order in which they ended; one that isn't over after half an hour (108,000 frames)
        counts as it then stands.

    Raises:
        ValueError: An option is out of range.
    """
    count = check_integer("games", games, low=1)
    courts = min(count, _SIDE_BY_SIDE)
    left = count // courts + (np.arange(courts) < count % courts)
    temperature = check_number("temperature", temperature, low=0)
    longest = _LONGEST_GAME // check_integer("frame_skip", frame_skip, low=1)
    court = PongGames(
        courts, seed=seed, frame_skip=frame_skip, sticky=sticky, view=CELLS, max_decisions=longest
    )
    rng = np.random.default_rng(seed)
    score, length = np.zeros(courts), np.zeros(courts, np.int64)
    returns: list[float] = []
    decisions: list[int] = []
    while left.any():
        length += court.playing
        logits = policy.logits(court.observations)
        drawn = sample_actions(logits / temperature, rng) if temperature else logits.argmax(axis=-1)
        score += court.step(drawn)
        over = ~court.playing
        counted = over & (left > 0)
        returns.extend(score[counted])
        decisions.extend(length[counted])
        left[counted] -= 1
        score[over] = length[over] = 0
    return Evaluation(np.array(returns), np.array(decisions))
