"""Work that a run has done so far, kept so that the same command goes on after a failure or a kill.

    .etl-work-{owner}/              beside the entities, or in etl.work_path; one for each place of entities
        journal.json                what the work is for; its token
        files-{token}/
            plan.json encode.json   a finished step: when, how long, its files, its result
            ...                     intermediate files
    .entities.tmp-{token}/          beside where each output goes: what there is of it

The next run goes on after the last step whose files are all there, with the same checksums. Where anything
that the work depends on has changed it starts from nothing, and removes what was left. So it is after bad
input, which no second run gets over. A run that ends well removes the work.
"""

import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from typing import Any, Self, TypeVar

from distributed import Client
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from etl.config import EtlConfig
from etl.run.outputs import output_uris
from etl.steps import spill
from etl.steps.layout import Folders
from graphmill import storage
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.errors import BadInputError, FormatError, LockedError, NotFoundError, StorageError
from graphmill.run import record
from graphmill.run.lock import Claim
from graphmill.storage import Checksums
from graphmill.storage.checksums import of_bytes

_JOURNAL = "journal.json"

Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)

# Steps in their order, and the steps whose intermediate files are read when it goes on after them.
STEPS = {
    "plan": (),
    "encode": ("encode",),
    "index": ("encode", "index"),
    "translate": ("translate",),
    "merge": (),
}

log = logging.getLogger("graphmill")


class Journal(BaseModel):
    """Names the run that the work belongs to."""

    made_from: dict[str, Any]
    token: str = Field(pattern="^[0-9a-f]{12}$")
    """No other work has it: tasks of a run that is thought dead do not write here."""


class Step(BaseModel):
    """A finished step."""

    finished: datetime
    seconds: float
    checksums: Checksums
    """Checksums of intermediate files, by name."""
    sizes: dict[str, int]
    """Bytes of the files in the outputs' folders, by URI."""
    result: str
    """JSON."""
    checksum: str = ""
    """Checksum of all other fields."""

    def sealed(self) -> Self:
        """The same with its checksum."""
        text = self.model_copy(update={"checksum": ""}).model_dump_json()
        return self.model_copy(update={"checksum": of_bytes(text.encode())})


class Work:
    """The work of one run, and of those before it that did not end."""

    def __init__(self, client: Client, uri: str, token: str, config: Config) -> None:
        self._client = client
        self._steps: dict[str, Step] = {}
        self._checksums: Checksums = {}
        # On HDFS closing a file takes half a second, in which the next step begins.
        self._notes = ThreadPoolExecutor(1)
        self._note: Future[None] | None = None
        splits = config.section(EtlConfig).splits()
        # Named as `storage.recover` knows what is unfinished.
        self.outputs = {
            output: storage.join(storage.parent(output), f".{storage.name(output)}.tmp-{token}")
            for output in output_uris(config)
        }
        entities, *others = self.outputs.values()
        self.folders = Folders(
            storage.join(uri, f"files-{token}"),
            entities,
            dict(zip(splits, others, strict=False)),
            others[len(splits)] if len(others) > len(splits) else None,
        )

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each finished step, in whichever run it was done."""
        return {name: step.seconds for name, step in self._steps.items()}

    def step(self, name: str, kind: Any, do: Callable[[], Result]) -> Result:
        """The result of a step, of type `kind`; it is done now if no run before has finished it.

        Raises:
            FormatError: a run before has finished it, and left another kind of result.
        """
        adapter: TypeAdapter[Result] = TypeAdapter(kind)
        if name in self._steps:
            try:
                return adapter.validate_json(self._steps[name].result)
            except ValidationError as error:
                raise FormatError(
                    f"{self._step_uri(name)}: expected the result of step {name}, found something else "
                    f"({error.error_count()} values); start again, from nothing"
                ) from error
        start = time.monotonic()
        self._checksums = {}
        result = do()
        self._steps[name] = Step(
            finished=datetime.now().astimezone(),
            seconds=round(time.monotonic() - start, 3),
            checksums=self._checksums,
            sizes=self._sizes(),
            result=adapter.dump_json(result).decode(),
        )
        self.wait()
        text = self._steps[name].sealed().model_dump_json()
        self._note = self._notes.submit(storage.write_text, self._step_uri(name), text)
        return result

    def wait(self) -> None:
        """Wait until the journal has all finished steps."""
        if self._note is not None:
            self._note.result()

    def close(self) -> None:
        """Write no more."""
        self._notes.shutdown()

    def run_tasks(
        self, function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], **told: str
    ) -> list[Result]:
        """Run tasks on the cluster, and remember the files that they write."""
        done = run_tasks(self._client, spill.Tracked(function), arguments, **told)
        for _, written in done:
            self._checksums |= {storage.name(uri): checksum for uri, checksum in written.items()}
        return [result for result, _ in done]

    def find_steps(self) -> tuple[str, str] | None:
        """Find the steps that need not be done again, and forget the others; the last one, and its time."""
        for name in STEPS:
            step = _read(Step, self._step_uri(name))
            if step is None or step.sealed() != step:
                break
            self._steps[name] = step
        sizes = self._sizes()
        while self._steps and not self._goes_on_after(next(reversed(self._steps)), sizes):
            self._steps.popitem()
        for name in STEPS:
            if name not in self._steps:
                storage.delete(self._step_uri(name))
        last = next(reversed(self._steps), None)
        return (last, f"{self._steps[last].finished.astimezone():%H:%M}") if last else None

    def make_folders(self) -> None:
        """Make all folders, those that are there excepted."""
        for uri in (self.folders.work, *self.outputs.values()):
            storage.make_dir(uri)

    def _goes_on_after(self, name: str, sizes: dict[str, int]) -> bool:
        if not self._steps[name].sizes.items() <= sizes.items():
            log.info("etl: files that step %s wrote are gone; doing it again", name)
            return False
        checksums = {
            storage.join(self.folders.work, storage.name(file)): checksum
            for needed in STEPS[name]
            for file, checksum in self._steps[needed].checksums.items()
        }
        intact = run_tasks(
            self._client,
            spill.is_intact,
            list(checksums.items()),
            description="etl: compare intermediate files",
            unit="files",
        )
        if not all(intact):
            uri = list(checksums)[intact.index(False)]
            log.warning("etl: %s is damaged or gone; not going on after step %s", uri, name)
        return all(intact)

    def _step_uri(self, name: str) -> str:
        return storage.join(self.folders.work, f"{name}.json")

    def _sizes(self) -> dict[str, int]:
        entries = [entry for uri in self.outputs.values() for entry in storage.list_dir(uri, recursive=True)]
        return {entry.uri: entry.size_bytes for entry in entries if not entry.is_dir}


@contextmanager
def kept_work(client: Client, config: Config, made_from: dict[str, Any], claim: Claim) -> Iterator[Work]:
    """The work to do or to go on with; the outputs get their names at the end.

    Args:
        client: of the cluster.
        config: the configuration.
        made_from: all that the work depends on, and how it is cut: JSON types.
        claim: checked before the work is removed: by then it may be a successor's.
    """
    uri, outputs = _work_uri(config), output_uris(config)
    for output in outputs:
        storage.check_moves_folders(output)
    made_from = made_from | {"outputs": outputs, "version": version("graphmill")}
    work = _found(client, uri, config, made_from) or _started(client, uri, config, made_from)
    try:
        with closing(work):
            yield work
            work.wait()
        for output, folder in reversed(work.outputs.items()):
            storage.commit_directory(folder, output)
    except (BadInputError, NotFoundError):
        with suppress(StorageError, LockedError):  # the first error is the one to tell
            claim.check()
            _remove(uri, outputs)
        raise
    except BaseException:
        log.info("etl: what is done stays in %s; the same command goes on from there", uri)
        raise
    storage.delete(uri)


def _found(client: Client, uri: str, config: Config, made_from: dict[str, Any]) -> Work | None:
    """The work of a run that did not end, if this run may go on with it."""
    journal = _read(Journal, storage.join(uri, _JOURNAL))
    if journal is None:
        return None
    if changes := record.changes(journal.made_from, made_from):
        log.info("etl: starts from nothing, since this has changed: %s", "; ".join(changes[:5]))
        return None
    work = Work(client, uri, journal.token, config)
    for output, folder in work.outputs.items():
        storage.recover(output, keep=folder)
    last = work.find_steps()
    if last is None:
        log.info("etl: starts from nothing, since the last run left no step to go on after")
        return None
    log.info("etl: goes on after step %s, finished at %s", *last)
    work.make_folders()
    return work


def _started(client: Client, uri: str, config: Config, made_from: dict[str, Any]) -> Work:
    """New work, in the place of any that there was."""
    _remove(uri, output_uris(config))
    journal = Journal(made_from=made_from, token=uuid.uuid4().hex[:12])
    work = Work(client, uri, journal.token, config)
    work.make_folders()
    storage.write_text(storage.join(uri, _JOURNAL), journal.model_dump_json(indent=1))
    return work


def _work_uri(config: Config) -> str:
    etl = config.section(EtlConfig)
    entity_uri = storage.absolute(config.entity_path)
    root = storage.absolute(etl.work_path or storage.parent(entity_uri))
    # The name says whose it is: runs with other outputs may share the work path.
    owner = hashlib.sha256(entity_uri.encode()).hexdigest()[:12]
    return storage.join(root, f".etl-work-{owner}")


def _remove(uri: str, outputs: Sequence[str]) -> None:
    storage.delete(uri)
    for output in outputs:
        storage.recover(output)


def _read(model: type[Model], uri: str) -> Model | None:
    """Content of the file; None if there is none, or if it is damaged."""
    if not storage.exists(uri):
        return None
    try:
        return model.model_validate_json(storage.read_bytes(uri))
    except (ValidationError, StorageError) as error:
        log.warning("etl: %s cannot be read, and is left out: %s", uri, error)
        return None
