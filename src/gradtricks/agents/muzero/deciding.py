"""How an agent chooses its moves: by which search, and with which numbers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradtricks._core.checks import check_integer, check_number
from gradtricks.agents.muzero.gumbel import gumbel_muzero_policy
from gradtricks.agents.muzero.network import SearchNetwork
from gradtricks.agents.muzero.searching import muzero_policy
from gradtricks.agents.muzero.trees import PolicyOutput

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Search(ABC):
    """What all searches need to know.

    Attributes:
        num_simulations: Nodes of each tree.
        discount: Of a reward per step between it and the move.
        two_players: Players alternate, and one's gain is the other's loss.
    """

    num_simulations: int = 25
    discount: float = 0.99
    two_players: bool = False

    def __post_init__(self) -> None:
        """Refuse what can't be; the search checks the rest."""
        check_integer("num_simulations", self.num_simulations, low=1)
        check_number("discount", self.discount, low=0)

    def check_players(self, two_players: bool) -> None:
        """Raise unless the search is for as many players as the game."""
        if self.two_players != two_players:
            raise ValueError(
                f"search must have two_players={two_players}, as the games do; got {self.two_players}; "
                f"remedy: {type(self).__name__}(two_players={two_players})"
            )

    @abstractmethod
    def choose(
        self,
        network: SearchNetwork,
        observations: Array,
        rng: np.random.Generator,
        *,
        invalid_actions: NDArray[np.bool_] | None = None,
        temperature: float = 0.0,
        noise: bool = False,
    ) -> PolicyOutput:
        """Search from observations ``[B, ...]``, with noise at the roots or without, and choose actions."""


@dataclass(frozen=True)
class SearchOptions(Search):
    """MuZero's search; see `gradtricks.agents.muzero.searching.muzero_policy`.

    Attributes:
        qtransform: See `gradtricks.agents.muzero.searching.search`.
        pb_c_init: Weight of the prior.
        dirichlet_fraction: Share of noise in the priors of the root while training.
        dirichlet_alpha: Concentration of this noise.
        min_value: The game's worst value, where it is known; small differences near a draw then aren't taken
            for large ones.
        max_value: The best one, likewise.
    """

    qtransform: str = "by_parent_and_siblings"
    pb_c_init: float = 1.25
    dirichlet_fraction: float = 0.25
    dirichlet_alpha: float = 0.5
    min_value: float | None = None
    max_value: float | None = None

    def __post_init__(self) -> None:
        """Refuse what can't be; the search checks the rest."""
        super().__post_init__()
        for name in ("pb_c_init", "dirichlet_fraction", "dirichlet_alpha"):
            check_number(name, getattr(self, name), low=0)

    def choose(
        self,
        network: SearchNetwork,
        observations: Array,
        rng: np.random.Generator,
        *,
        invalid_actions: NDArray[np.bool_] | None = None,
        temperature: float = 0.0,
        noise: bool = False,
    ) -> PolicyOutput:
        """Search from observations ``[B, ...]``, with noise in the priors or without, and choose actions."""
        options = vars(self) if noise else {**vars(self), "dirichlet_fraction": 0.0}
        root = network.look(observations)
        return muzero_policy(
            root, network.imagine, rng, invalid_actions=invalid_actions, temperature=temperature, **options
        )


@dataclass(frozen=True)
class GumbelOptions(Search):
    """Gumbel MuZero's search; see `gradtricks.agents.muzero.gumbel.gumbel_muzero_policy`.

    Attributes:
        considered_actions: How many the root considers, at most.
    """

    considered_actions: int = 16

    def __post_init__(self) -> None:
        """Refuse what can't be; the search checks the rest."""
        super().__post_init__()
        check_integer("considered_actions", self.considered_actions, low=1)

    def choose(
        self,
        network: SearchNetwork,
        observations: Array,
        rng: np.random.Generator,
        *,
        invalid_actions: NDArray[np.bool_] | None = None,
        temperature: float = 0.0,
        noise: bool = False,
    ) -> PolicyOutput:
        """Search from observations ``[B, ...]``, with Gumbel noise or without, and choose actions."""
        root = network.look(observations)
        return gumbel_muzero_policy(
            root,
            network.imagine,
            rng,
            invalid_actions=invalid_actions,
            gumbel_scale=float(noise),
            **vars(self),
        )
