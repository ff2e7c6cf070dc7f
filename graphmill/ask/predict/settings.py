"""Questions of a user to a trained run: the options of `graphmill predict`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from graphmill.config.section import SIZE, Flag, Section
from graphmill.config.values import AbsolutePath
from graphmill.vocab import Side

How = Literal["auto", "exact", "approximate"]


class PredictOptions(Section):
    """One question."""

    relation: Annotated[str | None, Flag(metavar="NAME")] = Field(
        None, description="Relation of the answers (default: the only one)."
    )
    side: Side = Field(
        Side.RHS, strict=False, description="rhs answers (id, relation, ?), lhs answers (?, relation, id)."
    )
    cosine: bool = Field(
        False, description="Answer with the most similar vectors of a type instead; no id finds itself."
    )
    id_type: Annotated[str | None, Flag("--type", "TYPE")] = Field(
        None, description="With --cosine: type of the ids (default: the only one)."
    )
    candidate_type: Annotated[str | None, Flag("--candidates", "TYPE")] = Field(
        None, description="With --cosine: type of the answers (default: that of the ids)."
    )
    k: int = Field(100, ge=1, description="Answers for an id.")
    ids: Annotated[
        AbsolutePath | None,
        BeforeValidator(lambda given: None if given == "all" else given),
        Flag(metavar="FILE|all"),
    ] = Field(
        None, description="Ids to answer for: parquet, CSV, or lines of text (default: all of the type)."
    )
    pairs: Annotated[AbsolutePath | None, Flag(metavar="FILE")] = Field(
        None, description="Score these pairs instead: columns lhs, rhs and maybe relation."
    )
    exclude_known: bool = Field(False, description="Leave out the edges of all splits of the run.")
    with_itself: bool = Field(
        False,
        description="An id may be its own answer (default: only where a training edge of the relation is a "
        "loop).",
    )
    calibrated: bool = Field(
        False,
        description="Add the probability of each answer, as `graphmill evaluate` has fitted it; with "
        "--exclude-known.",
    )
    is_exact: Annotated[bool | None, Flag("--exact/--approximate")] = Field(
        None,
        description="Compare all candidates, or those in the nearest of many lists (default: what is "
        "faster).",
    )
    recall: float = Field(
        0.95, gt=0, le=1, description="Share of the exact answers that approximate ones have at least."
    )
    index: Annotated[AbsolutePath | None, Flag(metavar="FOLDER")] = Field(
        None,
        description="Keep the lists of candidates here, for more questions (default: delete them at the "
        "end).",
    )
    memory_bytes: Annotated[int, Flag("--task-memory", SIZE)] = Field(
        512 << 20, description="Memory of a task's blocks."
    )

    @property
    def how(self) -> How:
        """Tell whether all candidates are compared, or those of near lists; `auto` takes what is faster."""
        return "auto" if self.is_exact is None else "exact" if self.is_exact else "approximate"

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
