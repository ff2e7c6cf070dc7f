"""Where a run of training starts: the counts, the schedule, the version and the model of its checkpoint."""

import copy

import torch

from graphmill.config import Config
from graphmill.formats import entity_counts, pbg_checkpoint
from graphmill.run.lock import NO_CLAIM, Claim
from graphmill.storage import Checksums
from train.config import TrainConfig
from train.edges import schedule, seeds
from train.model.model import Model
from train.model.optimizer import Adagrad
from train.step.runtime import device_of
from train.tables.warm_start import WarmStart


class Start:
    """What every process that trains has to know.

    Attributes:
        device: where it trains.
        num_rows: of each partition of each type.
        num_dynamic: number of dynamic relations; None with static ones.
        version: the committed version of the checkpoint.
        warm_start: the checkpoint at init_path, while there is no version yet.
        claim: what is checked before a file of the checkpoint is written.
        checksums: of the files that this process writes, by URI.
    """

    def __init__(
        self, config: Config, plan: schedule.Schedule | None = None, claim: Claim = NO_CLAIM
    ) -> None:
        self.config = config
        self.claim = claim
        self.device: torch.device = device_of(config)
        partitions = {name: entity.num_partitions for name, entity in config.entities.items()}
        self.num_rows = entity_counts.read_counts(config.entity_path, partitions)
        self.num_dynamic = (
            entity_counts.read_relation_count(config.entity_path) if config.dynamic_relations else None
        )
        self.schedule = plan or schedule.plan(config)
        self.version = pbg_checkpoint.read_version(config.checkpoint_path)
        self.checksums: Checksums = {}
        warm = not self.version and config.init_path
        self.warm_start = WarmStart(config, warm) if warm else None

    def on_host(self) -> "Start":
        """The same start, for what reads and writes files beside a device."""
        other = copy.copy(self)
        other.device = torch.device("cpu")
        return other

    def load_model(self) -> tuple[Model, Adagrad]:
        """Relation parameters and their optimizer: of the checkpoint, of init_path, or new."""
        config = self.config
        model = Model(
            config,
            self.num_dynamic,
            relation_init=config.section(TrainConfig).relation_init,
            seed=seeds.derived(config.seed, "relations"),
        )
        lr = config.lr if config.relation_lr is None else config.relation_lr
        if self.warm_start:
            return model.to(self.device), self.warm_start.load_model(model, lr)
        optimizer_state = None
        if self.version:
            uri = pbg_checkpoint.model_uri(config.checkpoint_path, self.version)
            state, optimizer_state, ended = pbg_checkpoint.read_model(config.checkpoint_path, self.version)
            model.load_state(state, uri)
            self.schedule.check_resumed(ended, self.version)
        adagrad = Adagrad(model.to(self.device).parameters, lr)
        if optimizer_state:
            adagrad.load_state_dict(optimizer_state, uri)
        return model, adagrad

    def num_parameters(self, model: Model) -> int:
        """Numbers that training moves: all embeddings, all parameters of the model."""
        rows = sum(sum(counts) * self.config.entity_dimension(name) for name, counts in self.num_rows.items())
        return rows + sum(value.numel() for value in model.parameters.values())
