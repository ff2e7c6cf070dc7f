"""The work folder and journal of a run: after a failure or a kill, the same command continues from them.

    .etl-work-{owner}/              beside the entities, or in etl.work_path; one per folder of entities
        journal.json                settings and inputs of the work; its token
        files-{token}/
            plan.json encode.json   a finished step: its time, duration, files and result
            ...                     intermediate files, deleted when no later step reads them
    .entities.tmp-{token}/          beside each output: the output so far

The next run continues after the last step whose files are all there, with the same checksums. If settings or
inputs have changed, the next run removes the work and starts from nothing. After bad input the work is
removed at once, since a second run would fail too. A run that succeeds removes the work.
"""

import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any, Self, TypeVar

from distributed import Client
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from etl.run.outputs import keep_trained_ids, output_uris, put, shared_uris
from etl.steps import exchange, spill
from etl.steps.exchange import Exchange
from etl.steps.spill import Shared, Value, json_of, share
from etl.steps.task_settings import Folders
from graphmill import storage
from graphmill.cluster import run_tasks
from graphmill.config import Config
from graphmill.config.sections.etl import EtlConfig
from graphmill.errors import FormatError, StorageError
from graphmill.run import fingerprints
from graphmill.run.lock import Claim
from graphmill.run.work import kept_unless_wrong
from graphmill.storage import Checksums
from graphmill.storage.checksums import of_bytes
from graphmill.version import __version__

_JOURNAL = "journal.json"
_COMPARISONS_PER_THREAD = 8
_NUM_DELETIONS = 16

Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)

# Steps in their order, and for each the steps whose intermediate files later steps read.
STEPS = {
    "plan": (),
    "encode": ("encode",),
    "partitions": ("encode",),
    "index": ("encode", "index"),
    "translate": ("translate",),
    "merge": (),
}

IDS_OF_CHUNKS = ".ids"  # of step encode, read by step index alone; half of what encode writes

log = logging.getLogger("graphmill")


class EtlJournal(BaseModel):
    """Settings and inputs that the work belongs to."""

    made_from: dict[str, Any]
    token: str = Field(pattern="^[0-9a-f]{12}$")
    """Unique, so that late tasks of a dead run do not write here."""


class EtlStep(BaseModel):
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
        """Return the same step with its checksum."""
        text = self.model_copy(update={"checksum": ""}).model_dump_json()
        return self.model_copy(update={"checksum": of_bytes(text.encode())})


class EtlWork:
    """The work of one run, and of earlier runs that this run continues."""

    def __init__(self, client: Client, uri: str, token: str, config: Config) -> None:
        self._client = client
        self._steps: dict[str, EtlStep] = {}
        self._checksums: Checksums = {}
        # Closing a file on HDFS takes half a second: the next step begins meanwhile.
        self._notes = ThreadPoolExecutor(1)
        self._note: Future[None] | None = None
        # `storage.recover` recognises unfinished folders by these names.
        self.outputs = {
            output: storage.join(storage.parent(output), f".{storage.name(output)}.tmp-{token}")
            for output in output_uris(config)
        }
        entities, *others = map(self.outputs.__getitem__, output_uris(config))  # folders may be the same
        splits = dict(zip(config.section(EtlConfig).splits(), others, strict=False))
        quarantine = others[len(splits)] if len(others) > len(splits) else None
        self.folders = Folders(storage.join(uri, f"files-{token}"), entities, splits, quarantine)

    @property
    def num_threads(self) -> int:
        """Tasks that the cluster runs at a time now."""
        return sum(self._client.nthreads().values())

    @property
    def seconds(self) -> dict[str, float]:
        """Duration of each finished step, also of steps that an earlier run finished."""
        return {name: step.seconds for name, step in self._steps.items()}

    def step(self, name: str, kind: Any, do: Callable[[], Result]) -> Result:
        """Return the result of a step, of type `kind`; do the step unless an earlier run has finished it."""
        adapter: TypeAdapter[Result] = json_of(kind)
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
        self._steps[name] = EtlStep(
            finished=datetime.now().astimezone(),
            seconds=round(time.monotonic() - start, 3),
            checksums=self._checksums,
            sizes=self._sizes(),
            result=adapter.dump_json(result).decode(),
        )
        self.wait()
        text = self._steps[name].sealed().model_dump_json()
        self._note = self._notes.submit(self._finish, name, text)
        return result

    def wait(self) -> None:
        """Wait until all finished steps are in the journal."""
        if self._note is not None:
            self._note.result()

    def close(self) -> None:
        """End the thread that writes the journal."""
        self._notes.shutdown()

    def run_tasks(
        self,
        function: Callable[..., Result],
        arguments: Sequence[tuple[Any, ...]],
        description: str,
        unit: str = "tasks",
        keep: Callable[[Result], Any] = lambda result: result,
    ) -> list[Any]:
        """Run tasks on the cluster, and record the files that they write; `keep`: see `cluster.run_tasks`."""

        def record(done: tuple[Result, Checksums]) -> Any:
            result, written = done
            self._checksums |= {storage.name(uri): checksum for uri, checksum in written.items()}
            return keep(result)

        return run_tasks(
            self._client,
            spill.Tracked(function),
            arguments,
            description=f"etl: {description}",
            unit=unit,
            keep=record,
        )

    @contextmanager
    def combined(self, exchanges: Sequence[Exchange], etl: EtlConfig) -> Iterator[None]:
        """Write the combined files of exchanges, if they have any; after the block nobody reads them."""
        for plan in exchanges:
            shared = self.share(f"exchange-{plan.name}", plan, len(plan.blocks))
            tasks = [(shared, block, etl) for block in plan.blocks]
            if tasks:
                description = "etl: combine intermediate files"
                run_tasks(self._client, exchange.combine, tasks, description=description, unit="files")
        yield
        _delete_files([plan.uri(block) for plan in exchanges for block in plan.blocks])

    def share(self, name: str, value: Value, num_tasks: int) -> Shared[Value]:
        """Return `value` as each of `num_tasks` tasks gets it; a repeated step gives the same value."""
        return share(storage.join(self.folders.work, f"{name}.shared"), value, num_tasks)

    def find_steps(self) -> tuple[str, str] | None:
        """Find the steps to keep, and delete the records of the others; return the last one and its time."""
        for name in STEPS:
            step = _read(EtlStep, self._step_uri(name))
            if step is None or step.sealed() != step:
                break
            self._steps[name] = step
        sizes = self._sizes()
        while self._steps and not self._can_continue_after(next(reversed(self._steps)), sizes):
            self._steps.popitem()
        for name in STEPS:
            if name not in self._steps:
                storage.delete(self._step_uri(name))
        if "encode" not in self._steps and self.folders.quarantine is not None:
            storage.delete(self.folders.quarantine)  # other workers would name its files otherwise
        last = next(reversed(self._steps), None)
        return (last, f"{self._steps[last].finished.astimezone():%H:%M}") if last else None

    def make_folders(self) -> None:
        """Make all folders that do not exist."""
        for uri in (self.folders.work, *self.outputs.values()):
            storage.make_dir(uri)

    def _finish(self, name: str, text: str) -> None:
        """Put a step in the journal; then delete the files that no later step reads."""
        storage.write_text(self._step_uri(name), text)
        earlier = list(STEPS)[: list(STEPS).index(name)]
        needed = self._needed_after(earlier[-1]) if earlier else {}
        unneeded = needed.keys() - self._needed_after(name).keys()
        _delete_files([storage.join(self.folders.work, storage.name(file)) for file in unneeded])

    def _needed_after(self, name: str) -> Checksums:
        """Names and checksums of the intermediate files that are read after step `name`."""
        return {
            file: checksum
            for needed in STEPS[name]
            for file, checksum in self._steps[needed].checksums.items()
            if not (name == "index" and file.endswith(IDS_OF_CHUNKS))
        }

    def _can_continue_after(self, name: str, sizes: dict[str, int]) -> bool:
        if not self._steps[name].sizes.items() <= sizes.items():
            log.info("etl: files of step %s are gone; repeating the step", name)
            return False
        needed = self._needed_after(name).items()
        checksums = {
            storage.join(self.folders.work, storage.name(file)): checksum for file, checksum in needed
        }
        files = list(checksums.items())
        num_tasks = min(len(files), _COMPARISONS_PER_THREAD * self.num_threads)
        tasks = [(dict(files[number::num_tasks]),) for number in range(num_tasks)]
        results = run_tasks(
            self._client, spill.first_damaged, tasks, description="etl: compare intermediate files"
        )
        damaged = [uri for uri in results if uri is not None]
        if damaged:
            log.warning("etl: %s is damaged or gone; cannot continue after step %s", damaged[0], name)
        return not damaged

    def _step_uri(self, name: str) -> str:
        return storage.join(self.folders.work, f"{name}.json")

    def _sizes(self) -> dict[str, int]:
        entries = [entry for uri in self.outputs.values() for entry in storage.list_dir(uri, recursive=True)]
        return {entry.uri: entry.size_bytes for entry in entries if not entry.is_dir}


@contextmanager
def kept_work(client: Client, config: Config, made_from: dict[str, Any], claim: Claim) -> Iterator[EtlWork]:
    """Begin the work, or continue the work of an earlier run; rename the outputs at the end.

    The work depends on `made_from`: settings and inputs as JSON types. The claim is checked before the work
    is removed: another run may have taken over the outputs.
    """
    uri, outputs, shared = _work_uri(config), output_uris(config), shared_uris(config)
    made_from = made_from | {"version": __version__}
    work = _unfinished(client, uri, config, made_from) or _started(client, uri, config, made_from)
    with kept_unless_wrong("etl", uri, lambda: _remove(uri, outputs), claim):
        with closing(work):
            yield work
            work.wait()
        keep_trained_ids(config, work.folders.entities)
        for output, folder in work.outputs.items():  # the ids first: without theirs, no checkpoint is asked
            (put if output in shared else storage.replace_directory)(folder, output)
    storage.delete(uri)


def _unfinished(client: Client, uri: str, config: Config, made_from: dict[str, Any]) -> EtlWork | None:
    """Return the work of an unfinished run if this run can continue it."""
    journal = _read(EtlJournal, storage.join(uri, _JOURNAL))
    if journal is None:
        return None
    if changes := fingerprints.changes(journal.made_from, made_from):
        log.info("etl: starts from nothing, because this has changed: %s", "; ".join(changes[:5]))
        return None
    work = EtlWork(client, uri, journal.token, config)
    for output, folder in work.outputs.items():
        storage.recover(output, keep=folder)
    last = work.find_steps()
    if last is None:
        log.info("etl: starts from nothing, because the last run finished no step")
        return None
    log.info("etl: continues after step %s, finished at %s", *last)
    work.make_folders()
    return work


def _started(client: Client, uri: str, config: Config, made_from: dict[str, Any]) -> EtlWork:
    _remove(uri, output_uris(config))
    journal = EtlJournal(made_from=made_from, token=uuid.uuid4().hex[:12])
    work = EtlWork(client, uri, journal.token, config)
    work.make_folders()
    storage.write_text(storage.join(uri, _JOURNAL), journal.model_dump_json(indent=1))
    return work


def _work_uri(config: Config) -> str:
    etl = config.section(EtlConfig)
    entity_uri = storage.absolute(config.entity_path)
    root = storage.absolute(etl.work_path or storage.parent(entity_uri))
    # Runs with other outputs may share the work path: the name tells them apart.
    owner = hashlib.sha256(entity_uri.encode()).hexdigest()[:12]
    return storage.join(root, f".etl-work-{owner}")


def _remove(uri: str, outputs: Sequence[str]) -> None:
    storage.delete(uri)
    for output in outputs:
        storage.recover(output)


def _delete_files(uris: Sequence[str]) -> None:
    with ThreadPoolExecutor(_NUM_DELETIONS) as pool:
        list(pool.map(storage.delete_file, uris))


def _read(model: type[Model], uri: str) -> Model | None:
    if not storage.exists(uri):
        return None
    try:
        return model.model_validate_json(storage.read_bytes(uri))
    except (ValidationError, StorageError) as error:
        log.warning("etl: %s cannot be read, and is ignored: %s", uri, error)
        return None
