"""The context of a run: configuration, counts, schedule, device, and the model that training goes on with."""

import copy
from typing import Any, Self

import torch

from graphmill.ask.model import Model
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.formats import entity_counts
from graphmill.formats.torch_files.read import mapped
from graphmill.run import seeds
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import Checksums
from train.edges.schedule import Schedule, is_delta, plan
from train.model.frozen import Frozen
from train.model.optimizer import Adagrad
from train.step.delta import Delta
from train.tables.folded_rows import first_new
from train.tables.warm_start import WarmStart

CPU = torch.device("cpu")


ModelStates = tuple[dict[str, Any], dict[str, Any]]
"""The parameters and the optimizer's state of a model, as files have them."""


def copied_states(model: Model, adagrad: Adagrad) -> ModelStates:
    """Copy the states of a model to the host's memory, where later steps do not change them."""
    states = (model.state_dict(), adagrad.state_dict())
    own, of_optimizer = (mapped(each, lambda tensor: tensor.detach().to(CPU, copy=True)) for each in states)
    return own, of_optimizer


class RunContext:
    """Settings, counts and files of a run, in every process that trains or reads its checkpoint.

    Attributes:
        device: device of the tables and the model.
        num_rows: rows of each partition of each entity type.
        num_dynamic: number of dynamic relations; None with static relations.
        num_relations: number of relations of either kind.
        version: version of the checkpoint that the run reads; 0 where there is none yet.
        warm_start: checkpoint at init_path, while there is no version yet.
        trains: whether the run adds versions to the checkpoint; else it reads the version.
        delta: choice of edges, where the run trains only those that etl has added (`train.replay`).
        claim: lock that is checked before a file of the checkpoint is written.
        checksums: checksums of the files that this process writes, by URI.
    """

    def __init__(
        self,
        config: Config,
        schedule: Schedule | None = None,
        claim: Claim = NO_CLAIM,
        *,
        device: torch.device = CPU,
        version: int | None = None,
    ) -> None:
        """Read the schedule and the committed version, unless they are given, and the counts."""
        self.config, self.claim, self.device = config, claim, device
        self.num_rows = entity_counts.read_counts(config.entity_path, config.num_partitions)
        self.num_dynamic = (
            entity_counts.read_relation_count(config.entity_path) if config.dynamic_relations else None
        )
        self.num_relations = len(config.relations) if self.num_dynamic is None else self.num_dynamic
        self.version = pbg.read_version(config.checkpoint_path) if version is None else version
        self.checksums: Checksums = {}
        warm = not self.version and config.init_path
        self.warm_start = WarmStart(config, warm) if warm else None
        self.trains = version is None
        self._schedule = schedule
        self.delta = Delta(config, first_new(config)) if self.trains and is_delta(config) else None

    @property
    def schedule(self) -> Schedule:
        """Iterations of the run; the first access opens every bucket file."""
        if self._schedule is None:
            self._schedule = plan(self.config)
        return self._schedule

    def whole(self) -> Self:
        """The same run, with one partition per type."""
        other = copy.copy(self)
        entities = {
            name: entity.model_copy(update={"num_partitions": 1})
            for name, entity in self.config.entities.items()
        }
        other.config = self.config.model_copy(update={"entities": entities})
        other.num_rows = {name: [sum(counts)] for name, counts in self.num_rows.items()}
        return other

    def on_host(self) -> Self:
        """The same context with tables in the host's memory."""
        other = copy.copy(self)
        other.device = CPU
        return other

    def load_model(self) -> tuple[Model, Adagrad]:
        """Load the model and Adagrad: of the version, else of init_path, else new."""
        config = self.config
        model = Model(
            config,
            self.num_dynamic,
            relation_init=config.train.relation_init,
            seed=seeds.derived(config.seed, "relations"),
        ).to(self.device)
        lr = config.lr if config.relation_lr is None else config.relation_lr
        adagrad = Adagrad(model.parameters, lr, Frozen.of(config).keys(model.parameters))
        if self.warm_start:
            self.warm_start.load_model(model, adagrad)
        elif self.version:
            uri = pbg.model_uri(config.checkpoint_path, self.version)
            state, optimizer_state, ended = pbg.read_model(config.checkpoint_path, self.version)
            model.load_state(state, uri)
            self.schedule.check_resumed(ended, self.version)
            if optimizer_state:
                adagrad.load_state_dict(optimizer_state, model.parameters, uri)
        return model, adagrad

    def write_model(self, states: ModelStates, version: int, path: str | None = None) -> None:
        """Write the model and its optimizer as of `version`, to the checkpoint or to another folder."""
        pbg.write_model(
            path or self.config.checkpoint_path,
            version,
            *states,
            self.config.pbg(),
            self.schedule.iteration(version - 1),
            self.checksums,
        )
