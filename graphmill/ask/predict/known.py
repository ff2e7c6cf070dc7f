"""Candidates that are no answers: known edges, and the id that is asked about itself. Shapes: K of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphmill.ask.edges import Graph, Numbers, edges_of, pieces_of
from graphmill.ask.entities import EntityTable
from graphmill.vocab import Side


@dataclass(frozen=True)
class LeftOut:
    """Candidates that are no answers.

    Attributes:
        relation: whose edges are known.
        side: of the candidates.
        folders: of known edges; none where these are answers too.
        itself: the id that is asked about; both tables are of one type.
    """

    relation: int
    side: Side
    folders: tuple[str, ...] = ()
    itself: bool = False

    def __bool__(self) -> bool:
        return self.itself or bool(self.folders)

    def read(
        self, queries: EntityTable, numbers: Numbers, candidates: EntityTable, partition: int
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Read what is left out of a partition, some of it twice: query [K], row of the candidate [K].

        `numbers` are those of the queries' entities; they ascend.
        """
        first = candidates.first[partition]
        if self.itself:
            start, stop = np.searchsorted(numbers, candidates.first[partition : partition + 2])
            yield np.arange(start, stop), numbers[start:stop] - first
        config = candidates.trained.config
        graph = Graph(config, {table.entity_type: table.num_rows for table in (queries, candidates)})
        pieces = pieces_of(config, self.folders, (candidates.entity_type, partition), [self.side])
        asking = queries.rows_of(numbers), pieces, [self.side.other]
        for found in edges_of(graph, *asking, relation=self.relation, takes_features=True):
            yield found.place_H, found.edges.ends(self.side) - first
