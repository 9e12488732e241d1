"""A trained MuZero agent that learns no more: its weights, how it searches, and what it plays."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_choice, check_shape
from gradtricks.agents.checkpoints import EVALUATION_SEED, Frozen
from gradtricks.agents.muzero.boards import RULES, Boards
from gradtricks.agents.muzero.cartpole import ACTIONS, OBSERVATION_SIZE, CartPoleGames, CartView
from gradtricks.agents.muzero.deciding import Search, SearchOptions
from gradtricks.agents.muzero.network import SearchNetwork
from gradtricks.agents.muzero.players import Player, look_ahead, meet
from gradtricks.agents.muzero.selfplay import play_to_the_end
from gradtricks.agents.muzero.supports import Support

GAMES = ("CartPole-v1", *RULES)


class FrozenAgent(Frozen):
    """A trained agent in plain NumPy: no framework is needed to play.

    Args:
        weights: Those of `gradtricks.agents.muzero.network.draw_weights`.
        game: One of `GAMES`.
        support: The categories of values and rewards.
        search: How moves are chosen.
        about: Facts about it: anything that JSON can say.

    Attributes:
        network: Asked by the search.

    Raises:
        ValueError: The game is another one, the search is for another number of players, or the weights don't
            fit together.
    """

    kind = "MuZero agent"

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
        check_choice("game", game, GAMES)
        search.check_players(game in RULES)
        self.network, rules = SearchNetwork(weights, support), RULES.get(game)
        sizes = (2 * rules.squares, rules.actions) if rules else (OBSERVATION_SIZE, ACTIONS)
        found = self.network.observation_size, self.network.actions
        check_shape("weights", found, sizes, f"the observations and actions of {game}")
        self.game, self.search, self.about = game, search, dict(about or {})
        self.weights = dict(weights)

    def _settings(self) -> dict[str, Any]:
        search = asdict(self.search)
        return {"game": self.game, "support": list(self.network.support), "search": search}

    @classmethod
    def _make(cls, weights: dict[str, NDArray[Any]], about: dict[str, Any]) -> "FrozenAgent":
        support, search = Support(*about["support"]), SearchOptions(**about["search"])
        return cls(weights, game=about["game"], support=support, search=search, about=about)

    def play(
        self, games: int = 100, seed: int = EVALUATION_SEED, *, search: Search | None = None
    ) -> NDArray[np.floating]:
        """Play games without noise, always with the most visited action.

        Args:
            games: How many.
            seed: Of the games.
            search: How moves are chosen, if not as the agent learned to.

        Returns:
            ``[games]``, their returns; in a board game, where the opponent looks ahead, those of
            `gradtricks.agents.muzero.players.meet`.
        """
        if self.game in RULES:
            rules = RULES[self.game]
            return meet(rules, self.player(search), look_ahead(rules), games, seed).astype(float)
        return play_to_the_end(self.network, search or self.search, CartPoleGames(games, seed=seed))

    @property
    def seen(self) -> str:
        """What it sees of its game, in a few words."""
        return "the board" if self.game in RULES else CartView().seen

    def player(self, search: Search | None = None) -> Player:
        """Return a player of its board game; ``search`` says how moves are chosen, if not as it learned to.

        Raises:
            ValueError: It plays alone.
        """
        if self.game not in RULES:
            raise ValueError(f"game must be one for two players; got {self.game!r}; remedy: play")
        rules, search = RULES[self.game], search or self.search
        search.check_players(True)

        def play(boards: Boards, rng: np.random.Generator) -> NDArray[np.int64]:
            invalid = ~rules.legal_actions(boards)
            return search.choose(self.network, rules.observe(boards), rng, invalid_actions=invalid).action

        return play
