"""Training on several workers that all need one type and many relations: as good as on one worker."""

import numpy as np
import pytest

from tests.train.graphs import make_config, mean_reciprocal_rank, write_graph
from train import job
from train.distributed import shard_placement

NUM_RELATIONS = 12


def planted_cities(rng, num_groups=20, nodes=40, cities=15, degree=12):
    """Edges from nodes to the cities of their group, by many relations; groups are hidden in the ids."""
    group_of_node = rng.permutation(np.repeat(np.arange(num_groups), nodes))
    group_of_city = rng.permutation(np.repeat(np.arange(num_groups), cities))
    triples = [
        (node, int(rng.integers(NUM_RELATIONS)), int(city))
        for node, group in enumerate(group_of_node)
        for city in rng.choice(np.flatnonzero(group_of_city == group), degree, replace=False)
    ]
    triples = np.array(triples)
    rng.shuffle(triples)
    return {"node": len(group_of_node), "city": len(group_of_city)}, triples[1000:], triples[:1000]


@pytest.mark.slow
def test_one_type_and_many_relations_in_all_buckets(tmp_path, client, monkeypatch):
    """Two workers exchange them while they train: the MRR of 1,000 held-out edges is within .005."""
    monkeypatch.setattr(shard_placement, "SHARD_BYTES", 1 << 12)  # one on each worker
    counts, train, test = planted_cities(np.random.default_rng(5))
    known, found, moved = np.concatenate([train, test]), {}, {}
    for num in (1, 2):
        config = make_config(
            tmp_path / str(num),
            entities={"node": {"num_partitions": 4}, "city": {"num_partitions": 1}},
            relations=[
                {"name": f"r{number}", "lhs": "node", "rhs": "city", "operator": "translation"}
                for number in range(NUM_RELATIONS)
            ],
            dimension=16,
            num_epochs=10,
            batch_size=200,
            num_uniform_negs=50,
            regularization_coef=0.01,
            train={"num_workers": num, "shared_interval_s": 0.05},
        )
        write_graph(config, counts, train)
        figures = job.run(config, client)
        found[num] = mean_reciprocal_rank(config, counts, known, test)
        moved[num] = sum(each.get("shared_bytes", 0) for each in figures["epochs"])
    assert found[1] > 0.08  # a blind guess scores .015
    assert found[2] > found[1] - 0.005, found
    assert moved[1] == 0 < moved[2]
