"""A gradient step against the oracle, with built-ins and with plug-ins; metrics of held-out edges."""

from functools import partial

import numpy as np
import pytest
import torch

import tests.train.plug_ins as written  # registers them
from graphmill.ask.model import Model
from graphmill.checkpoints import pbg
from graphmill.errors import ConfigError
from graphmill.model import built_in, losses
from graphmill.model.built_in import OPERATORS
from graphmill.model.parameters import global_key
from graphmill.model.registry import COMPARATORS as REGISTERED
from graphmill.vocab import Side
from tests.pairs import pairs
from tests.train.graphs import make_config, node_graph, relation
from tests.train.oracle import Oracle, adagrad
from train import job
from train.edges.negative_sampling import Batch, Sampling
from train.model import optimizer
from train.step.held_out import num_in_order
from train.step.plain import PlainStep, gather, scores
from train.step.step import Table

COMPARATORS, LOSSES = [*built_in.COMPARATORS], [*built_in.LOSSES]
NUM_RELATIONS = 4
COUNTS = {"user": 9, "item": 7}


def settings(operator, comparator, loss_fn, dynamic, **more):
    relations = [relation(operator, name="likes", lhs="user", rhs="item", weight=1.5)]
    relations += [] if dynamic else [relation(operator, name="knows", lhs="user", rhs="user")]
    entities = {"user": {"num_partitions": 1}, "item": {"num_partitions": 1}}
    usual = {"comparator": comparator, "loss_fn": loss_fn, "dynamic_relations": dynamic, "dimension": 4}
    usual |= {"batch_size": 6, "num_batch_negs": 4, "num_uniform_negs": 3, "relation_lr": 0.05}
    usual |= {"entities": entities, "relations": relations, "global_emb": not dynamic}
    return make_config("unused", **usual | {"train": {"chunk_edges": 1, "engine": "plain"}} | more)


class Scene:
    """A model with random state, a batch, and the oracle of the same."""

    is_weighted = False  # entities as wrong answers

    def __init__(
        self, config, relation=0, seed=0, num_edges=6, elementwise=False,
        counts=COUNTS, dtype=torch.float64, num_steps=1,
    ):  # fmt: skip
        self.config = config
        self.relation = relation
        self.elementwise = elementwise
        dynamic = config.dynamic_relations
        draw = torch.Generator().manual_seed(seed)
        self.model = Model(config, NUM_RELATIONS if dynamic else None, relation_init="random").to(
            "cpu", torch.float64
        )
        for key, value in self.model.parameters.items():
            self.model.parameters[key] = torch.randn(value.shape, generator=draw, dtype=torch.float64)
        self.model.to("cpu", dtype)
        self.adagrad = optimizer.Adagrad(self.model.parameters, config.relation_lr or config.lr)
        for sums in self.adagrad.sums.values():  # from 0, a gradient that is but noise would be a whole step
            sums += 0.1
        self.tables = {}
        for name, count in counts.items():
            rows = torch.randn(count, config.dimension, generator=draw, dtype=torch.float64)
            shape = rows.shape[: 1 + elementwise]
            sums = torch.rand(shape, generator=draw, dtype=torch.float64)
            self.tables[name] = Table(rows.to(dtype), sums.to(dtype))
        entry = config.relations[relation]
        index = {
            side: torch.randint(counts[entry.entity_type(side)], (num_edges,), generator=draw)
            for side in Side
        }
        rel_B = torch.randint(NUM_RELATIONS, (num_edges,), generator=draw) if dynamic else None
        self.edge_weights = [0.5 + 0.25 * (i % 9) for i in range(num_edges)]
        weight_B = torch.tensor(self.edge_weights, dtype=dtype) * entry.weight
        self.batch = Batch(relation, index, rel_B, weight_B, num_steps=num_steps)
        rels = [relation] * num_edges if rel_B is None else rel_B.tolist()
        self.edges = list(zip(index[Side.LHS].tolist(), rels, index[Side.RHS].tolist(), strict=True))

    @property
    def side_tables(self):
        entry = self.config.relations[self.relation]
        return {side: self.tables[entry.entity_type(side)] for side in Side}

    def state(self):
        """All that steps move: rows, parameters and their sums."""
        rows = [each for table in self.tables.values() for each in (table.embeddings_ND, table.sums)]
        return rows, self.model.parameters, self.adagrad.sums

    def leaves(self):
        """Copies of everything that has a gradient."""
        embeddings = {n: t.embeddings_ND.clone().requires_grad_() for n, t in self.tables.items()}
        parameters = {k: v.clone().requires_grad_() for k, v in self.model.parameters.items()}
        return embeddings, parameters

    def oracle(self, embeddings, parameters):
        dynamic = self.config.dynamic_relations

        def values(side, rel):
            entry = 0 if dynamic else rel
            names = OPERATORS[self.config.relations[entry].operator].parameter_names(dynamic)
            found = [parameters[f"{side}_operators.{entry}.{name}"] for name in names]
            return [value[rel] for value in found] if dynamic else found

        global_embs = {n: parameters.get(global_key(n)) for n in COUNTS}
        return Oracle(self.config, embeddings, values, global_embs)

    def blocks(self, seed=5):
        generator = torch.Generator().manual_seed(seed)
        return list(Sampling.of_training(self.config).blocks(self.batch, self.side_tables, generator))

    def step(self, seed=5):
        """Take a step on the batch; its figures."""
        step = PlainStep(self.config, self.model, self.adagrad)
        return step(self.batch, self.side_tables, torch.Generator().manual_seed(seed))

    def expected_loss(self, embeddings, parameters):
        """The oracle's loss of the batch, chunk by chunk, with the same drawn negatives."""
        oracle = self.oracle(embeddings, parameters)
        total, start = torch.zeros((), dtype=torch.float64), 0
        for block in self.blocks():
            size = block.num_positives
            for chunk in range(len(block.weight_CP)):
                edges = self.edges[start : start + size]
                drawn = {str(side): block.rows[side][chunk, size:].tolist() for side in Side}
                weights = self.edge_weights[start : start + size]
                in_batch = block.first_negative[Side.LHS] == 0
                total = total + oracle.chunk_loss(edges, drawn, in_batch, weights)
                start += size
        assert start == len(self.edges)
        return total, oracle.regularisation(self.edges)


def check_step(scene):
    """One step of ours moves everything as autograd and Adagrad, written out, say."""
    embeddings, parameters = scene.leaves()
    loss, reg = scene.expected_loss(embeddings, parameters)
    (loss + reg).backward()
    expected_rows = {
        name: adagrad(leaf.detach(), scene.tables[name].sums, leaf.grad, scene.config.lr)
        for name, leaf in embeddings.items()
        if leaf.grad is not None
    }
    figures = scene.step()

    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(figures.loss, loss.detach(), **close)
    torch.testing.assert_close(figures.reg, reg.detach(), **close)
    for name, (rows, sums) in expected_rows.items():
        torch.testing.assert_close(scene.tables[name].embeddings_ND, rows, **close)
        torch.testing.assert_close(scene.tables[name].sums, sums, **close)
    for key, leaf in parameters.items():
        expected = leaf.detach(), torch.full_like(leaf, 0.1)
        if leaf.grad is not None:
            expected = adagrad(*expected, leaf.grad, scene.config.relation_lr)
        found = scene.model.parameters[key], scene.adagrad.sums[key]
        torch.testing.assert_close(found, expected, **close)


NEGATIVES = [
    {"num_batch_negs": batch, "num_uniform_negs": drawn}
    for batch, drawn in ((0, 4), (6, 0), (100, 2), (1, 2), (2, 5))
]


@pytest.mark.parametrize(
    ("operator", "comparator", "loss_fn", "kind", "relation", "more", "elementwise"),
    pairs(
        list(OPERATORS),
        COMPARATORS,
        LOSSES,
        ["static", "dynamic", "reciprocal"],
        [0, 1],  # two types, one type
        # a bias that all entities share moves no ranking: the gradient of a global one is pure noise
        [{}, {"regularization_coef": 0.03}, {"bias": True, "global_emb": False}, *NEGATIVES],
        [False, True],
    ),
)
def test_step_equals_oracle(operator, comparator, loss_fn, kind, relation, more, elementwise):
    train = {"chunk_edges": 1, "engine": "plain", "reciprocal_relations": kind == "reciprocal"}
    config = settings(operator, comparator, loss_fn, kind == "dynamic", train=train, **more)
    scene = Scene(config, 0 if kind == "dynamic" else relation, elementwise=elementwise)
    sides = {key.split("_")[0] for key in scene.model.parameters if "operators" in key}
    assert sides == (set() if operator == "none" else {"rhs"} if kind == "static" else {"lhs", "rhs"})
    check_step(scene)


def test_more_edges_share_than_are_negatives():
    train = {"chunk_edges": 5, "engine": "plain"}
    config = settings("diagonal", "dot", "softmax", True, num_batch_negs=2, train=train)
    scene = Scene(config)
    whole, rest = scene.blocks()
    assert whole.rows[Side.LHS].shape == (1, 5 + 2 + 3)
    assert rest.rows[Side.LHS].shape == (1, 1 + 3)
    assert torch.equal(whole.rows[Side.RHS][:, 5:7], scene.batch.index[Side.RHS][None, :2])
    check_step(scene)


def test_all_negs_are_all_others():
    relation = {"name": "likes", "lhs": "user", "rhs": "item", "operator": "diagonal", "all_negs": True}
    config = settings("diagonal", "dot", "softmax", True, relations=[relation])
    scene = Scene(config)
    (block,) = scene.blocks()
    assert block.rows[Side.RHS].shape == (1, 6 + COUNTS["item"])
    embeddings, parameters = scene.leaves()
    oracle = scene.oracle(embeddings, parameters)
    everyone = {"lhs": range(COUNTS["user"]), "rhs": range(COUNTS["item"])}
    loss = oracle.chunk_loss(scene.edges, everyone, in_batch=False, weights=scene.edge_weights)
    figures = scene.step()
    torch.testing.assert_close(figures.loss, loss.detach())


@pytest.mark.parametrize("side", list(Side))
def test_a_side_without_negatives_has_no_scores(side):
    scene = Scene(settings("diagonal", "dot", "softmax", False, **{f"disable_{side}_negs": True}))
    (block, *_) = scene.blocks()
    scored = scores(scene.model, block, gather(scene.batch, block, scene.side_tables))
    assert scored[side].neg_CPM.shape[-1] == 0
    assert scored[side.other].neg_CPM.shape[-1] == 4 + 3


def test_violators_are_negatives_above_their_positive():
    scene = Scene(settings("none", "dot", "softmax", False))
    expected = dict.fromkeys(Side, 0)
    embeddings, parameters = scene.leaves()
    oracle, start = scene.oracle(embeddings, parameters), 0
    for block in scene.blocks():
        size = block.num_positives
        edges = scene.edges[start : start + size]
        start += size
        for side in Side:
            own = 0 if side is Side.LHS else 2
            columns = [e[own] for e in edges] + block.rows[side][0, size:].tolist()
            for edge in edges:
                pos = oracle.score(str(side), edge)
                for x in (x for x in columns if x != edge[own]):
                    neg = (x, *edge[1:]) if side is Side.LHS else (*edge[:2], x)
                    expected[side] += int(oracle.score(str(side), neg) > pos)
    figures = scene.step()
    assert (int(figures.violators_lhs), int(figures.violators_rhs)) == tuple(expected.values())


def test_max_norm_holds_after_every_step():
    scene = Scene(settings("diagonal", "dot", "softmax", False, max_norm=0.5))
    touched = {name: set() for name in COUNTS}
    scene.step()
    for block in scene.blocks():
        for side in Side:
            touched[scene.config.relations[0].entity_type(side)] |= set(block.rows[side].flatten().tolist())
    for name, rows in touched.items():
        norms = scene.tables[name].embeddings_ND[sorted(rows)].norm(dim=1)
        assert norms.max() <= 0.5 + 1e-12


def test_auc_is_over_pairs_of_any_edge_and_any_negative_of_a_batch():
    """By the definition: all pairs of a batch are equally likely, ties are no wins, masked negatives are."""
    num_batches, draw = 4, torch.Generator().manual_seed(1)
    scores = [  # blocks of chunks: 3 chunks of 5 edges with 7 negatives, 1 chunk of 2 edges with 4, per batch
        (torch.randint(5, (num_batches * c, p), generator=draw).float(),
         torch.randint(5, (num_batches * c, p, m), generator=draw).float())
        for c, p, m in ((3, 5, 7), (1, 2, 4))
    ]  # fmt: skip
    scores[0][1][:, :, 0] = -1e9
    expected = 0.0
    for step in range(num_batches):
        pos = torch.cat([each.view(num_batches, -1)[step] for each, _ in scores])
        neg = torch.cat([each.view(num_batches, -1)[step] for _, each in scores])
        expected += float((pos[:, None] > neg).double().mean()) / num_batches
    generator, found, rounds = torch.Generator().manual_seed(0), 0, 600
    for _ in range(rounds):
        found += num_in_order(scores, num_batches, generator)
    drawn = rounds * 17 * num_batches
    assert found / drawn == pytest.approx(expected, abs=4 * 0.5 / drawn**0.5)


@pytest.mark.parametrize("side", list(Side))
def test_a_side_without_negatives_is_left_out_of_the_means(tmp_path, rng, side):
    """Each edge has one negative on the other side: ranks are 1 or 2, and their means between."""
    config = node_graph(
        tmp_path, rng, num_edges=200, **{f"disable_{side}_negs": True}, num_epochs=1, eval_fraction=0.5,
        eval_num_batch_negs=0, eval_num_uniform_negs=1, comparator="squared_l2",
    )  # fmt: skip
    job.train(config)
    (line,) = pbg.read_stats(config.checkpoint_path)
    metrics = line["eval_stats_before"]["metrics"]
    assert metrics["r10"] == 1
    assert 1 < metrics["pos_rank"] < 2
    assert metrics["r1"] == pytest.approx(2 - metrics["pos_rank"])
    assert metrics["mrr"] == pytest.approx(0.5 + metrics["r1"] / 2)
    assert 0.2 < metrics["auc"] < 0.8  # of scores, which are below 0, and not of slopes
    assert np.isfinite(metrics["loss"])
    trained = line["stats"]["metrics"]
    assert trained[f"violators_{side}"] == 0 < trained[f"violators_{side.other}"]


check_same = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5, check_dtype=False)


def trained(operator, comparator, loss_fn, dynamic, *, relation=0, **more):
    """Figures of a step, and all rows, sums and parameters after it."""
    scene = Scene(settings(operator, comparator, loss_fn, dynamic, **more), relation)
    figures = scene.step()
    rows, parameters, sums = scene.state()
    return [*figures, *rows, *parameters.values(), *sums.values()]


@pytest.mark.parametrize(
    ("operator", "comparator", "loss_fn", "kind", "more", "mine"),
    pairs(
        list(OPERATORS),
        COMPARATORS,
        LOSSES,
        ["static", "dynamic", "reciprocal"],
        [{}, {"regularization_coef": 0.2}, {"bias": True}, {"disable_lhs_negs": True, "margin": 0.7}],
        [{"operator"}, {"comparator"}, {"loss_fn"}, {"regularizer"}],
    ),
)
def test_one_written_again_is_the_built_in(operator, comparator, loss_fn, kind, more, mine):
    train = {"chunk_edges": 1, "engine": "plain", "reciprocal_relations": kind == "reciprocal"}
    names = {"operator": operator, "comparator": comparator, "loss_fn": loss_fn, "regularizer": "N3"}
    both = [
        trained(**chosen, dynamic=kind == "dynamic", train=train, **more)
        for chosen in (names, names | {key: f"my_{names[key]}" for key in mine})
    ]
    check_same(*both)


def test_a_comparator_that_tells_the_sides_apart():
    """Each side's scores are those of the edge with this side replaced."""
    scene = Scene(settings("none", "order", "ranking", False, global_emb=False))
    lhs, rhs = torch.randn(3, 4), torch.randn(5, 4)
    expected = -(lhs.unsqueeze(1) - rhs).clamp_min(0).pow(2).sum(-1)
    torch.testing.assert_close(scene.model.matrix_scores(lhs, rhs, Side.RHS), expected)
    torch.testing.assert_close(scene.model.matrix_scores(rhs, lhs, Side.LHS), expected.T)
    torch.testing.assert_close(scene.model.edge_scores(lhs, rhs[:3], Side.RHS), expected[:, :3].diagonal())
    torch.testing.assert_close(scene.model.edge_scores(rhs[:3], lhs, Side.LHS), expected[:, :3].diagonal())
    assert REGISTERED.get_class("order") is written.Order


def test_a_loss_of_release_1_has_the_weight_of_its_relation():
    scene = Scene(settings("none", "dot", "of_release_1", False))
    with pytest.raises(ConfigError, match=r"of_release_1.*the edges have weights.*third argument"):
        scene.step()
    ours, theirs = (Scene(settings("none", "dot", loss, False)) for loss in ("of_release_1", "logistic"))
    for each in (ours, theirs):
        each.batch = Batch(0, each.batch.index, None, torch.full_like(each.batch.weight_B, 1.5))
        each.step()
    torch.testing.assert_close(ours.tables["user"].embeddings_ND, theirs.tables["user"].embeddings_ND)


class Apart(written.AbstractLossFunction):
    def forward(self, pos_scores, neg_scores):
        return neg_scores.sum() - pos_scores.sum()


def test_a_masked_negative_has_no_gradient():
    written.LOSS_FUNCTIONS.register("apart", Apart)
    pos_CP, neg_CPM = torch.zeros(1, 1), torch.tensor([[[1.0, losses.MASKED]]])
    gradient = losses.loss_gradient("apart", 0.1, pos_CP, neg_CPM, torch.ones(1, 1))
    assert gradient.neg_CPM.tolist() == [[[1.0, 0.0]]]


class Wrong(written.Uniform):
    """Draws what the test puts into `drawn`."""

    drawn = None

    def sample(self, edges, side, num_rows, generator):
        return type(self).drawn(edges, num_rows)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (lambda edges, num: torch.full((len(edges.lhs), 2), num), "expected rows from 0 to"),
        (lambda edges, num: torch.zeros(len(edges.lhs), 2), "found torch.float32"),
        (lambda edges, num: torch.zeros(len(edges.lhs) + 1, 2, dtype=torch.int64), "shape"),
        (lambda edges, num: [1, 2], "found list"),
    ],
)
def test_what_a_sampler_draws_is_checked(drawn, message):
    if "wrong" not in written.NEGATIVE_SAMPLERS.registry:
        written.NEGATIVE_SAMPLERS.register("wrong", Wrong)
    Wrong.drawn = staticmethod(drawn)
    sampled = {"chunk_edges": 1, "engine": "plain", "negative_sampler": "wrong"}
    with pytest.raises(ConfigError, match=message):
        trained("none", "dot", "softmax", False, train=sampled)
