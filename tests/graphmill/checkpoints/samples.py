"""Checkpoints in memory, for the conformance suite to write in every format; comparison of checkpoints."""

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphmill.checkpoints import FORMATS, Checkpoint, Iteration, ModelState, Rows, writer_of

Partition = tuple[np.ndarray, dict[str, Any] | None]
Tables = Mapping[str, list[Partition]]

ITERATION = Iteration(
    num_epochs=4,
    epoch_idx=1,
    num_edge_paths=2,
    edge_path_idx=1,
    edge_path="edges/b",
    num_edge_chunks=2,
    edge_chunk_idx=0,
)
VERSION = 7  # the seventh iteration is the one above
GROUP = {"lr": 0.1, "lr_decay": 0, "weight_decay": 0, "params": [0]}


class Trap:
    """Makes a folder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("sprung",)


def torch_bytes(value: Any) -> bytes:
    """A file as torch saves it."""
    torch.save(value, stream := io.BytesIO())
    return stream.getvalue()


class MemoryCheckpoint(Checkpoint):
    """A checkpoint whose tables are arrays."""

    format, allow_non_finite = "memory", True
    counts = dimensions = config = iteration = None  # of the class: each checkpoint has its own

    def __init__(
        self, tables: Tables, model: Any, config: Any, iteration: Any = ITERATION, version: int = VERSION
    ) -> None:
        super().__init__("memory", version)
        self.tables, self._model, self.config, self.iteration = tables, model, config, iteration
        self.counts = {name: [len(rows) for rows, _ in parts] for name, parts in tables.items()}
        self.dimensions = {name: parts[0][0].shape[1] for name, parts in tables.items()}

    @contextmanager
    def open_rows(self, entity_type: str, partition: int, *, whole: bool = False) -> Iterator[Rows]:
        rows = self.tables[entity_type][partition][0]
        yield Rows((rows.shape[0], rows.shape[1]), lambda start, stop: rows[start:stop])

    def _read_optimizer_state(self, entity_type: str, partition: int) -> dict[str, Any] | None:
        return self.tables[entity_type][partition][1]

    def _read_model(self) -> ModelState | None:
        return self._model


def sample(seed: int = 0, num_rows: int = 9, dimension: int = 4) -> MemoryCheckpoint:
    """Two types, one of them in two partitions, with every kind of content of a checkpoint."""
    rng = np.random.default_rng(seed)
    tables: dict[str, list[Partition]] = {}
    for name, num_partitions in (("item", 2), ("user", 1)):
        tables[name] = []
        for partition in range(num_partitions):
            rows = rng.standard_normal((num_rows + partition, dimension), np.float32)
            sums = torch.from_numpy(rng.random(len(rows), np.float32))
            tables[name].append((rows, {"state": {0: {"step": 0, "sum": sums}}, "param_groups": [GROUP]}))
    return MemoryCheckpoint(tables, static_model(dimension), config_of(tables))


def static_model(dimension: int) -> ModelState:
    """Operators of static relations, and global embeddings, in the order of the model."""
    shapes = {
        "rhs_operators.0.linear_transformation": (dimension, dimension),
        "rhs_operators.1.linear_transformation": (dimension, dimension),
        "rhs_operators.1.translation": (dimension,),
        "rhs_operators.2.real": (dimension // 2,),
        "rhs_operators.2.imag": (dimension // 2,),
        "rhs_operators.11.diagonal": (dimension,),
        "global_embs.emb_item": (dimension,),
        "global_embs.emb_user": (dimension,),
    }
    return _model(shapes)


def dynamic_model(dimension: int, num_relations: int) -> ModelState:
    """Operators of dynamic relations."""
    shapes = {
        f"{side}_operators.0.{name}": (num_relations, *shape)
        for side in ("lhs", "rhs")
        for name, shape in (
            ("linear_transformations", (dimension, dimension)),
            ("translations", (dimension,)),
        )
    }
    return _model(shapes)


def _model(shapes: Mapping[str, tuple[int, ...]]) -> ModelState:
    generator = torch.Generator().manual_seed(4)
    parameters = {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}
    state = {
        number: {"step": torch.tensor(float(number)), "sum": torch.rand(value.shape, generator=generator)}
        for number, value in enumerate(parameters.values())
    }
    group = GROUP | {"eps": 1e-10, "foreach": None, "maximize": False, "params": list(state)}
    return ModelState(parameters, {"state": state, "param_groups": [group]})


def config_of(tables: Tables) -> dict[str, Any]:
    """The part of PBG's configuration that these tests need."""
    undivided = {"featurized": False, "dimension": None}
    (dimension,) = {rows.shape[1] for parts in tables.values() for rows, _ in parts}
    return {
        "entities": {name: {"num_partitions": len(parts)} | undivided for name, parts in tables.items()},
        "relations": [{"name": "likes", "lhs": "user", "rhs": "item", "all_negs": True}],
        **{"dimension": dimension, "init_scale": 0.001, "num_batch_negs": 50},
        **{"num_epochs": ITERATION.num_epochs, "num_edge_chunks": ITERATION.num_edge_chunks},
        **{"entity_path": "entities", "edge_paths": ["edges/a", "edges/b"]},
        **{"checkpoint_path": "checkpoint", "init_path": None},
    }


def embeddings_only(checkpoint: MemoryCheckpoint) -> MemoryCheckpoint:
    """The embeddings alone, in one partition per type."""
    tables = {
        name: [(np.concatenate([rows for rows, _ in parts]), None)]
        for name, parts in checkpoint.tables.items()
    }
    return MemoryCheckpoint(tables, None, None, None, 0)


@st.composite
def checkpoints(draw: st.DrawFn) -> MemoryCheckpoint:
    """Checkpoints of any shape: empty partitions, one dimension, any kind of state or none, odd floats."""
    dimension = draw(st.sampled_from([1, 2, 4]))
    names = draw(st.sampled_from([["user"], ["item", "user"], ["a_1", "user.embedding"]]))
    tables: dict[str, list[Partition]] = {}
    for name in names:
        optimizer = draw(st.sampled_from(["row", "element", "fresh", "none"]))
        tables[name] = []
        for _ in range(draw(st.integers(1, 3))):
            bits = draw(hnp.arrays(np.uint32, (draw(st.integers(0, 6)), dimension)))
            # A signalling NaN may become a quiet one on its way through a float register.
            rows = np.where(np.isnan(bits.view(np.float32)), np.float32("nan"), bits.view(np.float32))
            tables[name].append((rows, _table_state(optimizer, rows)))
    relations = draw(st.integers(0, 3))
    model = draw(st.sampled_from([dynamic_model(dimension, relations), ModelState({}, {})]))
    return MemoryCheckpoint(tables, model, config_of(tables))


def _table_state(optimizer: str, rows: np.ndarray) -> dict[str, Any] | None:
    count = len(rows)
    match optimizer:
        case "row":
            state = {0: {"step": 0, "sum": torch.arange(count, dtype=torch.float32)}}
        case "element":
            sums = torch.ones(rows.shape) * torch.arange(count)[:, None]
            state = {0: {"step": torch.tensor(3.0), "sum": sums}}
        case "fresh":
            state = {}
        case _:
            return None
    return {"state": state, "param_groups": [GROUP]}


def check_same(found: Checkpoint, expected: Checkpoint) -> None:
    """Assert that `found` holds the content of `expected`, bit for bit."""
    assert {name: list(each) for name, each in found.counts.items()} == {
        name: list(each) for name, each in expected.counts.items()
    }
    assert dict(found.dimensions) == dict(expected.dimensions)
    for name, partition, _ in expected.partitions():
        rows = found.read_embeddings(name, partition)
        assert rows.dtype == np.float32
        expected_rows = expected.read_embeddings(name, partition)
        np.testing.assert_array_equal(rows.view(np.uint32), expected_rows.view(np.uint32))
        state, expected_state = (each.read_optimizer_state(name, partition) for each in (found, expected))
        check_equal(state, expected_state)
    model, expected_model = found.read_model(), expected.read_model()
    assert (model is None) == (expected_model is None)
    if model is not None and expected_model is not None:
        assert list(model.parameters) == list(expected_model.parameters)
        check_equal(model.parameters, expected_model.parameters)
        check_equal(model.optimizer_state, expected_model.optimizer_state)
    assert (found.config, found.iteration) == (expected.config, expected.iteration)


def check_equal(found: Any, expected: Any) -> None:
    """Assert that nested values with tensors are equal, dtypes and shapes included."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found, expected)
    elif isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            check_equal(found[key], value)
    else:
        assert found == expected


WRITERS: dict[str, Callable[[Checkpoint, str], list[str]]] = {name: writer_of(name) for name in FORMATS}
FULL = ("pbg", "pbg-legacy", "recis")  # graphstorm has a place for embeddings alone


def held_by(target_format: str, checkpoint: MemoryCheckpoint) -> MemoryCheckpoint:
    """The content of a checkpoint that a format keeps."""
    return checkpoint if target_format in FULL else embeddings_only(checkpoint)
