"""Search trees in a learned model: many roots at once, one network call for each simulation.

The names are those of mctx, so that a reader of one finds his way in the other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from gradtricks._core.checks import check_integer, check_number, check_shape
from gradtricks.agents.training import NotFiniteError

Array = NDArray[np.floating]


class RootFnOutput(NamedTuple):
    """Predictions for the observations from which the search starts.

    Attributes:
        prior_logits: ``[B, A]``.
        value: ``[B]``.
        embedding: ``[B, ...]``, the hidden states.
    """

    prior_logits: Array
    value: Array
    embedding: NDArray[Any]


class RecurrentFnOutput(NamedTuple):
    """Predictions for one imagined step; any tuple in this order will do.

    Attributes:
        value: ``[B]``, of the next states, for the player whose turn it then is.
        reward: ``[B]``, of the step, for the player who took it.
        prior_logits: ``[B, A]``.
        embedding: ``[B, ...]``, the next states.
    """

    value: Array
    reward: Array
    prior_logits: Array
    embedding: NDArray[Any]


RecurrentFn = Callable[[NDArray[Any], NDArray[np.int64]], tuple[Any, Any, Any, Any]]


class Tree(NamedTuple):
    """The search trees of B roots. Node 0 is the root, node n is that of simulation n.

    Attributes:
        node_visits: ``[B, N]``; a node's own evaluation is one visit, that of the root too.
        node_values: ``[B, N]``, mean over the visits.
        raw_values: ``[B, N]``, what the network said when the node was evaluated.
        rewards: ``[B, N]``, of the step into the node; `parents` and `action_from_parent` say which.
        children_index: ``[B, N, A]``, -1 where there is no node.
        children_prior_probs: ``[B, N, A]``; `children_visits` has the same shape.
        qvalues: ``[B, N, A]``, reward plus discounted value of the child; zero where there is no node.
        min_values: ``[B]``, the smallest Q-value that the tree has held; `max_values` has the largest.
    """

    node_visits: NDArray[np.int32]
    node_values: NDArray[np.float64]
    raw_values: NDArray[np.float64]
    rewards: NDArray[np.float64]
    parents: NDArray[np.int32]
    action_from_parent: NDArray[np.int32]
    children_index: NDArray[np.int32]
    children_prior_probs: NDArray[np.float64]
    children_visits: NDArray[np.int32]
    qvalues: NDArray[np.float64]
    min_values: NDArray[np.float64]
    max_values: NDArray[np.float64]


class PolicyOutput(NamedTuple):
    """Actions ``[B]``, a better policy ``[B, A]``, which is the network's target, and the trees."""

    action: NDArray[np.int64]
    action_weights: Array
    search_tree: Tree


def grow(
    root: RootFnOutput,
    recurrent_fn: RecurrentFn,
    select: Callable[[Tree, NDArray[np.int64], NDArray[np.int64]], None],
    *,
    num_simulations: int,
    invalid: NDArray[np.bool_],
    discount: float,
    two_players: bool,
    bounds: tuple[float, float] = (np.inf, -np.inf),
) -> Tree:
    """Grow a tree from each root by any rule; see `search`.

    Args:
        root: Where to start.
        recurrent_fn: See `search`.
        select: Called with the trees before each simulation; writes where the new node hangs: its parents
            ``[B]``, and the actions ``[B]`` that lead to it.
        num_simulations: Nodes to add to each root.
        invalid: ``[B, A]``, from `read_mask`.
        discount: Of future values.
        two_players: Players alternate and one's gain is the other's loss.
        bounds: The smallest and the largest Q-value, as far as they are known.

    Raises what `search` does.
    """
    from gradtricks.agents.muzero.searching_loops import expand  # a compiler is dear to import

    simulations = check_integer("num_simulations", num_simulations, low=1)
    discount = check_number("discount", discount, low=0, high=1) * (-1 if two_players else 1)
    tree, embeddings = _plant(root, simulations, invalid, bounds)
    rows = np.arange(len(invalid))
    leaves, actions = np.zeros_like(rows), np.zeros_like(rows)
    for node in range(1, simulations + 1):
        select(tree, leaves, actions)
        output = RecurrentFnOutput(*recurrent_fn(embeddings[rows, leaves], actions))
        if node == 1:
            _check_output(output, root)
        tree.raw_values[:, node] = tree.node_values[:, node] = output.value
        tree.rewards[:, node] = output.reward
        tree.children_prior_probs[:, node], embeddings[:, node] = output.prior_logits, output.embedding
        expand(tree, node, leaves, actions, discount)
    if not (np.isfinite(tree.children_prior_probs).all() and np.isfinite(tree.node_values[:, 0]).all()):
        raise NotFiniteError(
            "values, rewards and logits must be finite; got NaN or infinity from the network: "
            "has the training diverged?"
        )
    return tree


def read_mask(invalid_actions: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return the mask ``[B, A]`` of what mustn't be taken at the roots; ValueError where nothing may."""
    check_shape("prior_logits", shape, (None, None), "[B, A]")
    if invalid_actions is None:
        return np.zeros(shape, bool)
    invalid = np.ascontiguousarray(invalid_actions, bool)
    check_shape("invalid_actions", invalid.shape, shape, "prior_logits")
    if blocked := np.flatnonzero(invalid.all(axis=-1)).tolist():
        raise ValueError(
            f"each root must have a valid action; got none for roots {blocked}: leave finished games out"
        )
    return invalid


def _plant(
    root: RootFnOutput, simulations: int, invalid: NDArray[np.bool_], bounds: tuple[float, float]
) -> tuple[Tree, NDArray[Any]]:
    roots, actions = invalid.shape
    check_shape("value", np.shape(root.value), (roots,), "[B]")
    nodes, edges = (roots, simulations + 1), (roots, simulations + 1, actions)
    embedding = np.asarray(root.embedding)
    check_shape("embedding", embedding.shape[:1], (roots,), "[B, ...] without the rest")
    tree = Tree(
        node_visits=np.zeros(nodes, np.int32),
        node_values=np.zeros(nodes),
        raw_values=np.zeros(nodes),
        rewards=np.zeros(nodes),
        parents=np.zeros(nodes, np.int32),
        action_from_parent=np.zeros(nodes, np.int32),
        children_index=np.full(edges, -1, np.int32),
        children_prior_probs=np.zeros(edges),
        children_visits=np.zeros(edges, np.int32),
        qvalues=np.zeros(edges),
        min_values=np.full(roots, bounds[0]),
        max_values=np.full(roots, bounds[1]),
    )
    tree.node_visits[:, 0] = 1
    tree.raw_values[:, 0] = tree.node_values[:, 0] = root.value
    tree.children_prior_probs[:, 0] = softmax(np.where(invalid, -np.inf, root.prior_logits), axis=-1)
    embeddings = np.empty((*nodes, *embedding.shape[1:]), embedding.dtype)
    embeddings[:, 0] = embedding
    return tree, embeddings


def _check_output(output: RecurrentFnOutput, root: RootFnOutput) -> None:
    names = ("value", "prior_logits", "embedding")
    shapes = {name: np.shape(getattr(root, name)) for name in names}
    for name, shape in {**shapes, "reward": shapes["value"]}.items():
        check_shape(f"recurrent_fn's {name}", np.shape(getattr(output, name)), shape, "the root's")
