"""A trained MuZero agent that learns no more: its weights, how it searches, and what it plays."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradtricks.agents.checkpoints import load_checkpoint, save_checkpoint
from gradtricks.agents.muzero import SearchNetwork
from gradtricks.agents.selfplay import SearchOptions
from gradtricks.agents.supports import Support

KIND = "MuZero agent"
GAMES = ("CartPole-v1", "tic-tac-toe")


class FrozenAgent:
    """A trained agent in plain NumPy: no framework is needed to play.

    Args:
        weights: Those of `gradtricks.agents.muzero.draw_weights`.
        game: One of `GAMES`.
        support: The categories of values and rewards.
        search: How moves are chosen.
        about: What else is known of it: anything that JSON can say.

    Attributes:
        network: What the search asks.

    Raises:
        ValueError: The game is another one, or the weights don't fit together.
    """

    def __init__(
        self,
        weights: Mapping[str, NDArray[np.floating]],
        *,
        game: str,
        support: Support,
        search: SearchOptions,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep the arguments."""
        if game not in GAMES:
            raise ValueError(f"game must be one of {', '.join(map(repr, GAMES))}; got {game!r}")
        self.network = SearchNetwork(weights, support)
        self.game, self.search, self.about = game, search, dict(about or {})
        self._weights = dict(weights)

    def save(self, path: Path) -> None:
        """Write the agent in the format safetensors.

        Args:
            path: Of the file; its folder exists.
        """
        settings = {"support": list(self.network.support), "search": asdict(self.search)}
        save_checkpoint(path, self._weights, {**self.about, "kind": KIND, "game": self.game, **settings})

    @classmethod
    def load(cls, path: Path) -> "FrozenAgent":
        """Read what `save` wrote.

        Args:
            path: Of the file.

        Returns:
            The agent.

        Raises:
            ValueError: The file is of another kind, or damaged.
            FileNotFoundError: There is none.
        """
        weights, about = load_checkpoint(path)
        if about.get("kind") != KIND:
            raise ValueError(f"{path} must hold a {KIND}; got {about.get('kind', 'something else')!r}")
        return cls(
            weights,
            game=about["game"],
            support=Support(*about["support"]),
            search=SearchOptions(**about["search"]),
            about=about,
        )
