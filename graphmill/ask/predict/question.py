"""Questions of a user to a trained run."""

from dataclasses import dataclass
from typing import Any, Literal

from graphmill.vocab import Side

How = Literal["auto", "exact", "approximate"]


@dataclass(frozen=True)
class Question:
    """A user's question to a run.

    Attributes:
        relation: name of the relation; None where the pairs name it, or there is only one.
        side: side of the answers.
        ids: file of the ids that are asked about; None: all entities of the other side's type.
        pairs: file of the pairs to score, instead of ids.
        exclude_known: leave out edges of the run.
        with_itself: an id may be its own answer, though no training edge of the relation is a loop.
        calibrated: add the probability of each answer.
        memory_bytes: memory of a task.
        cosine: the ids with the most similar vectors, instead of a relation's answers.
        id_type: with `cosine`, type of the ids; None where there is only one.
        candidate_type: with `cosine`, type of the answers; None: `id_type`.
        how: compare all candidates, or those of the nearest lists; `auto` takes what is faster.
        recall: share of the exact answers that approximate ones have at least.
        index: folder that keeps the lists for later questions; None: they are deleted at the end.
    """

    relation: str | None = None
    side: Side = Side.RHS
    k: int = 100
    ids: str | None = None
    pairs: str | None = None
    exclude_known: bool = False
    memory_bytes: int = 512 << 20
    calibrated: bool = False
    cosine: bool = False
    id_type: str | None = None
    candidate_type: str | None = None
    how: How = "auto"
    recall: float = 0.95
    index: str | None = None
    with_itself: bool = False

    def described(self) -> dict[str, Any]:
        """The settings that the answers depend on."""
        if self.pairs:
            return {"pairs": self.pairs, "relation": self.relation, "side": str(self.side)}
        kinds: dict[str, Any] = {"relation": self.relation, "side": str(self.side)}
        if self.cosine:
            kinds = {"cosine": True, "id_type": self.id_type, "candidate_type": self.candidate_type}
        return {
            "ids": self.ids or "all",
            **kinds,
            "k": self.k,
            "exclude_known": self.exclude_known,
            **({"with_itself": True} if self.with_itself else {}),
            **({"calibrated": True} if self.calibrated else {}),
            **({"how": self.how} if self.how != "auto" else {}),
            **({"wanted_recall": self.recall} if self.how != "exact" else {}),
        }
