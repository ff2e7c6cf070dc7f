"""The sections of a configuration: keys of each stage, the cluster and the schedule."""

from collections.abc import Mapping

from graphmill.config.section import Section
from graphmill.config.sections.cluster import ClusterConfig, ScheduleConfig
from graphmill.config.sections.etl import EtlConfig
from graphmill.config.sections.evaluate import EvaluateConfig
from graphmill.config.sections.remap import DriftConfig, RemapConfig
from graphmill.config.sections.train import TrainConfig

_CLASSES: tuple[type[Section], ...] = (
    EtlConfig,
    TrainConfig,
    EvaluateConfig,
    RemapConfig,
    DriftConfig,
    ClusterConfig,
    ScheduleConfig,
)
SECTIONS: Mapping[str, type[Section]] = {section.key: section for section in _CLASSES}
