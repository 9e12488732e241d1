"""MuZero's tree search in a learned model, which follows the prior and the values found (PUCT).

The names are those of mctx, so that a reader of one finds his way in the other.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from gradtricks._core.checks import check_choice, check_integer, check_number
from gradtricks.agents.muzero.trees import PolicyOutput, RecurrentFn, RootFnOutput, Tree, grow, read_mask

Array = NDArray[np.floating]

QTRANSFORMS = ("by_min_max", "by_parent_and_siblings")


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

    The policy's target are the shares of the visits.

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
    invalid = read_mask(invalid_actions, np.shape(root.prior_logits))
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
    from gradtricks.agents.muzero.searching_loops import select  # a compiler is dear to import

    check_choice("qtransform", qtransform, QTRANSFORMS)
    simulations = check_integer("num_simulations", num_simulations, low=1)
    exploration = _exploration(simulations, pb_c_init, pb_c_base)
    invalid = read_mask(invalid_actions, np.shape(root.prior_logits))
    by_siblings = qtransform == "by_parent_and_siblings"

    def walk(tree: Tree, leaves: NDArray[np.int64], actions: NDArray[np.int64]) -> None:
        select(tree, invalid, exploration, by_siblings, leaves, actions)

    return grow(
        root,
        recurrent_fn,
        walk,
        num_simulations=simulations,
        invalid=invalid,
        discount=discount,
        two_players=two_players,
        bounds=_read_bounds(min_value, max_value),
    )


def _exploration(simulations: int, pb_c_init: float, pb_c_base: float) -> Array:
    pb_c_init = check_number("pb_c_init", pb_c_init, low=0)
    pb_c_base = check_number("pb_c_base", pb_c_base, low=1)
    visits = np.arange(simulations + 2)
    weights: Array = np.sqrt(visits) * (pb_c_init + np.log((visits + pb_c_base + 1) / pb_c_base))
    return weights


def _read_bounds(min_value: float | None, max_value: float | None) -> tuple[float, float]:
    low = np.inf if min_value is None else check_number("min_value", min_value)
    high = -np.inf if max_value is None else check_number("max_value", max_value)
    if min_value is not None and max_value is not None and low >= high:
        raise ValueError(f"min_value must be less than max_value; got {low} and {high}")
    return low, high


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
