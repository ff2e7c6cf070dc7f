"""The question of a command to a trained run, and how its queries are made and answered.

Shapes: U distinct entities that are asked about, N candidates, D dimension.
"""

from dataclasses import dataclass
from functools import partial

from graphmill.ask.entities import EntityTable
from graphmill.ask.predict.known import LeftOut
from graphmill.ask.predict.lists import Lists
from graphmill.ask.predict.sizes import Sizes
from graphmill.ask.relation import Relation
from graphmill.ask.scan import HEIGHT, WIDTH, Answers, Numbers, Scan, made
from graphmill.checkpoints import Floats
from graphmill.model.calibration import NUM_BEST, Scale
from graphmill.vocab import Side


@dataclass(frozen=True)
class Asked:
    """The question that all queries share; small, because every task receives it.

    Attributes:
        side: side of the answers.
        left_out: candidates that are no answers.
        scale: adds probabilities to the answers.
        num_gpus: 0 searches on the CPU.
        lists: only candidates of the nearest lists are compared; None: all.
    """

    relation: Relation
    side: Side
    k: int
    queries: EntityTable
    candidates: EntityTable
    left_out: LeftOut
    sizes: Sizes
    num_gpus: int = 0
    scale: Scale | None = None
    lists: Lists | None = None

    @property
    def num_best(self) -> int:
        """Candidates to find for a query: a probability compares an answer with NUM_BEST of them."""
        return self.k if self.scale is None else max(self.k, NUM_BEST)

    def made_queries(self, number_U: Numbers) -> Floats:
        """Queries as scores take them, [U, D], and padding."""
        where = f"{self.queries.trained.checkpoint_path}: {self.queries.entity_type!r}"
        make = partial(self.relation.queries, self.side)
        return made(make, self.queries.gather(number_U), HEIGHT, where)

    def made_candidates(self, number_N: Numbers) -> Floats:
        """Candidates as scores take them, [N, D]."""
        table = self.candidates
        where = f"{table.trained.checkpoint_path}: {table.entity_type!r}"
        make = partial(self.relation.candidates, self.side)
        return made(make, table.gather(number_N), WIDTH, where)[: len(number_N)]

    def search_all(self, number_U: Numbers) -> tuple[Answers, int]:
        """Compare entities, whose numbers ascend, with all candidates: answers, number of known edges."""
        left_out = partial(self.left_out.read, self.queries, number_U, self.candidates)
        scan = Scan(
            self.relation,
            self.side,
            self.made_queries(number_U),
            len(number_U),
            self.candidates,
            left_out if self.left_out else None,
            self.sizes.candidate_rows,
            self.sizes.known_edges,
        )
        return scan.best(self.num_best, self.num_gpus)
