from .boards import RULES, BoardGames
from .cartpole import OBSERVATION_SCALE, OBSERVATION_SIZE, CartPoleGames, collect_episodes
from .deciding import GumbelOptions, SearchOptions
from .frozen import FrozenAgent
from .linear import play_linearly, search_linear_policy
from .loop import History, NotFiniteError, Options, train
from .network import SearchNetwork, draw_weights
from .players import find_lost_ends, look_ahead, meet
from .replay import ReplayBuffer, value_targets
from .scales import CORNERS, LABELS, LOOKS, choose, learning_curve
from .searching import search
from .selfplay import play_out, play_to_the_end
from .supports import Support, transform_value
from .trees import RootFnOutput

__all__ = [
    "CORNERS",
    "LABELS",
    "LOOKS",
    "OBSERVATION_SCALE",
    "OBSERVATION_SIZE",
    "RULES",
    "BoardGames",
    "CartPoleGames",
    "FrozenAgent",
    "GumbelOptions",
    "History",
    "NotFiniteError",
    "Options",
    "ReplayBuffer",
    "RootFnOutput",
    "SearchNetwork",
    "SearchOptions",
    "Support",
    "choose",
    "collect_episodes",
    "draw_weights",
    "find_lost_ends",
    "learning_curve",
    "look_ahead",
    "meet",
    "play_linearly",
    "play_out",
    "play_to_the_end",
    "search",
    "search_linear_policy",
    "train",
    "transform_value",
    "value_targets",
]
