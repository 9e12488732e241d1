"""Gumbel MuZero's way from the roots to the leaves, compiled by Numba."""

from typing import Any

import numba
import numpy as np

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")

_UNVISITED = -1
_VALUE_SCALE, _FIRST_VISITS = 0.1, 50.0  # how much Q-values, scaled to [0, 1], count beside the logits


@_compiled
def select(tree: Any, schedules: Any, likely: Any, completed: Any, leaves: Any, actions: Any) -> None:
    """Walk from each root to an edge that has no node yet.

    Args:
        tree: A `gradtricks.agents.muzero.trees.Tree`, of B roots.
        schedules: ``[B, simulations]``, from `gradtricks.agents.muzero.gumbel.schedule_visits`.
        likely: ``[B, A]``, logits of the root plus noise; minus infinity for what mustn't be taken.
        completed: ``[A]``, is overwritten.
        leaves: ``[B]``, becomes the node where the edge starts.
        actions: ``[B]``, becomes the action of the edge.
    """
    for root in range(len(leaves)):
        simulation = tree.node_visits[root, 0] - 1
        _complete(tree, root, 0, completed)
        action = _take_considered(tree, root, schedules[root, simulation], likely[root], completed)
        node, child = 0, tree.children_index[root, 0, action]
        while child != _UNVISITED:
            node = child
            _complete(tree, root, node, completed)
            action = _follow_policy(tree, root, node, completed)
            child = tree.children_index[root, node, action]
        leaves[root], actions[root] = node, action


@_compiled
def complete_roots(tree: Any, completed: Any) -> None:
    """Write the scaled Q-values of each root into ``completed`` ``[B, A]``, those of untried actions too."""
    for root in range(len(completed)):
        _complete(tree, root, 0, completed[root])


@_compiled
def _complete(tree: Any, root: Any, node: Any, completed: Any) -> None:
    """Write a node's Q-values into ``completed`` ``[A]``, scaled so that they can be added to logits.

    An action that wasn't tried gets the node's value: the network's, mixed with the mean Q-value of the
    actions that were tried, weighted by the prior.
    """
    total, most, weights, weighted = 0, 0, 0.0, 0.0
    for action in range(len(completed)):
        visits = tree.children_visits[root, node, action]
        if visits > 0:
            prior = max(tree.children_prior_probs[root, node, action], np.finfo(np.float64).tiny)
            total, most = total + visits, max(most, visits)
            weights, weighted = weights + prior, weighted + prior * tree.qvalues[root, node, action]
    value = tree.raw_values[root, node]
    if total > 0:
        value = (value + total * weighted / weights) / (total + 1)
    for action in range(len(completed)):
        tried = tree.children_visits[root, node, action] > 0
        completed[action] = tree.qvalues[root, node, action] if tried else value
    low, high = completed.min(), completed.max()
    scale = (_FIRST_VISITS + most) * _VALUE_SCALE / max(high - low, 1e-8)
    for action in range(len(completed)):
        completed[action] = (completed[action] - low) * scale


@_compiled
def _take_considered(tree: Any, root: Any, considered_visits: Any, likely: Any, completed: Any) -> Any:
    best_action, best_score = -1, -np.inf
    for action in range(len(completed)):
        if likely[action] == -np.inf or tree.children_visits[root, 0, action] != considered_visits:
            continue
        score = likely[action] + completed[action]
        if best_action < 0 or score > best_score:  # NaN must not leave it without an action
            best_action, best_score = action, score
    return best_action


@_compiled
def _follow_policy(tree: Any, root: Any, node: Any, completed: Any) -> Any:
    largest, total, visits = completed.max(), 0.0, 0
    for action in range(len(completed)):
        completed[action] = tree.children_prior_probs[root, node, action] * np.exp(
            completed[action] - largest
        )
        total += completed[action]
        visits += tree.children_visits[root, node, action]
    best_action, best_score = -1, -np.inf
    for action in range(len(completed)):
        score = completed[action] / total - tree.children_visits[root, node, action] / (1 + visits)
        if best_action < 0 or score > best_score:  # NaN must not leave it without an action
            best_action, best_score = action, score
    return best_action
