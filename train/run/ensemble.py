"""An ensemble: models that are trained apart and joined, as their scores add. Without torch.

    checkpoint_path/
      ...                   the joined checkpoint, of as many times the dimension as there are members
      members/{number}/     the checkpoint of a member, as a run of one model would write it
      members/joined.json   {version, members}: the joined version, and the members' versions that are in it

Members stay: more epochs continue them, and they are joined again as the next version.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config import Config
from graphmill.run import seeds
from train.tables.given_rows import folder_of

FOLDER = "members"
RECORD = "joined.json"

_SUMS = ("num_edges", "num_parameters", "step_seconds")
_OF_MEMBER = ("version", "num_edges", "loss", "total_seconds", "best_epoch")


def members_of(config: Config) -> list[Config]:
    """Configurations of the members; the only model of a configuration without an ensemble is its own."""
    if config.train.ensemble == 1:
        return [config]
    return [_member(config, number) for number in range(config.train.ensemble)]


def _member(config: Config, number: int) -> Config:
    one = config.train.model_copy(update={"ensemble": 1}).with_given_at(folder_of(config))
    changes: dict[str, Any] = {
        "checkpoint_path": _folder(config.checkpoint_path, number),
        "output": None,  # curves go beside the member's checkpoint
    }
    if number:
        changes["seed"] = seeds.derived(config.seed, "member", number)
    if config.init_path and storage.is_dir(storage.join(config.init_path, FOLDER)):
        changes["init_path"] = _folder(config.init_path, number)
    return config.with_section(one).model_copy(update=changes)


def _folder(checkpoint_path: str, number: int) -> str:
    return storage.join(checkpoint_path, FOLDER, str(number))


def is_joined(config: Config) -> bool:
    """Tell whether the committed version holds those of all members, as far as they have any."""
    uri = storage.join(config.checkpoint_path, FOLDER, RECORD)
    state = _state(config, pbg.read_version(config.checkpoint_path))
    return not all(state["members"]) or (storage.exists(uri) and storage.read_json(uri) == state)


def record(config: Config, version: int) -> None:
    """Record what `version` will hold, before it is committed."""
    uri = storage.join(config.checkpoint_path, FOLDER, RECORD)
    storage.write_json(uri, _state(config, version))


def figures(config: Config, first_version: int, trained: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of the run: sums, a line for each member, and else those of the first member."""
    members: list[dict[str, Any]] = []
    for member, own in zip(members_of(config), trained, strict=True):
        ranked = {ranking["epoch"]: ranking["mrr"] for ranking in own.get("validation", ())}
        best = {"validation_mrr": ranked[own["best_epoch"]]} if ranked else {}
        members.append({"seed": member.seed} | {key: own[key] for key in _OF_MEMBER if key in own} | best)
    version = pbg.read_version(config.checkpoint_path)
    return {
        **trained[0],
        **{key: sum(own[key] for own in trained) for key in _SUMS},
        "first_version": first_version,
        "version": version,
        "members": members,
    }


def _state(config: Config, version: int) -> dict[str, Any]:
    of_members = [pbg.read_version(member.checkpoint_path) for member in members_of(config)]
    return {"version": version, "members": of_members}
