"""MuZero's tree search in a learned model: many roots at once, one network call for each simulation.

The names are those of mctx, so that a reader of one finds his way in the other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from gradtricks._core.checks import check_choice, check_integer, check_number, check_shape
from gradtricks.agents.training import NotFiniteError

Array = NDArray[np.floating]

QTRANSFORMS = ("by_min_max", "by_parent_and_siblings")


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
        rewards: ``[B, N]``, of the step into the node; `parents` and `action_from_parent` say which.
        children_index: ``[B, N, A]``, -1 where there is no node.
        children_prior_probs: ``[B, N, A]``; `children_visits` has the same shape.
        qvalues: ``[B, N, A]``, reward plus discounted value of the child; zero where there is no node.
        min_values: ``[B]``, the smallest Q-value that the tree has held; `max_values` has the largest.
    """

    node_visits: NDArray[np.int32]
    node_values: NDArray[np.float64]
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
    """Actions ``[B]``, shares of the visits ``[B, A]``, which are the policy's targets, and the trees."""

    action: NDArray[np.int64]
    action_weights: Array
    search_tree: Tree


def muzero_policy(
    root: RootFnOutput,
    recurrent_fn: RecurrentFn,
    rng: np.random.Generator,
    *,
    invalid_actions: ArrayLike | None = None,
    dirichlet_fraction: float = 0.25,
    dirichlet_alpha: float = 0.3,
    temperature: float = 1.0,
    **options: Any,
) -> PolicyOutput:
    """Search with noise at the roots, and draw an action from each root's visit counts.

    Args:
        root: Where to start, as for `search`.
        recurrent_fn: See `search`, as for the rest that isn't named here.
        rng: Draws the noise and the actions.
        invalid_actions: See `search`.
        dirichlet_fraction: Share of the noise in the priors of the root; 0 is none.
        dirichlet_alpha: Concentration of the noise, positive.
        temperature: Draws by ``visit_counts ** (1 / temperature)``; 0 takes the most visited action, the
            first of equals.
        **options: See `search`.

    Raises what `search` does.
    """
    fraction = check_number("dirichlet_fraction", dirichlet_fraction, low=0, high=1)
    alpha = check_number("dirichlet_alpha", dirichlet_alpha, low=1e-3)
    temperature = check_number("temperature", temperature, low=0)
    invalid = _read_mask(invalid_actions, np.shape(root.prior_logits))
    if fraction > 0:
        noisy = _add_dirichlet_noise(np.asarray(root.prior_logits, np.float64), invalid, fraction, alpha, rng)
        root = root._replace(prior_logits=noisy)
    tree = search(root, recurrent_fn, invalid_actions=invalid, **options)
    visits = tree.children_visits[:, 0]
    visit_probs = visits / visits.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):  # both give minus infinity, which is never drawn
        logits = np.log(visit_probs)
        if temperature > 0:
            best = logits.max(axis=-1, keepdims=True)
            logits = (logits - best) / temperature + rng.gumbel(size=logits.shape)
    return PolicyOutput(logits.argmax(axis=-1), visit_probs, tree)


def search(
    root: RootFnOutput,
    recurrent_fn: RecurrentFn,
    *,
    num_simulations: int,
    invalid_actions: ArrayLike | None = None,
    discount: float = 0.997,
    two_players: bool = False,
    qtransform: str = "by_min_max",
    min_value: float | None = None,
    max_value: float | None = None,
    pb_c_init: float = 1.25,
    pb_c_base: float = 19652,
) -> Tree:
    """Grow a tree from each root, one node for each simulation. Nothing here is random.

    The rules are those of MuZero's pseudocode, with four exceptions. The extremes by which Q-values are
    normalised are those of Q-values, as in the paper's equation 5, and not of nodes. While these are equal,
    a Q-value counts as the smallest. The root's own evaluation is a visit, as that of every other node is, so
    that the first simulation follows the prior. Among equal scores the first action is taken.

    Args:
        root: Where to start.
        recurrent_fn: Called once for each simulation, with states ``[B, ...]`` and actions ``[B]`` of
            ``int64``, which it must neither change nor keep; returns what `RecurrentFnOutput` says.
        num_simulations: Nodes to add to each root.
        invalid_actions: ``[B, A]``, True for actions that mustn't be taken at the root. Deeper in the tree
            everything is allowed, as MuZero learns the rules.
        discount: Of future values.
        two_players: Players alternate and one's gain is the other's loss: what a node is worth to its player
            changes sign for the parent's.
        qtransform: ``"by_min_max"`` normalises by the extremes of the whole tree, as the paper does.
            ``"by_parent_and_siblings"`` takes those of the node's value and of its own Q-values, which is
            mctx's default.
        min_value: The smallest Q-value, where it is known; smaller ones that turn up replace it.
        max_value: The largest, likewise.
        pb_c_init: Weight of the prior.
        pb_c_base: Visits at which this weight begins to grow.

    Raises:
        ValueError: A shape or an option is wrong, or a root has no valid action.
        NotFiniteError: The network's values, rewards or logits are NaN or infinite.
    """
    from gradtricks.agents.muzero.searching_loops import expand, select  # a compiler is dear to import

    simulations = check_integer("num_simulations", num_simulations, low=1)
    check_choice("qtransform", qtransform, QTRANSFORMS)
    discount = check_number("discount", discount, low=0, high=1) * (-1 if two_players else 1)
    exploration = _exploration(simulations, pb_c_init, pb_c_base)
    invalid = _read_mask(invalid_actions, np.shape(root.prior_logits))
    tree, embeddings = _plant(root, simulations, invalid, _read_bounds(min_value, max_value))
    rows = np.arange(len(invalid))
    leaves, actions = np.zeros_like(rows), np.zeros_like(rows)
    by_siblings = qtransform == "by_parent_and_siblings"
    for node in range(1, simulations + 1):
        select(tree, invalid, exploration, by_siblings, leaves, actions)
        output = RecurrentFnOutput(*recurrent_fn(embeddings[rows, leaves], actions))
        if node == 1:
            _check_output(output, root)
        tree.node_values[:, node], tree.rewards[:, node] = output.value, output.reward
        tree.children_prior_probs[:, node], embeddings[:, node] = output.prior_logits, output.embedding
        expand(tree, node, leaves, actions, discount)
    if not (np.isfinite(tree.children_prior_probs).all() and np.isfinite(tree.node_values[:, 0]).all()):
        raise NotFiniteError(
            "values, rewards and logits must be finite; got NaN or infinity from the network: "
            "has the training diverged?"
        )
    return tree


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
    tree.node_visits[:, 0], tree.node_values[:, 0] = 1, root.value
    tree.children_prior_probs[:, 0] = softmax(np.where(invalid, -np.inf, root.prior_logits), axis=-1)
    embeddings = np.empty((*nodes, *embedding.shape[1:]), embedding.dtype)
    embeddings[:, 0] = embedding
    return tree, embeddings


def _exploration(simulations: int, pb_c_init: float, pb_c_base: float) -> Array:
    pb_c_init = check_number("pb_c_init", pb_c_init, low=0)
    pb_c_base = check_number("pb_c_base", pb_c_base, low=1)
    visits = np.arange(simulations + 2)
    weights: Array = np.sqrt(visits) * (pb_c_init + np.log((visits + pb_c_base + 1) / pb_c_base))
    return weights


def _read_mask(invalid_actions: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
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


def _read_bounds(min_value: float | None, max_value: float | None) -> tuple[float, float]:
    low = np.inf if min_value is None else check_number("min_value", min_value)
    high = -np.inf if max_value is None else check_number("max_value", max_value)
    if min_value is not None and max_value is not None and low >= high:
        raise ValueError(f"min_value must be less than max_value; got {low} and {high}")
    return low, high


def _check_output(output: RecurrentFnOutput, root: RootFnOutput) -> None:
    names = ("value", "prior_logits", "embedding")
    shapes = {name: np.shape(getattr(root, name)) for name in names}
    for name, shape in {**shapes, "reward": shapes["value"]}.items():
        check_shape(f"recurrent_fn's {name}", np.shape(getattr(output, name)), shape, "the root's")


def _add_dirichlet_noise(
    logits: Array, invalid: NDArray[np.bool_], fraction: float, alpha: float, rng: np.random.Generator
) -> Array:
    # Gamma variates of a small concentration may all underflow; then the noise is even.
    gammas = rng.standard_gamma(alpha, logits.shape) + np.finfo(np.float64).tiny
    noise = np.where(invalid, 0, gammas)
    noise /= noise.sum(axis=-1, keepdims=True)
    probs = (1 - fraction) * softmax(np.where(invalid, -np.inf, logits), axis=-1) + fraction * noise
    with np.errstate(divide="ignore"):
        noisy: Array = np.log(probs)
    return noisy
