"""The search space of `graphmill tune`: one table of recipes, and the candidates that are drawn from it.

The first value of a key is what docs/how_to/choosing.md and docs/how_to/training.md advise.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from graphmill.config import Config
from graphmill.model import comparators
from graphmill.run.seeds import derived

Keys = Mapping[str, Any]
"""Values by key; all_negs is that of every relation, dimension a multiple of the present one."""

MOST_ENTITIES = 50_000  # of a type, for 1-vs-all without a sample
_SHARE_OF_FIRST = 0.5  # a candidate keeps the first value of a key so often

_SHARED: dict[str, tuple[Any, ...]] = {
    "dimension": (1.0, 2.0, 0.5),
    "relation_lr": (None, 0.05, 0.2),
    "train.lr_schedule": ("linear",),
}
RECIPES: dict[str, dict[str, tuple[Any, ...]]] = {
    "all entities": {
        "all_negs": (True,),
        "lr": (0.5, 0.2, 1.0, 0.1),
        "regularization_coef": (0.05,),  # and shares of it
        "batch_size": (500, 250, 1000),
        "train.candidates": (4000, 8000, 2000),
        "train.relation_init": ("small", "random"),
        **_SHARED,
    },
    "drawn": {
        "all_negs": (False,),
        "num_uniform_negs": (1000, 300),
        "lr": (0.1, 0.2, 0.5, 0.05),
        "regularization_coef": (0.03, 0.1, 0.01, 0.0),
        "batch_size": (500, 250, 1000, 2000),
        **_SHARED,
    },
}
_OF_ONE_RELATION: dict[str, tuple[Any, ...]] = {
    "lr": (0.05, 0.1, 0.2, 0.5),
    "regularization_coef": (0.2,),
    "batch_size": (64, 16, 256),
}
_WITHOUT_OPERATOR: dict[str, tuple[Any, ...]] = {
    "train.popularity": (True, False),
    "regularization_coef": (0.5,),
}
_SHARES = (1.0, 0.4, 2.0, 0.2, 4.0)
_MARGINS = (0.1, 0.05, 0.2, 0.5)


def recipes(config: Config, largest_type: int) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Select the recipes, and of them the keys, that fit a model; the largest type has so many entities."""
    fitting = {name: dict(recipe) for name, recipe in RECIPES.items()}
    asked = fitting["all entities"]
    if len(config.relations) == 1 and not config.dynamic_relations:
        asked.update(_OF_ONE_RELATION)
        if config.relations[0].operator == "none" and config.comparator == "dot" and not config.bias:
            asked.update(_WITHOUT_OPERATOR)
    # The default of a configuration with all_negs follows the graph.
    follows = config.regularization_coef > 0 and all(relation.all_negs for relation in config.relations)
    middle = config.regularization_coef if follows else asked["regularization_coef"][0]
    asked["regularization_coef"] = tuple(float(f"{middle * share:.3g}") for share in _SHARES)
    can_sample = comparators.is_dot(config.comparator, config.bias)
    if not can_sample:
        asked["train.candidates"] = (None,)
    if config.loss_fn != "softmax" or (largest_type > MOST_ENTITIES and not can_sample):
        del fitting["all entities"]
    fitting["drawn"] |= {"train.candidates": (None,), "train.popularity": (False,)}
    for recipe in fitting.values():
        if config.comparator != "dot" or config.loss_fn != "softmax":
            del recipe["regularization_coef"]
        if all(relation.operator == "none" for relation in config.relations):
            recipe.pop("train.relation_init", None)
            del recipe["relation_lr"]
        if config.loss_fn == "ranking":
            recipe["margin"] = _MARGINS
    return fitting


def candidates(config: Config, largest_type: int, most: int) -> list[dict[str, Any]]:
    """List different candidates, best guesses first, as changes of a configuration by `key.path`.

    The first one changes nothing. The others are the recipes, then random neighbours of each in turn.
    """
    chosen: list[dict[str, Any]] = [{}]
    for keys in _endless(recipes(config, largest_type), config.seed):
        if (changes := _changes(config, keys)) not in chosen:
            chosen.append(changes)
        if len(chosen) == most:
            break
    return chosen


def _endless(chosen: Mapping[str, Mapping[str, tuple[Any, ...]]], seed: int) -> Iterator[Keys]:
    for recipe in chosen.values():
        yield {key: values[0] for key, values in recipe.items()}
    draw = random.Random(derived(seed, "tune"))
    while True:
        for recipe in chosen.values():
            yield {
                key: values[0] if draw.random() < _SHARE_OF_FIRST else draw.choice(values)
                for key, values in recipe.items()
            }


def _changes(config: Config, keys: Keys) -> dict[str, Any]:
    wanted = dict(keys)
    wanted["dimension"] = max(2, int(config.dimension * wanted["dimension"]) // 2 * 2)
    all_negs = wanted.pop("all_negs")
    wanted |= {f"relations.{number}.all_negs": all_negs for number in range(len(config.relations))}
    now = config.model_dump(mode="json") | {"train": config.train.model_dump(mode="json")}
    return {path: value for path, value in wanted.items() if _at(now, path) != value}


def _at(content: Any, path: str) -> Any:
    for key in path.split("."):
        content = content[int(key)] if isinstance(content, list) else content[key]
    return content
