"""Write mctx_trees.json: searches by mctx in small models, for agents/test_search.py.

Run in an environment of its own, with jax and mctx and without this project, from any folder:

    python make_mctx_trees.py [muzero_qtransform_tree.json]

The file that may be given is mctx's own test data, of https://github.com/google-deepmind/mctx, in
mctx/_src/tests/test_data. Without it what stands in mctx_trees.json of it is kept.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

OUTPUT = Path(__file__).with_name("mctx_trees.json")
NOTICE = (
    "'published' is taken, rearranged, from mctx/_src/tests/test_data/muzero_qtransform_tree.json of "
    "https://github.com/google-deepmind/mctx. Copyright 2021 DeepMind Technologies Limited. "
    "Licensed under the Apache License, Version 2.0. 'generated' and 'gumbel' are of make_mctx_trees.py."
)
ROOTS, STATES = 4, 24
TWO_PLAYERS = {"discount": 1.0, "two_players": True}
CASES = [  # actions, and what our search takes beside a model
    (2, {"num_simulations": 32, "discount": 0.9, "min_value": -6.0, "max_value": 6.0}),
    (3, {"num_simulations": 60, **TWO_PLAYERS, "min_value": -31.0, "max_value": 31.0}),
    (5, {"num_simulations": 40, "discount": 0.8, "min_value": -3.5, "max_value": 3.5}),
    (2, {"num_simulations": 60, "discount": 0.997, "qtransform": "by_parent_and_siblings"}),
    (4, {"num_simulations": 50, **TWO_PLAYERS, "qtransform": "by_parent_and_siblings"}),
]
GUMBEL_CASES = [  # likewise, for Gumbel MuZero's policy
    (2, {"num_simulations": 2, "discount": 0.9, "considered_actions": 16}),
    (5, {"num_simulations": 16, **TWO_PLAYERS, "considered_actions": 4}),
    (9, {"num_simulations": 50, **TWO_PLAYERS, "considered_actions": 16}),
    (6, {"num_simulations": 23, "discount": 0.997, "considered_actions": 3}),
    (4, {"num_simulations": 8, "discount": 1.0, "considered_actions": 1}),
]


def make_model(seed, actions):
    """Draw a model with few states; its numbers are exact in float32."""
    rng = np.random.default_rng(seed)
    edges = (STATES, actions)
    invalid = np.zeros((ROOTS, actions), bool)
    invalid[1, 0] = invalid[2, 1:] = True
    return {
        "value": (rng.integers(-256, 257, STATES) / 256).tolist(),
        "reward": (rng.integers(-128, 129, edges) / 256).tolist(),
        "prior_logits": (rng.integers(-512, 513, edges) / 256).tolist(),
        "next_state": rng.integers(0, STATES, edges).tolist(),
        "root": rng.integers(0, STATES, ROOTS).tolist(),
        "invalid_actions": invalid.tolist(),
    }


def generate(seed, actions, options):
    """Return a model, the options, and what mctx finds in float64, so that rounding decides nothing."""
    import functools

    import jax
    import mctx

    jax.config.update("jax_enable_x64", True)
    model = make_model(seed, actions)
    given = arguments(model, options)
    if considered := options.get("considered_actions"):
        output = mctx.gumbel_muzero_policy(*given, max_num_considered_actions=considered)
        policy = {"gumbel": output.search_tree.extra_data.root_gumbel.tolist()}
        policy |= {"action": output.action.tolist(), "action_weights": output.action_weights.tolist()}
    else:
        bounds = {name: options[name] for name in ("min_value", "max_value") if name in options}
        qtransform = getattr(mctx, f"qtransform_{options.get('qtransform', 'by_min_max')}")
        qtransform = functools.partial(qtransform, **bounds)
        output, policy = mctx.muzero_policy(*given, qtransform=qtransform, dirichlet_fraction=0.0), {}
    tree, summary = output.search_tree, output.search_tree.summary()
    found = {
        "parents": tree.parents.tolist(),
        "action_from_parent": tree.action_from_parent.tolist(),
        "visit_counts": summary.visit_counts.astype(int).tolist(),
        "value": np.round(summary.value, 12).tolist(),
        "qvalues": np.round(summary.qvalues, 12).tolist(),
    }
    return {"options": options, "model": model, "tree": found, **policy}


def arguments(model, options):
    """Return what both of mctx's policies take first."""
    import jax
    import jax.numpy as jnp
    import mctx

    tables = {name: jnp.array(x) for name, x in model.items()}
    discount = -options["discount"] if options.get("two_players") else options["discount"]

    def predict(states):
        return {name: tables[name][states] for name in ("prior_logits", "value")}

    def recurrent_fn(params, rng_key, action, state):
        reward, following = (tables[name][state, action] for name in ("reward", "next_state"))
        discounts = jnp.full_like(reward, discount)
        return mctx.RecurrentFnOutput(reward=reward, discount=discounts, **predict(following)), following

    root = mctx.RootFnOutput(embedding=tables["root"], **predict(tables["root"]))
    invalid = tables["invalid_actions"]
    return (), jax.random.PRNGKey(0), root, recurrent_fn, options["num_simulations"], invalid


def rearrange(published):
    """Turn the nested nodes of mctx's file into one list, in the order of their evaluation."""
    nodes = {}

    def visit(node, parent):
        index = node["evaluation_index"]
        nodes[index] = {
            "parent": parent,
            "action": node.get("action", -1),
            "reward": node.get("reward", 0.0),
            "raw_value": node["raw_value_view"],
            "visits": node["visit"],
            "value": node["value_view"],
            "prior_probs": [child["prior"] for child in node["child_stats"]],
        }
        for child in node["child_stats"]:
            if "evaluation_index" in child:
                visit(child, index)

    visit(published["tree"], -1)
    qtransform = published["algorithm_config"]["qtransform"].removeprefix("qtransform_")
    options = {"discount": published["env_config"]["discount"], "qtransform": qtransform}
    return {"options": options, "nodes": [nodes[index] for index in range(len(nodes))]}


def main():
    """Write the file."""
    if len(sys.argv) > 1:
        published = rearrange(json.loads(Path(sys.argv[1]).read_text()))
    else:
        published = json.loads(OUTPUT.read_text())["published"]
    generated = [generate(seed, *case) for seed, case in enumerate(CASES)]
    gumbel = [generate(seed, *case) for seed, case in enumerate(GUMBEL_CASES)]
    versions = {name: version(name) for name in ("jax", "mctx")}
    content = {"notice": NOTICE, "versions": versions, "published": published, "generated": generated}
    content["gumbel"] = gumbel
    OUTPUT.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
