"""Frozen Pong players, judged in games with seeds of their own."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_choice, check_integer, check_number
from gradtricks.agents.blocks import CONTRAST
from gradtricks.agents.checkpoints import EVALUATION_SEED, Frozen
from gradtricks.agents.pong import (
    CELLS,
    MIRRORED,
    NO_CELL,
    SCREEN,
    VIEWS,
    PongGames,
    mirror_cells,
    mirror_places,
    sample_actions,
)
from gradtricks.agents.ppo import check_weights

Array = NDArray[np.float64]

TEMPERATURE = 0.5  # in training, the cost of entropy keeps a policy less sure than it could be
_LARGEST = 127  # of 8 bits
_LONGEST_GAME = 108_000  # screen frames, half an hour, where ALE's protocol ends a game
_FRAMES_PER_SECOND = 60  # of a television
_SIDE_BY_SIDE = 25  # a court whose games are over waits for the others; with few courts, that is rarely long


class Evaluation(NamedTuple):
    """Games played to their end.

    Attributes:
        returns: ``[G]``, points won minus points lost, from -21 to 21.
        decisions: ``[G]``, how long each game was.
    """

    returns: Array
    decisions: NDArray[np.int64]


class Film(NamedTuple):
    """One game: the screens that were shown, and its rewards.

    Attributes:
        screens: ``[T, 210, 160]``, luminance, one for each decision.
        rewards: ``[T]``, after each of them.
        frames_per_second: At which the game runs as fast as on a television.
    """

    screens: NDArray[np.uint8]
    rewards: Array
    frames_per_second: float


class FrozenPolicy(Frozen):
    """A trained network in plain NumPy: no framework is needed to play.

    Args:
        weights: Those of `gradtricks.agents.ppo.draw_weights`, and ``scale`` ``[units]`` where ``cells`` are
            to be multiplied with it.
        mirror: The weights are of half a network, whose other half sees the court upside down.
        about: Facts about it: anything that JSON can say.

    Attributes:
        view: How it sees the game.

    Raises:
        ValueError: A name is missing or unknown, or a shape is wrong.
    """

    kind = "Pong policy"

    def __init__(
        self, weights: Mapping[str, NDArray[Any]], *, mirror: bool, about: Mapping[str, Any] | None = None
    ) -> None:
        """Spread the weights out for playing."""
        self.weights, self.mirror, self.about = dict(weights), bool(mirror), dict(about or {})
        self._wide = {name: value.astype(np.float64) for name, value in weights.items()}
        scale = self._wide.pop("scale", None)
        self._first = check_weights(self._wide, mirror=self.mirror)
        if scale is not None:
            self._wide["cells"] *= scale
        check_choice("view", self._first, tuple(VIEWS))
        self.view = VIEWS[self._first]

    @classmethod
    def freeze(
        cls, weights: Mapping[str, NDArray[Any]], *, mirror: bool, about: Mapping[str, Any] | None = None
    ) -> "FrozenPolicy":
        """Keep weights of a learner's ``state()``; cells' are rounded to 8 bits, by one scale for a unit."""
        kept = {name: value for name, value in weights.items() if "/" not in name}  # not the optimizer's
        if check_weights(kept, mirror=mirror) != "cells":
            return cls(kept, mirror=mirror, about=about)
        scale = np.abs(kept["cells"]).max(axis=0) / _LARGEST
        rounded = np.rint(kept["cells"] / np.where(scale > 0, scale, 1)).astype(np.int8)
        return cls({**kept, "cells": rounded, "scale": scale}, mirror=mirror, about=about)

    def _settings(self) -> dict[str, Any]:
        return {"mirror": self.mirror}

    @classmethod
    def _make(cls, weights: dict[str, NDArray[Any]], about: dict[str, Any]) -> "FrozenPolicy":
        return cls(weights, mirror=about["mirror"], about=about)

    @property
    def seen(self) -> str:
        """What it sees of the game, in a few words."""
        return self.view.seen

    def logits(self, observations: NDArray[Any]) -> Array:
        """Return unnormalised log-probabilities ``[N, A]`` for what is seen by `view`, ``[N, ...]``."""
        outputs = self._half(observations)
        if self.mirror:
            upside_down = _CELLS[observations] if self.view is CELLS else _PLACES * observations
            outputs = outputs + self._half(upside_down)[:, MIRRORED]
        return outputs[:, :-1]

    def _half(self, observations: NDArray[Any]) -> Array:
        from gradtricks.agents.pong_loops import sum_rows  # a compiler is dear to import

        weights = self._wide
        hidden = np.tile(weights["bias"], (len(observations), 1))
        if self.view is CELLS:
            sum_rows(weights["cells"], observations, (observations != NO_CELL).astype(float), hidden)
        elif self.view is SCREEN:
            sum_rows(weights["screen"], observations[..., 0], observations[..., 1] / CONTRAST, hidden)
        else:
            hidden += observations @ weights[self._first]
        hidden = np.maximum(hidden, 0)
        if "second" in weights:
            hidden = np.maximum(hidden @ weights["second"] + weights["second_bias"], 0)
        outputs: Array = hidden @ weights["heads"]
        return outputs


_CELLS, _PLACES = mirror_cells(), mirror_places()


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
        frame_skip: See `gradtricks.agents.pong.PongGames`.
        sticky: Likewise.
        temperature: Divides the logits before actions are drawn: 1 draws as in training, and 0 always takes
            the likeliest. A game begins after at most 30 idle frames, so that with 0 and without ``sticky``
            there are at most 30 games.

    Returns:
        The games in the order in which they ended; one that isn't over after half an hour (108,000 frames)
        counts as it then stands.
    """
    count = check_integer("games", games, low=1)
    courts = min(count, _SIDE_BY_SIDE)
    left = count // courts + (np.arange(courts) < count % courts)
    temperature = check_number("temperature", temperature, low=0)
    court = PongGames(
        courts, seed=seed, frame_skip=frame_skip, sticky=sticky, view=policy.view, max_frames=_LONGEST_GAME
    )
    rng = np.random.default_rng(seed)
    score, length = np.zeros(courts), np.zeros(courts, np.int64)
    returns: list[float] = []
    decisions: list[int] = []
    while left.any():
        length += court.playing
        score += court.step(_choose(policy, court, temperature, rng))
        over = ~court.playing
        counted = over & (left > 0)
        returns.extend(score[counted])
        decisions.extend(length[counted])
        left[counted] -= 1
        score[over] = length[over] = 0
    return Evaluation(np.array(returns), np.array(decisions))


def film(
    policy: FrozenPolicy,
    *,
    seconds: float,
    seed: int = EVALUATION_SEED,
    frame_skip: int = 4,
    sticky: float = 0.0,
    temperature: float = TEMPERATURE,
) -> Film:
    """Play a game, or ``seconds`` of it, and keep what is seen; options as for `evaluate`."""
    frames_per_second = _FRAMES_PER_SECOND / check_integer("frame_skip", frame_skip, low=1)
    length = check_number("seconds", seconds, low=1 / frames_per_second) * frames_per_second
    temperature = check_number("temperature", temperature, low=0)
    court = PongGames(1, seed=seed, frame_skip=frame_skip, sticky=sticky, view=policy.view)
    rng = np.random.default_rng(seed)
    screens: list[NDArray[np.uint8]] = []
    rewards: list[float] = []
    while court.playing.all() and len(screens) < length:
        screens.append(court.screens[0])
        rewards.append(court.step(_choose(policy, court, temperature, rng))[0])
    return Film(np.stack(screens), np.array(rewards), frames_per_second)


def _choose(
    policy: FrozenPolicy, court: PongGames, temperature: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    logits = policy.logits(court.observations)
    return sample_actions(logits / temperature, rng) if temperature else logits.argmax(axis=-1)
