"""The section `schedule`."""

from pydantic import Field

from graphmill.config.section import Section
from graphmill.config.values import Positive


class ScheduleConfig(Section):
    """The section `schedule`."""

    key = "schedule"
    keep: Positive | None = Field(
        None, description="Finished dates to keep; older ones are deleted after a run. null: keep all."
    )
    date: str | None = Field(None, description="Date of the run, set by --date.")
    previous_date: str | None = Field(None, description="Date that the run continues from, set by --date.")
