"""The folder of an unfinished result: a command that was killed goes on there.

.{name}.graphmill-work/     beside the folder of the result
    made_from.json          what was asked; answers to something else are deleted
    index/                  lists of candidates, unless the user names another folder
    answers/                finished files; in the end they become the result
    done/part-{number}.json     figures of each finished file
"""

import json
from collections.abc import Mapping
from typing import Any

from graphmill import storage
from graphmill.errors import ConfigError

MADE_FROM = "made_from.json"


def folder_of(to: str) -> str:
    """The folder of an unfinished result of `to`."""
    to = to.rstrip("/")
    return storage.join(storage.parent(to), f".{storage.name(to)}.graphmill-work")


def begin(to: str, made_from: Mapping[str, Any]) -> str:
    """Return the folder, with what a killed command has left there if it was asked the same."""
    storage.recover(to)
    folder = folder_of(to)
    uri = storage.join(folder, MADE_FROM)
    if storage.exists(uri):
        if storage.read_json(uri) == made_from and storage.exists(answers_of(folder)):  # not yet the result
            storage.sweep(answers_of(folder))
            storage.delete_marker(answers_of(folder))
            return folder
        storage.delete(folder)
    elif storage.exists(folder) and storage.list_dir(folder):
        raise ConfigError(f"--to: {folder} holds files, and no {MADE_FROM}; move it away")
    storage.make_dir(answers_of(folder))
    storage.make_dir(storage.join(folder, "done"))
    storage.write_text(uri, json.dumps(made_from) + "\n")
    return folder


def answers_of(folder: str) -> str:
    """The folder of finished files."""
    return storage.join(folder, "answers")


def files_of(folder: str, count: int) -> list[str]:
    """The files of answers."""
    return [storage.join(answers_of(folder), f"part-{number:05d}.parquet") for number in range(count)]


def done_uri(folder: str, number: int) -> str:
    """The figures of a finished file."""
    return storage.join(folder, "done", f"part-{number:05d}.json")


def finish(folder: str, to: str) -> None:
    """Make the answers the result, and delete the folder."""
    storage.replace_directory(answers_of(folder), to)
    storage.delete(folder)
