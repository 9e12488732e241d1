"""Tree search over many roots, compiled by Numba: from the roots to the leaves, and back with updates."""

from typing import Any

import numba
import numpy as np

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")

_UNVISITED = -1


@_compiled
def select(
    tree: Any, invalid_actions: Any, exploration: Any, by_siblings: Any, leaves: Any, actions: Any
) -> None:
    """Walk from each root to an edge that has no node yet.

    Args:
        tree: A `gradtricks.agents.muzero.trees.Tree`, of B roots.
        invalid_actions: ``[B, A]``, never taken at the root.
        exploration: ``[N + 1]``, weight of the prior at a node with so many visits.
        by_siblings: Compare a node's Q-values with one another, not with all of the tree.
        leaves: ``[B]``, becomes the node where the edge starts.
        actions: ``[B]``, becomes the action of the edge.
    """
    for root in range(len(leaves)):
        node, child = 0, 0
        while child != _UNVISITED:
            node = child
            weight = exploration[tree.node_visits[root, node]]
            low, high = tree.min_values[root], tree.max_values[root]
            if by_siblings:
                low, high = _find_bounds(tree, root, node)
            actions[root] = _best_action(tree, root, node, invalid_actions[root], weight, low, high)
            child = tree.children_index[root, node, actions[root]]
        leaves[root] = node


@_compiled
def expand(tree: Any, node: Any, leaves: Any, actions: Any, discount: Any) -> None:
    """Hang a node under each leaf, and carry its value up to the root.

    Args:
        tree: The trees; value, reward and logits of the node stand in it already.
        node: Number of the new node.
        leaves: ``[B]``, its parent.
        actions: ``[B]``, the action that leads to it.
        discount: Multiplies the value of a node as its parent sees it.
    """
    for root in range(len(leaves)):
        _softmax(tree.children_prior_probs[root, node])
        tree.node_visits[root, node] = 1
        tree.parents[root, node], tree.action_from_parent[root, node] = leaves[root], actions[root]
        tree.children_index[root, leaves[root], actions[root]] = node
        _back_up(tree, root, node, discount)


@_compiled
def _softmax(x: Any) -> None:
    largest, total = x.max(), 0.0
    for i in range(len(x)):
        x[i] = np.exp(x[i] - largest)
        total += x[i]
    for i in range(len(x)):
        x[i] /= total


@_compiled
def _best_action(tree: Any, root: Any, node: Any, invalid: Any, weight: Any, low: Any, high: Any) -> Any:
    best_action, best_score = -1, -np.inf
    scale = 1 / (high - low) if high > low else 0.0
    for action in range(len(invalid)):
        if node == 0 and invalid[action]:
            continue
        visits = tree.children_visits[root, node, action]
        score = weight * tree.children_prior_probs[root, node, action] / (visits + 1)
        if visits > 0 and scale > 0:
            score += (tree.qvalues[root, node, action] - low) * scale
        if best_action < 0 or score > best_score:  # NaN must not leave it without an action
            best_action, best_score = action, score
    return best_action


@_compiled
def _find_bounds(tree: Any, root: Any, node: Any) -> Any:
    low = high = tree.node_values[root, node]
    for action in range(tree.qvalues.shape[2]):
        if tree.children_visits[root, node, action] > 0:
            low = min(low, tree.qvalues[root, node, action])
            high = max(high, tree.qvalues[root, node, action])
    return low, high


@_compiled
def _back_up(tree: Any, root: Any, node: Any, discount: Any) -> None:
    value = tree.node_values[root, node]
    while node > 0:
        parent, action = tree.parents[root, node], tree.action_from_parent[root, node]
        reward, visits = tree.rewards[root, node], tree.node_visits[root, parent]
        qvalue = reward + discount * tree.node_values[root, node]
        tree.qvalues[root, parent, action] = qvalue
        tree.children_visits[root, parent, action] += 1
        tree.min_values[root] = min(tree.min_values[root], qvalue)
        tree.max_values[root] = max(tree.max_values[root], qvalue)
        value = reward + discount * value
        tree.node_values[root, parent] += (value - tree.node_values[root, parent]) / (visits + 1)
        tree.node_visits[root, parent] = visits + 1
        node = parent
