"""Options of a job on GraphStorm's outputs, from flags or from GraphStorm's YAML file.

As in GraphStorm's command, the YAML says where the outputs and the maps are and what was predicted; flags of
these are ignored beside it. But the flags of a training win over its YAML: a launcher passes them on.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from graphmill import storage
from graphmill.checkpoints.graphstorm import id_maps
from graphmill.checkpoints.graphstorm.saved_models import read_yaml
from graphmill.checkpoints.graphstorm.saved_ranks import checked_edge_type
from graphmill.config import Positive, Section
from graphmill.config.section import validated
from graphmill.errors import ConfigError
from remap.tables import Codec, TableOptions

# Kinds of tasks, their key in GraphStorm's YAML, and the option.
_TARGETS = (("edge", "target_etype", "pred_etypes"), ("node", "target_ntype", "pred_ntypes"))
COLUMNS = ("nid", "pred", "src_nid", "dst_nid", "emb")
OF_TRAINING = ("part_config", "save_embed_path", "save_prediction_path", "target_etype", "target_ntype")
"""Keys of GraphStorm's YAML that its trainings take as flags too."""
_OF_YAML = ("node_id_mapping", "node_emb_dir", "prediction_dir", "pred_etypes", "pred_ntypes")

log = logging.getLogger("graphmill")


class GraphStormOptions(Section):
    """Options of one job, named like GraphStorm's flags; options of GraphMill alone are marked `ours`."""

    node_id_mapping: str = Field(description="folder with a folder of map files for each type")
    node_emb_dir: str | None = None
    prediction_dir: str | None = None
    pred_etypes: tuple[tuple[str, str, str], ...] = ()
    pred_ntypes: tuple[str, ...] = ()
    output_dir: str | None = Field(None, description="ours: folder of the tables; null: beside the input")
    output_format: Literal["parquet", "csv"] = "parquet"
    output_delimiter: Annotated[
        str, Field(pattern=r"^[\t !#-*,/:-@\[-`{-~]$", description="one character that is in no number")
    ] = ","
    column_names: dict[str, str] = Field(default_factory=dict)
    output_chunk_size: Positive | None = Field(
        None, description="rows of an output file; null: all of an input"
    )
    preserve_input: bool = False
    with_shared_fs: bool = True
    compression: Codec = Field("snappy", description="ours: codec of all columns but lists of floats")
    value_compression: Codec = Field("none", description="ours: codec of lists of floats")
    fixed_size_list: bool = Field(False, description="ours: vectors as fixed_size_list, not list")
    allow_non_finite: bool = Field(False, description="ours: write NaN and infinity too; false: an error")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prediction_dir is None and (self.pred_etypes or self.pred_ntypes):
            raise ValueError("--pred-etypes, --pred-ntypes: they need --prediction-dir")
        unknown = set(self.column_names) - set(COLUMNS)
        if unknown:
            words = ", ".join(sorted(unknown))
            raise ValueError(f"--column-names: expected old names among {', '.join(COLUMNS)}, found {words}")
        return self

    @property
    def tables(self) -> TableOptions:
        """Format of the tables."""
        return TableOptions(**{field.name: getattr(self, field.name) for field in fields(TableOptions)})

    def column(self, name: str) -> str:
        """Name of a column in the output."""
        return self.column_names.get(name, name)


def make_options(given: dict[str, Any], yaml_uri: str | None) -> GraphStormOptions | None:
    """Make the options from flags, and from GraphStorm's YAML file if there is one.

    None if the YAML's run saved nothing.
    """
    of_training = {key: given[key] for key in OF_TRAINING if key in given}
    settings = {key: value for key, value in given.items() if key not in of_training}
    if yaml_uri:
        if ignored := [key for key in _OF_YAML if settings.pop(key, None)]:
            log.warning("remap: %s: ignored, %s says it", ", ".join(map(_flag, ignored)), yaml_uri)
        settings |= _read_yaml(yaml_uri, of_training)
    elif of_training:
        raise ConfigError(f"{', '.join(map(_flag, of_training))}: only together with --cf")
    if not settings.get("node_emb_dir") and not settings.get("prediction_dir"):
        if yaml_uri:
            return None
        raise ConfigError("--node-emb-dir, --prediction-dir: expected at least one of them")
    if not settings.get("node_id_mapping"):
        raise ConfigError("--node-id-mapping: missing; it names the folder of the maps, raw_id_mappings")
    if "pred_etypes" in settings:
        texts = settings["pred_etypes"]
        settings["pred_etypes"] = tuple(
            checked_edge_type(str(text).split(","), "--pred-etypes") for text in texts
        )
    settings["column_names"] = _parse_column_names(settings.get("column_names", ()))
    for key in ("node_id_mapping", "node_emb_dir", "prediction_dir", "output_dir"):
        if isinstance(settings.get(key), str):
            settings[key] = storage.absolute(settings[key])
    return validated(GraphStormOptions, settings)


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _parse_column_names(pairs: Iterable[str]) -> dict[str, str]:
    names = {}
    for pair in pairs:
        old, comma, new = pair.partition(",")
        if not comma or not new or "," in new or old in names:
            raise ConfigError(f"--column-names {pair}: expected OLD,NEW, and each OLD once")
        names[old] = new
    renamed = [names.get(name, name) for name in COLUMNS]
    if len(set(renamed)) < len(renamed):
        raise ConfigError(f"--column-names: two columns are called the same: {', '.join(renamed)}")
    return names


def _read_yaml(uri: str, of_training: Mapping[str, Any]) -> dict[str, Any]:
    """Read the folders of the graph and of the outputs, and the predicted types, of GraphStorm's run.

    A folder of outputs that is not there is left out: GraphStorm's launchers remap after every training.
    """
    sections, run_settings = read_yaml(uri)
    run_settings |= of_training
    folders = {"node_emb_dir": "save_embed_path", "prediction_dir": "save_prediction_path"}
    settings: dict[str, Any] = {}
    for option, key in folders.items():
        if (folder := run_settings.get(key)) and not storage.is_dir(folder):
            log.warning("remap: %s: %s: there is no such folder; nothing was saved there", key, folder)
            folder = None
        settings[option] = folder
    if isinstance(run_settings.get("part_config"), str):
        graph = str(storage.parent(run_settings["part_config"]))
        settings["node_id_mapping"] = storage.join(graph, id_maps.FOLDER)
    if "multi_task_learning" not in sections and settings["prediction_dir"]:
        # A multi-task run has a folder with a result_info.json for each task.
        kind = str(run_settings.get("task_type", "")).partition("_")[0]
        for task, key, option in _TARGETS:
            if kind == task and (targets := run_settings.get(key)):
                settings[option] = (targets,) if isinstance(targets, str) else tuple(targets)
    return {key: value for key, value in settings.items() if value is not None}
