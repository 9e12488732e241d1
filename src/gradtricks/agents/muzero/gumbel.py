"""Gumbel MuZero's search, which improves on its policy with a handful of simulations.

The root draws a few actions without replacement and gives its simulations to an ever smaller half of them;
below it, actions are taken so that their visits follow the improved policy. Rules and constants are those of
Danihelka et al., "Policy improvement by planning with Gumbel" (2022), as mctx has them.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, softmax

from gradtricks._core.checks import check_integer, check_number
from gradtricks.agents.muzero.trees import PolicyOutput, RecurrentFn, RootFnOutput, Tree, grow, read_mask

_LOWEST = -1e9  # of an action that the prior excludes; one that isn't valid has less


def gumbel_muzero_policy(
    root: RootFnOutput,
    recurrent_fn: RecurrentFn,
    rng: np.random.Generator,
    *,
    num_simulations: int,
    invalid_actions: ArrayLike | None = None,
    discount: float = 0.997,
    two_players: bool = False,
    considered_actions: int = 16,
    gumbel_scale: float = 1.0,
) -> PolicyOutput:
    """Search by sequential halving, and take the best of the most visited actions.

    The policy's target is the softmax of the prior's logits plus the Q-values, where the value of an action
    that wasn't tried is that of the root, as network and search together see it.

    Args:
        root: Where to start, as for `gradtricks.agents.muzero.trees.grow`.
        recurrent_fn: Likewise, as for the rest that isn't named here.
        rng: Draws the Gumbel noise.
        num_simulations: Nodes to add to each root.
        invalid_actions: ``[B, A]``, True for actions that mustn't be taken at the root.
        discount: Of future values.
        two_players: Players alternate and one's gain is the other's loss.
        considered_actions: How many the root draws, at most.
        gumbel_scale: Multiplies the noise; 1 draws from the policy, 0 always takes its likeliest actions.

    Raises what `search` does.
    """
    from gradtricks.agents.muzero.gumbel_loops import complete_roots, select  # a compiler is dear to import

    simulations = check_integer("num_simulations", num_simulations, low=1)
    most = check_integer("considered_actions", considered_actions, low=1)
    scale = check_number("gumbel_scale", gumbel_scale, low=0)
    invalid = read_mask(invalid_actions, np.shape(root.prior_logits))
    with np.errstate(invalid="ignore"):  # what isn't finite is refused when the tree has grown
        logits = log_softmax(np.where(invalid, -np.inf, np.asarray(root.prior_logits, np.float64)), axis=-1)
        likely = np.maximum(logits + scale * rng.gumbel(size=logits.shape), _LOWEST)
        likely[invalid] = -np.inf
    schedules = np.stack(
        [schedule_visits(min(most, valid), simulations) for valid in (~invalid).sum(axis=-1)]
    )
    completed = np.zeros_like(logits)

    def walk(tree: Tree, leaves: NDArray[np.int64], actions: NDArray[np.int64]) -> None:
        select(tree, schedules, likely, completed[0], leaves, actions)

    tree = grow(
        root,
        recurrent_fn,
        walk,
        num_simulations=simulations,
        invalid=invalid,
        discount=discount,
        two_players=two_players,
    )
    complete_roots(tree, completed)
    visits = tree.children_visits[:, 0]
    most_visited = visits == visits.max(axis=-1, keepdims=True)
    action = np.where(most_visited, likely + completed, -np.inf).argmax(axis=-1)
    return PolicyOutput(action, softmax(logits + completed, axis=-1), tree)


def schedule_visits(considered: int, simulations: int) -> NDArray[np.int64]:
    """Say of each simulation how many visits an action must have had that it may take, ``[simulations]``.

    The considered actions are visited in turn, then the better half of them, and so on down to two.
    """
    rounds = max(1, math.ceil(math.log2(considered)))
    visits, schedule = np.zeros(considered, np.int64), np.zeros(0, np.int64)
    while len(schedule) < simulations:
        for _ in range(max(1, simulations // (rounds * considered))):
            schedule = np.concatenate([schedule, visits[:considered]])
            visits[:considered] += 1
        considered = max(min(2, considered), considered // 2)
    return schedule[:simulations]
