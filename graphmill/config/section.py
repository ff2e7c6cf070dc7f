"""Base class of every configuration class, and the effect of each key on the result of a run."""

from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict

AnyType = TypeVar("AnyType")


class Effect(Enum):
    """Effect of a key on the result, which decides whether finished or begun work can be used again."""

    FIXED = "changes the result; a checkpoint cannot continue with another value"
    TUNABLE = "changes the result; a checkpoint can continue with another value"
    NEUTRAL = "changes speed, memory, places or the number of epochs only"


# The type of a key says its effect: `lr: Tunable[float]`. Neutral paths: inputs are compared by content.
Fixed = Annotated[AnyType, Effect.FIXED]
Tunable = Annotated[AnyType, Effect.TUNABLE]
Neutral = Annotated[AnyType, Effect.NEUTRAL]


class Section(BaseModel):
    """Base of every configuration class: frozen, strictly typed, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    key: ClassVar[str] = ""
    """Top-level key of the section, as in `train: {...}`."""

    @classmethod
    @cache
    def effects(cls) -> dict[str, Effect]:
        """Effect of each key that states one; sections inside a section state their own."""
        found = {
            name: [each for each in field.metadata if isinstance(each, Effect)]
            for name, field in cls.model_fields.items()
        }
        return {name: effects[0] for name, effects in found.items() if effects}

    def result_settings(self) -> dict[str, Any]:
        """The settings that change the result, as JSON types."""
        kept = {name for name, effect in self.effects().items() if effect is not Effect.NEUTRAL}
        return self.model_dump(mode="json", include=kept)
