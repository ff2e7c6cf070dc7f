"""The stages of the benchmark of a billion edges: command, middle of the work, floor, checks of the end."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench import floor, measure
from bench.setting import Setting, stage_figures
from bench.synthetic import Edges, Relations
from graphmill.checkpoints import pbg
from graphmill.formats import entity_index

ROWS_PER_ID = 50
NUM_FILES = 200
NUM_PARTITIONS = 8
NUM_HELD_OUT = 10_000
DIMENSION, NUM_NEGATIVES = 100, 50  # as many of the batch, and as many drawn; per side
CHUNK_EDGES = 500  # that share negatives, by default
SOME_SCORES = 4096, 8192  # queries and candidates that floors multiply
RELATIONS: Relations = (
    ("viewed", "user", "item"),
    ("clicked", "user", "item"),
    ("saved", "user", "item"),
    ("bought", "user", "item"),
    ("rated", "user", "item"),
    ("follows", "user", "user"),
    ("mentions", "user", "user"),
    ("similar_to", "item", "item"),
)

Check = tuple[str, int, int]  # what is counted, how many there are, how many there should be


@dataclass(frozen=True)
class Graph:
    """The edge table, where it is, and what it holds."""

    edges: Edges
    folder: Path
    counts: Mapping[str, Mapping[str, int]]

    @property
    def num_rows(self) -> int:
        return self.edges.num_rows


def edges_of(num_rows: int) -> Edges:
    """The edge table with so many rows."""
    return Edges(
        num_rows,
        max(num_rows // ROWS_PER_ID, 2),
        num_files=NUM_FILES,
        short_ids=True,
        compression="zstd",
        all_relations=RELATIONS,
    )


def shared_settings() -> dict[str, Any]:
    """Graph and model in keys that our configuration and PBG's share."""
    return {
        "entities": {name: {"num_partitions": NUM_PARTITIONS} for name in ("user", "item")},
        "relations": [
            {"name": name, "lhs": lhs, "rhs": rhs, "operator": "complex_diagonal"}
            for name, lhs, rhs in RELATIONS
        ],
        "dimension": DIMENSION,
        "comparator": "dot",
        "loss_fn": "softmax",
        "global_emb": False,
        "num_batch_negs": NUM_NEGATIVES,
        "num_uniform_negs": NUM_NEGATIVES,
        "batch_size": 1000,
        "lr": 0.1,
        "num_epochs": 1,
        "eval_fraction": 0.0,
    }


def settings_of(graph: Graph, output: Path) -> dict[str, Any]:
    """The configuration of the run."""
    table = {"path": str(graph.folder), "format": "parquet"}
    table |= {"lhs": "lhs", "relation_column": "rel", "rhs": "rhs"}
    holdout = {"test": min(NUM_HELD_OUT / graph.num_rows, 0.01)}
    ranked = {"evaluate": {"budget": "unlimited"}}  # all held-out edges, as the run says
    own = {"defaults": "pbg", "output": str(output), "etl": {"tables": [table], "holdout": holdout}}
    return own | ranked | shared_settings()


class Stage(ABC):
    """A stage of a run whose configuration file is in its output folder."""

    def __init__(self, name: str, setting: Setting, graph: Graph, output: Path) -> None:
        self.name, self.setting, self.graph, self.output = name, setting, graph, output

    def run(self, watch: measure.Watch) -> measure.Measured:
        """Run the command of the stage."""
        return self.setting.submit(f"{self.name}.py", self.output / "config.yaml", watch)

    @abstractmethod
    def has_begun(self) -> bool:
        """Whether the stage is in the middle of its work."""

    @abstractmethod
    def floor_s(self) -> float:
        """Seconds that no program can avoid on this machine."""

    @abstractmethod
    def checks(self, figures: Mapping[str, Any]) -> list[Check]:
        """List what must be right at the end."""

    @abstractmethod
    def note(self, figures: Mapping[str, Any]) -> str:
        """Tell where the time went, or what came out."""


class Etl(Stage):
    """Edge tables to buckets and entity index."""

    def has_begun(self) -> bool:
        return any(self.output.glob(".etl-work-*/files-*/encode.json"))

    def floor_s(self) -> float:
        """Read a twentieth of the files, and dictionary-encode both endpoints."""
        paths = sorted(self.graph.folder.iterdir())[: NUM_FILES // 20]
        seconds, _ = floor.seconds("encode", floor.deal(paths, self.setting.num_workers))
        return seconds * NUM_FILES / len(paths)

    def checks(self, figures: Mapping[str, Any]) -> list[Check]:
        rows = self.graph.counts["rows"].items()
        ids = self.graph.counts["ids"].items()
        return [
            *((f"edges of {name}", figures["num_edges_by_relation"][name], count) for name, count in rows),
            *((f"ids of {name}", sum(figures["num_entities"][name]), count) for name, count in ids),
        ]

    def note(self, figures: Mapping[str, Any]) -> str:
        steps = (f"{step} {seconds:.1f}" for step, seconds in figures["step_seconds"].items())
        return f"seconds: {', '.join(steps)}"


class Train(Stage):
    """One epoch over all buckets."""

    def has_begun(self) -> bool:
        return any((self.output / "checkpoint").glob("embeddings_*.h5"))

    def floor_s(self) -> float:
        """Move the rows that edges touch, at random places, and multiply queries by negatives."""
        num_workers = self.setting.num_workers
        num_rows = max(self.graph.edges.num_ids_of_type // NUM_PARTITIONS, 1)
        moved_s, _ = floor.seconds("move", [[num_rows, DIMENSION]] * num_workers)
        rows_per_edge = 2 * (1 + NUM_NEGATIVES / CHUNK_EDGES)
        multiplied_s, _ = floor.seconds("multiply", [[*SOME_SCORES, DIMENSION]] * num_workers)
        scores_per_edge = 6 * 2 * NUM_NEGATIVES  # scores and the gradients of both sides' vectors; two sides
        per_edge_s = rows_per_edge * moved_s / floor.NUM_PLACES
        per_edge_s += scores_per_edge * multiplied_s / math.prod(SOME_SCORES)
        return self.graph.num_rows * per_edge_s / num_workers

    def checks(self, figures: Mapping[str, Any]) -> list[Check]:
        (epoch,) = figures["epochs"]
        trained = sum(bucket["edges"] for bucket in epoch["buckets"])
        return [("edges", trained, stage_figures(self.output, "etl")["num_edges"]["train"])]

    def note(self, figures: Mapping[str, Any]) -> str:
        (epoch,) = figures["epochs"]
        stepping_s = sum(bucket["seconds"] for bucket in epoch["buckets"])
        return (
            f"{epoch['edges'] / stepping_s:,.0f} edges/s in steps, which took {stepping_s:.1f} s; waited for "
            f"files {epoch['swap_wait_s']:.1f} s; partitions read {epoch['partitions_read']}, written "
            f"{epoch['partitions_written']}"
        )


class Evaluate(Stage):
    """Filtered ranking of the held-out edges among all entities."""

    def run(self, watch: measure.Watch) -> measure.Measured:
        return self.setting.submit_evaluate(self.output / "config.yaml", watch)

    def has_begun(self) -> bool:
        with suppress(FileNotFoundError, json.JSONDecodeError):  # while it is being replaced
            return bool(json.loads((self.output / "run.json").read_text())["status"] == "running")
        return False

    def floor_s(self) -> float:
        """Multiply the queries of both sides by all entities of a type; measured on a share of both."""
        num_queries = 2 * int(stage_figures(self.output, "etl")["num_edges"]["test"])
        num_scores = num_queries * self.graph.edges.num_ids_of_type
        seconds, _ = floor.seconds("multiply", [[*SOME_SCORES, DIMENSION]] * self.setting.num_workers)
        return seconds * num_scores / math.prod(SOME_SCORES) / self.setting.num_workers

    def checks(self, figures: Mapping[str, Any]) -> list[Check]:
        num_edges = int(figures["metrics"]["num_edges"])
        return [("edges", num_edges, stage_figures(self.output, "etl")["num_edges"]["test"])]

    def note(self, figures: Mapping[str, Any]) -> str:
        return f"MRR {figures['metrics']['mrr']:.6f}, by chance {figures['baselines']['random']['mrr']:.6f}"


class Remap(Stage):
    """Vectors by raw id, as parquet."""

    def has_begun(self) -> bool:
        return any(each.is_file() for each in self.output.glob(".embeddings.*/*/*"))

    def floor_s(self) -> float:
        """Read a partition of ids and vectors per worker, and write as many bytes as its table has."""
        parts = [(name, part) for part in range(NUM_PARTITIONS) for name in self.graph.counts["ids"]]
        some = parts[: self.setting.num_workers]
        shares: list[list[str | Path]] = []
        for number, (name, part) in enumerate(some):
            table = self.output / "embeddings" / name / f"part-{part:05d}.parquet"
            sources = [
                pbg.embeddings_uri(str(self.output / "checkpoint"), name, part, 1),
                entity_index.part_uri(str(self.output / "entities"), name, part),
            ]
            copy = self.output / f"copied-{number}"
            shares.append([*sources, copy, str(table.stat().st_size)])
        seconds, _ = floor.seconds("copy", shares)
        for *_, copied, _ in shares:
            Path(copied).unlink()
        return seconds * len(parts) / len(some)

    def checks(self, figures: Mapping[str, Any]) -> list[Check]:
        folder = self.output / "embeddings"
        return [
            (f"rows of {name}", sum(map(_num_rows, (folder / name).glob("*.parquet"))), count)
            for name, count in self.graph.counts["ids"].items()
        ]

    def note(self, figures: Mapping[str, Any]) -> str:
        return f"{figures['num_rows']:,} vectors in {figures['num_files']} files"


STAGES: Mapping[str, type[Stage]] = {"etl": Etl, "train": Train, "evaluate": Evaluate, "remap": Remap}


def _num_rows(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)
