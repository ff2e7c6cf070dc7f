"""GraphMill's own defaults: values for keys that a YAML configuration leaves out.

PyTorch-BigGraph's defaults suit graphs of billions of edges; small graphs learn little with them. `.py`
configurations always have PBG's, and `defaults: pbg` asks for them.

Some values depend on the data. `etl` chooses the number of partitions of a type when it has counted ids. When
the edges are counted, `decided` chooses epochs, batches, and one of two recipes: queries that are compared
with all entities or a sample of them (1-vs-all), or, for large graphs, edges with drawn negatives. Sizes (up
to 1,000 edges) and epochs are powers of two, so that a graph that grows a little keeps them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from graphmill.config.yaml_text import shown

AUTO = "auto"
PBG = "pbg"
ENTITIES = "entities."
"""Before the name of a type: the key of its number of partitions, among the keys that were left out."""

# docs/how_to/choosing.md says what they are good for.
OWN: Mapping[str, Any] = {
    "dimension": 200,
    "global_emb": False,
    "comparator": "dot",
    "loss_fn": "softmax",
    "num_batch_negs": 0,
    "num_uniform_negs": 1000,
    "lr": 0.1,
    "regularization_coef": 0.03,
    "eval_fraction": 0.0,
    "bucket_order": "affinity",
    "num_epochs": 1,  # until it is `decided`, as batch_size
    "batch_size": 1000,
}
_BY_SIZE = ("batch_size", "num_epochs")
OWN_TRAIN: Mapping[str, Any] = {"optimizer": "adagrad", "lr_schedule": "linear"}

# The recipe of 1-vs-all: a key of every relation, keys of the top level and of the section `train`.
ALL_NEGS = "all_negs"
_CANDIDATES = "train.candidates"
_FIRST = "train.first_negatives"
_POPULARITY = "train.popularity"
ONE_VS_ALL: Mapping[str, Any] = {
    ALL_NEGS: True,
    _CANDIDATES: 4000,
    _FIRST: 1.0,
    "train.relation_init": "small",
    "half_precision": True,
    "lr": 0.5,
    "regularization_coef": 0.05,
}
# One relation says little of single edges: the model should learn what they have in common.
_ONE_VS_ALL_OF_ONE_RELATION: Mapping[str, Any] = {**ONE_VS_ALL, "lr": 0.05, "regularization_coef": 0.2}
# Where an element of its own says how popular an id is, the others may be regularized more.
RECOMMENDATIONS: Mapping[str, Any] = {
    **_ONE_VS_ALL_OF_ONE_RELATION,
    "regularization_coef": 0.5,
    _POPULARITY: True,
}
_LR_OF_DELTA = 0.2
"""Factor of that rate, which would move trained vectors too far when only added edges are trained."""
_DRAWN: Mapping[str, Any] = {
    ALL_NEGS: False,
    _CANDIDATES: None,
    _FIRST: 1 / 8,  # an epoch takes half of the time
    "train.relation_init": "random",
    _POPULARITY: False,
    "half_precision": True,
    "lr": OWN["lr"],
    "regularization_coef": OWN["regularization_coef"],
}
_DRAWN_WITH_OPERATORS: Mapping[str, Any] = {**_DRAWN, "lr": 0.14}
_COEF_OF_SPARSE = 0.1
_SPARSE_DEGREE = 10  # edges per entity, below which single edges are learned by heart
# Edges per entity, from which vectors are regularized less: more edges, less chance in them.
_USUAL_DEGREE = 19
_LEAST_SHARE = 1 / 4  # of the usual coefficient
_MOST_EDGES_OF_ONE_VS_ALL = 1 << 24  # beyond, drawn negatives: an epoch takes a third of the time
# Keys that mean drawn negatives, or that 1-vs-all does not know.
NUM_NEGS = ("num_batch_negs", "num_uniform_negs")
_OF_DRAWN_TRAIN = frozenset({"negative_power", "negative_sampler", "chunk_edges", "engine", "plugins"})

_TRAINED_EDGES = 1 << 22  # of all epochs together
_LEAST_EPOCHS = 4
_LONGER, _LONGER_OF_QUERIES = 3 / 2, 4 / 3  # epochs if negatives are few at first: better, in less time
_EPOCHS = 16
_EPOCHS_WITHOUT_OPERATORS = 8  # such a model has little to learn, and begins to learn single edges by heart
_FEW_TRAINED_EDGES = 1 << 17  # small graphs have more epochs, so that they get enough steps
_MOST_EPOCHS = 64
_STEPS = 512  # of an epoch
_BATCH = (64, 1000)  # at most one chunk, whose edges share their negatives
_QUERIES_OF_BATCH = (128, 512)
_QUERIES_OF_BATCH_OF_ONE_RELATION = (16, 512)  # where a query has many answers
_EPOCHS_OF_QUERIES = 1 << 13  # divided by the root of the number of edges
_EPOCHS_OF_QUERIES_OF_ONE_RELATION = 1 << 11
_DENSE_DEGREE = 8  # edges per entity, from which vectors that are regularized much have twice the epochs
_MOST_EDGES_OF_LONGER = 1 << 20  # of sparse graphs, which have twice the epochs, as far as that was tried

_MEMORY_SHARE = 1 / 2
_TABLES = 3  # a bucket has two partitions of a type in memory, while a third one is read or written
BYTES_PER_ELEMENT = 8  # a float32, and the optimizer's sum of its squares


def applied(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fill in what a mapping with PBG's names leaves out; what is of a wrong type stays as it is.

    Returns:
        the filled mapping, and the keys that were left out with their values: `auto`, where the data decide.
    """
    if given.get("defaults") == PBG:
        return dict(given), {}
    chosen = {key: value for key, value in OWN.items() if key not in given}
    if "loss_fn" in chosen and given.get("comparator", "dot") != "dot":
        chosen["loss_fn"] = "ranking"  # softmax needs scores that may become large
    if chosen.get("loss_fn", given.get("loss_fn")) != "softmax":
        chosen.pop("regularization_coef", None)
    filled = {"defaults": "graphmill", **given, **chosen}
    if isinstance(train := given.get("train", {}), Mapping):
        of_train = {key: value for key, value in OWN_TRAIN.items() if key not in train}
        filled["train"] = {**train, **of_train}
        chosen |= {f"train.{key}": value for key, value in of_train.items()}
    if isinstance(entities := given.get("entities"), Mapping):
        left_out = [name for name, entity in entities.items() if _is_uncut(entity)]
        ones = {name: {**(entities[name] or {}), "num_partitions": 1} for name in left_out}
        filled["entities"] = {**entities, **ones}
        chosen |= {f"{ENTITIES}{name}": AUTO for name in left_out}
    relations = given.get("relations")
    if isinstance(relations, list | tuple) and relations and all(isinstance(r, Mapping) for r in relations):
        operator = _operator(filled, relations)
        filled["relations"] = [{"operator": operator, **relation} for relation in relations]
        if not all("operator" in relation for relation in relations):
            chosen["operator"] = operator
        if _takes_one_vs_all(given, filled):
            _apply_one_vs_all(given, filled, chosen)
    return filled, chosen | {key: AUTO for key in _BY_SIZE if key in chosen}


def _takes_one_vs_all(given: Mapping[str, Any], filled: Mapping[str, Any]) -> bool:
    """Tell whether 1-vs-all can train a configuration, which does not ask for something else."""
    entities, train = given.get("entities"), given.get("train", {})
    if not isinstance(entities, Mapping) or not isinstance(train, Mapping):
        return False
    is_featurized = any(
        isinstance(entity, Mapping) and entity.get("featurized") for entity in entities.values()
    )
    return (
        (filled["comparator"], filled["loss_fn"]) == ("dot", "softmax")
        and not is_featurized
        and given.keys().isdisjoint(NUM_NEGS)
        and given.get("regularizer", "N3") == "N3"
        and not given.get("bias")
        and not given.get("num_gpus")  # whose kernels draw
        and not _OF_DRAWN_TRAIN & train.keys()
        and all(relation.get(ALL_NEGS, True) for relation in given["relations"])
    )


def _apply_one_vs_all(given: Mapping[str, Any], filled: dict[str, Any], chosen: dict[str, Any]) -> None:
    has_all_negs = any(ALL_NEGS in relation for relation in given["relations"])
    for key in NUM_NEGS:
        del chosen[key]  # without effect
    is_one = len(given["relations"]) == 1 and not given.get("dynamic_relations")
    is_free = filled["relations"][0]["operator"] == "none" and "popularity" not in given.get("train", {})
    for key, value in _recipe(is_one=is_one, with_popularity=is_free).items():
        section, _, name = key.rpartition(".")
        if key == ALL_NEGS:
            filled["relations"] = [{ALL_NEGS: value, **relation} for relation in filled["relations"]]
        elif key == _CANDIDATES and has_all_negs:
            continue  # all means all
        elif name in (given.get(section, {}) if section else given):
            continue
        elif section:
            filled[section] = {**filled[section], name: value}
        else:
            filled[name] = value
        if key != ALL_NEGS or not has_all_negs:
            chosen[key] = AUTO if not has_all_negs else value


def _recipe(*, is_one: bool, with_popularity: bool) -> Mapping[str, Any]:
    """Choose the recipe of 1-vs-all; `is_one`: of one relation, which is not dynamic."""
    if not is_one:
        return ONE_VS_ALL
    return RECOMMENDATIONS if with_popularity else _ONE_VS_ALL_OF_ONE_RELATION


def decided(
    chosen: Mapping[str, Any],
    num_entities: Mapping[str, Sequence[int]],
    num_edges: int,
    *,
    ends: Sequence[tuple[str, str]] = (),
    all_negs: bool = False,
    has_operators: bool = True,
    is_delta: bool = False,
) -> dict[str, Any]:
    """Choose the values that depend on the data.

    Args:
        chosen: The keys that were left out, with their values.
        num_entities: Entities of each partition of each type.
        num_edges: Edges to train on.
        ends: The types of both sides of each relation; none for dynamic relations.
        all_negs: Whether training compares queries with all entities, unless that is to be chosen.
        has_operators: Whether relations have operators, which need more epochs.
        is_delta: Whether training goes on from a checkpoint with added edges (`train.replay`).
    """
    recipe: Mapping[str, Any] = {}
    is_one, num_ids = len(ends) == 1, sum(map(sum, num_entities.values()))
    if ALL_NEGS in chosen:
        all_negs = num_edges <= _MOST_EDGES_OF_ONE_VS_ALL
        recipe = _DRAWN_WITH_OPERATORS if has_operators else _DRAWN
        if all_negs:
            recipe = _recipe(is_one=is_one, with_popularity=_POPULARITY in chosen)
        if recipe is ONE_VS_ALL:
            recipe = {**recipe, "regularization_coef": _regularization(num_edges / max(num_ids, 1))}
            is_ours = {_CANDIDATES, _FIRST, "num_epochs"} <= chosen.keys()
            if is_ours and num_ids >= 2 * recipe[_CANDIDATES] and not is_delta:  # fewer are not sampled
                recipe = {**recipe, _FIRST: _DRAWN[_FIRST]}
        if all_negs and is_delta:
            recipe = {**recipe, "lr": recipe["lr"] * _LR_OF_DELTA}
    if all_negs:
        of_entities = sum(sum(num_entities.get(name, ())) for both in ends for name in both)
        # The most that edges can have: two each, or one per relation, side and entity.
        num_queries = min(2 * num_edges, of_entities) if ends else 2 * num_edges
        takes_longer = num_edges < min(_SPARSE_DEGREE * num_ids, _MOST_EDGES_OF_LONGER) and not is_delta
        if is_one:
            takes_longer = _POPULARITY in chosen and num_edges >= _DENSE_DEGREE * num_ids
        num_epochs, batch_size = _sizes_of_queries(num_queries, num_edges, is_one=is_one)
        num_epochs = min(num_epochs * (2 if takes_longer else 1), _MOST_EPOCHS)
        num_epochs = int(num_epochs * (_LONGER_OF_QUERIES if recipe.get(_FIRST, 1) < 1 else 1))
    else:
        num_epochs, batch_size = _drawn_sizes(num_edges, has_operators=has_operators)
        num_epochs = int(num_epochs * (_LONGER if _FIRST in recipe else 1))
    by_size: dict[str, Any] = {
        **recipe,
        "num_epochs": num_epochs,
        "batch_size": batch_size,
        **{f"{ENTITIES}{name}": len(counts) for name, counts in num_entities.items()},
    }
    return {key: by_size.get(key, value) for key, value in chosen.items()}


def _regularization(degree: float) -> float:
    """Choose the coefficient of N3 for `degree` edges per entity."""
    if degree < _SPARSE_DEGREE:
        return _COEF_OF_SPARSE
    share = 2.0 ** round(1.5 * math.log2(min(1, _USUAL_DEGREE / degree)))
    return float(ONE_VS_ALL["regularization_coef"] * max(share, _LEAST_SHARE))


def _sizes_of_queries(num_queries: int, num_edges: int, *, is_one: bool) -> tuple[int, int]:
    """Choose epochs, and the queries of a batch; `is_one`: of one relation."""
    epochs, most, batch = _EPOCHS_OF_QUERIES, _MOST_EPOCHS, _QUERIES_OF_BATCH
    if is_one:
        epochs, most = _EPOCHS_OF_QUERIES_OF_ONE_RELATION, _EPOCHS_WITHOUT_OPERATORS
        batch = _QUERIES_OF_BATCH_OF_ONE_RELATION
    num_epochs = _within((_LEAST_EPOCHS, most), _power_of_two(epochs / max(num_edges, 1) ** 0.5))
    return num_epochs, _within(batch, _power_of_two(num_queries / _STEPS))


def _drawn_sizes(num_edges: int, *, has_operators: bool) -> tuple[int, int]:
    most = _EPOCHS if has_operators else _EPOCHS_WITHOUT_OPERATORS
    num_epochs = max(
        _within((_LEAST_EPOCHS, most), _power_of_two(_TRAINED_EDGES / max(num_edges, 1))),
        min(_power_of_two(_FEW_TRAINED_EDGES / max(num_edges, 1)), _MOST_EPOCHS),
    )
    return num_epochs, _within(_BATCH, _power_of_two(num_edges / _STEPS))


def decided_partitions(
    table_bytes: Mapping[str, int], memory_bytes: int, *, given: int, least: int, most: int
) -> dict[str, int]:
    """Choose the number of partitions of each type.

    One, if all tables fit in half of a worker's memory; else the large types are cut until the partitions of
    a bucket fit.

    Args:
        table_bytes: Memory of the embeddings and sums of each type.
        memory_bytes: Memory of the smallest worker.
        given: The number that the configuration gives to other types: types of a side must agree.
        least: Partitions that the workers need which train at the same time; a power of two.
        most: Largest number; a power of two.
    """
    room = memory_bytes * _MEMORY_SHARE
    total = sum(table_bytes.values())
    large = [name for name, size in table_bytes.items() if size * 8 > total]
    staying = total - sum(table_bytes[name] for name in large)
    needed = 1.0 if total <= room else _TABLES * (total - staying) / max(room - staying, room / 4)
    count = min(max(1 << math.ceil(math.log2(max(needed, 1))), least), most)
    if count > 1 < given:
        count = given if given in (1 << bit for bit in range(most.bit_length())) else 1
    return {name: count if name in large else 1 for name in table_bytes}


def summary_line(chosen: Mapping[str, Any], num_entities: Mapping[str, Sequence[int]], num_edges: int) -> str:
    """Say in one line what was chosen, and why."""
    types = ", ".join(f"{sum(counts):,} {name}" for name, counts in num_entities.items())
    names = {key: f"{key}.num_partitions" if key.startswith(ENTITIES) else key for key in chosen}
    fixed = ", ".join(f"{names[key]} {shown(value)}" for key, value in chosen.items() if key not in _BY_SIZE)
    of_size = ", ".join(f"{key} {chosen[key]}" for key in _BY_SIZE if key in chosen)
    parts = [f"{of_size} for {num_edges:,} edges of {types}"] * bool(of_size) + [fixed] * bool(fixed)
    return f"keys that the configuration leaves out: {'; '.join(parts)} (defaults: pbg asks for PBG's)"


def _is_uncut(entity: Any) -> bool:
    return entity is None or (isinstance(entity, Mapping) and entity.get("num_partitions") in (None, AUTO))


def _operator(filled: Mapping[str, Any], relations: Sequence[Mapping[str, Any]]) -> str:
    """Choose the operator: none for one relation, else one that tells relations and directions apart."""
    if len(relations) == 1 and not filled.get("dynamic_relations"):
        return "none"
    entities = filled.get("entities")
    types = entities.values() if isinstance(entities, Mapping) else ()
    own = [entity.get("dimension") for entity in types if isinstance(entity, Mapping)]
    dimensions = [filled["dimension"], *(dimension for dimension in own if dimension is not None)]
    is_even = all(isinstance(dimension, int) and dimension % 2 == 0 for dimension in dimensions)
    return "complex_diagonal" if is_even else "diagonal"


def _power_of_two(value: float) -> int:
    """The power of two that is nearest on a logarithmic scale; at least 1."""
    return 1 << max(round(math.log2(max(value, 1))), 0)


def _within(limits: tuple[int, int], value: int) -> int:
    return min(max(value, limits[0]), limits[1])
