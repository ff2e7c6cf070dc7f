"""run.json, and the rule that skips finished stages; notes of what commands have made of a run.

A stage's output folders hold the marker `_SUCCESS` with a fingerprint: the settings that matter, and the
inputs. run.json keeps it too, beside the figures. A stage is finished while both equal the present one.

    results/{kind}-{digest of the folder's URI}.json    beside run.json: where a result is, and its figures

A kind is the name of the command: predict, export, features. These are no stages, and do not lock the run. So
each result has a file of its own.
"""

import hashlib
import json
import logging
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal

from distributed import Client

from graphmill import storage
from graphmill.config import Config, place_now
from graphmill.config.sections.cluster import ClusterConfig
from graphmill.display.readable import moment
from graphmill.errors import ConfigError, FormatError, GraphMillError, StorageError
from graphmill.run.fingerprints import differences
from graphmill.run.job import Job
from graphmill.run.lock import NO_CLAIM, Claim, is_abandoned
from graphmill.run.trained_with import trained_s
from graphmill.storage.redaction import redacted
from graphmill.version import __version__
from graphmill.vocab import RECORD

LIBRARIES = ("dask", "distributed", "h5py", "numpy", "pyarrow", "torch")

Observer = Callable[[str, Mapping[str, Any]], None]
"""Gets the name of a stage and its entry whenever that is written; at the end of a run "", and run.json."""

Kept = Literal["nothing", "cluster", "all"]
"""Parts of the configuration that an earlier run recorded, which stay."""

log = logging.getLogger("graphmill")


class RunRecord:
    """run.json: settings, versions, times and figures of a run.

    The file keeps the stages of earlier runs with the same output, so that it explains the whole output.
    `before` holds the metrics of the evaluation before: of this output, or of the run at init_path. With
    `kept`, an earlier run's cluster or all of its configuration stays, for later commands.

    Attributes:
        is_begun: This run has written the file.
        has_earlier: An earlier run has written the file.
    """

    def __init__(
        self,
        uri: str,
        config: Config,
        claim: Claim = NO_CLAIM,
        *,
        kept: Kept = "nothing",
        observer: Observer = lambda name, content: None,
    ) -> None:
        self.uri = uri
        self._observe = observer
        self.claim = claim
        self.is_begun = False
        storage.recover(uri)
        earlier = _with_deaths(read_record(uri) or {})
        self.has_earlier = bool(earlier)
        self._kept, self._config_before = kept, earlier.get("config", {})
        self._checkpoint_path, self._trained_s = config.checkpoint_path, trained_s(config.checkpoint_path)
        self.content: dict[str, Any] = {
            "status": "running",
            "command": sys.argv,
            "started": _now(),
            "python": platform.python_version(),
            "versions": {"graphmill": __version__} | {name: version(name) for name in LIBRARIES},
            "config": self._recorded(config),
            "stages": earlier.get("stages", {}),
            "metrics": earlier.get("metrics", {}),
            "before": earlier.get("before") or _evaluated_before(config),
        }

    def use(self, config: Config) -> None:
        """Record the configuration with the values that the data have decided."""
        self.content["config"] = self._recorded(config)

    def _recorded(self, config: Config) -> dict[str, Any]:
        before, key = self._config_before, ClusterConfig.key
        if before and self._kept == "all":
            return dict(before)
        cluster = {key: before[key]} if key in before and self._kept == "cluster" else {}
        return config.recorded() | cluster

    def stage(self, name: str) -> dict[str, Any]:
        """Return the entry of the stage `name`."""
        return dict(self.content["stages"].get(name, {}))

    def write_stage(self, name: str, entry: Mapping[str, Any]) -> None:
        """Record the entry of the stage `name`, and save; keep the metrics of the entry before."""
        if kept := _kept(self.content["stages"].get(name)):
            self.content["before"] = kept
        self.content["stages"][name] = dict(entry)
        if "metrics" in entry:
            self.content["metrics"] = entry["metrics"]
        self.save()
        self._observe(name, entry)

    def finish(self, status: str, error: str | None = None, *, workers_lost: int = 0) -> None:
        """Record the end of the run, and save; one that fails before it has trained leaves the settings."""
        has_model = self._trained_s is not None and self._trained_s == trained_s(self._checkpoint_path)
        if status == "failed" and has_model and self._config_before:
            self.content["config"] = self._config_before
        self.content |= {"status": status, "finished": _now(), "error": error, "workers_lost": workers_lost}
        self.save()
        self._observe("", self.content)

    def save(self) -> None:
        """Write run.json atomically, without the secrets of URIs."""
        self.claim.check()
        self.is_begun = True
        storage.write_text(self.uri, redacted(json.dumps(self.content, indent=1)) + "\n")


def read_record(uri: str) -> dict[str, Any] | None:
    """Read a run.json, which anybody may have written; None if there is no such file."""
    try:
        if (text := storage.read_if_there(uri)) is None:
            return None
        content: dict[str, Any] = storage.json_in(text, uri)
    except FormatError as error:
        raise FormatError(f"{error}; move it away") from error
    parts = {key: content.get(key, {}) for key in ("config", "stages", "metrics")}
    if "stages" not in content:
        raise FormatError(f"{uri}: expected the record of a run, found another's file; move it away")
    if isinstance(stages := parts["stages"], dict):
        parts |= {f"stages.{name}": entry for name, entry in stages.items()}
    for key, part in parts.items():
        if not isinstance(part, dict):
            raise FormatError(f"{uri}: {key}: expected an object, found {type(part).__name__}; move it away")
    return content


def read_run(uri: str) -> dict[str, Any]:
    """Read a run.json; empty if there is none. A run that ended without a last word has `died`."""
    content = read_record(uri) or {}
    if content.get("status") == "running" and is_abandoned(storage.parent(uri)):
        return _with_deaths(read_record(uri) or {})  # which may have its last word by now
    return content


def _with_deaths(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a run.json that nobody works on: whatever is `running` in it has died."""
    for entry in (content, *content.get("stages", {}).values()):
        if entry.get("status") == "running":
            entry["status"] = "died"
    return content


def run_of(checkpoint_path: str) -> str:
    """Return the folder of a checkpoint's run: the one above, if its run.json says so, or its own."""
    above = storage.parent(checkpoint_path)
    with suppress(GraphMillError):  # the run may be anybody's
        if config := (read_record(storage.join(above, RECORD)) or {}).get("config"):
            there = place_now(config.get("checkpoint_path"), config.get("output"), above)
            return above if there == checkpoint_path.rstrip("/") else checkpoint_path
    return checkpoint_path


def run_stage(
    name: str, job: Job, config: Config, client: Client, record: RunRecord, *, resume: bool
) -> dict[str, Any]:
    """Run one stage unless `resume` finds it finished; return its entry in run.json.

    The entry of a finished stage has `skipped` too, which is not in run.json.
    A stage that `check` refuses changes nothing. A stage with nothing to do is left out; this
    is an error without `resume`.
    """
    fingerprint = job.fingerprint(config)
    outputs = job.output_uris(config)
    if resume:
        stale = _staleness(config, record.stage(name), outputs, fingerprint)
        if not stale:
            finished_s = _finished_s(record.stage(name))
            since = f"unchanged since {'an earlier run' if finished_s is None else moment(finished_s)}"
            log.info("%s: skipped, %s%s", name, since, _compared(fingerprint))
            return record.stage(name) | {"skipped": since}
        log.info("%s: %s", name, stale)
    if nothing := job.check(config):
        if not resume:
            raise ConfigError(f"{name}: {nothing}")
        log.warning("%s: left out: %s", name, nothing)
        entry: dict[str, Any] = {"status": "left out", "reason": nothing, "metrics": {}}
        record.write_stage(name, entry)
        return entry
    record.claim.check()
    if config.output and (resume or outputs):  # else only figures are added to a finished run
        storage.delete_marker(config.output)
    for uri in outputs:
        storage.delete_marker(uri)
    entry = {"status": "running", "started": _now()}
    record.write_stage(name, entry)
    start = time.monotonic()
    try:
        figures = job.run(config, client, record.claim)
        record.claim.check()
        for uri in outputs:
            storage.write_marker(uri, fingerprint)
    except BaseException as error:
        entry |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        entry |= getattr(error, "figures", {})
        if isinstance(error, Exception) and not isinstance(error, GraphMillError):
            entry["traceback"] = traceback.format_exc()  # a defect
        with suppress(GraphMillError):  # the first error matters
            record.write_stage(name, entry)
        raise
    seconds = round(time.monotonic() - start, 3)
    entry |= {"status": "done", "finished": _now(), "seconds": seconds, "fingerprint": fingerprint} | figures
    record.write_stage(name, entry)
    log.info("%s: done in %.1f s", name, seconds)
    return entry


def is_finished(name: str, job: Job, config: Config) -> bool:
    """Tell whether a run has finished the stage `name` with the same settings and inputs."""
    entry = recorded_stage(name, config)
    return not _staleness(config, entry, job.output_uris(config), job.fingerprint(config))


def recorded_stage(name: str, config: Config) -> dict[str, Any]:
    """Read the entry of the stage `name` in the run.json of a run; empty if there is none."""
    record = read_record(config.record_uri(config.checkpoint_path)) or {}
    return dict(record.get("stages", {}).get(name, {}))


def _finished_s(entry: Mapping[str, Any]) -> float | None:
    with suppress(KeyError, TypeError, ValueError):  # run.json of another release, or changed by hand
        return datetime.fromisoformat(entry["finished"]).timestamp()
    return None


def _compared(fingerprint: Mapping[str, Any]) -> str:
    """Say by what input files are known to be the same; empty without such files."""
    states = [state for source in fingerprint.get("inputs", ()) for state in source.get("files", {}).values()]
    if not states:
        return ""
    by_content = all(isinstance(state[1], str) for state in states)
    return f"; input files by size and {'checksum' if by_content else 'time of change'}"


def _evaluated_before(config: Config) -> dict[str, Any]:
    """The metrics of the run that `init_path` is the checkpoint of, if it has a readable run.json."""
    with suppress(GraphMillError):
        if config.init_path is not None:
            record = read_record(storage.join(run_of(config.init_path), RECORD)) or {}
            return _kept(record.get("stages", {}).get("evaluate"))
    return {}


def _kept(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict) or not entry.get("metrics"):
        return {}
    keys = ("started", "split", "filtered", "itself", "metrics")
    return {key: entry[key] for key in keys if key in entry}


def _staleness(
    config: Config, entry: Mapping[str, Any], outputs: Iterable[str], fingerprint: Mapping[str, Any]
) -> str:
    recorded = entry.get("fingerprint")
    if not isinstance(recorded, Mapping):
        status = entry.get("status")
        return f"starting; the last run {status}" if status in ("failed", "died") else "starting"
    if changed := differences(config, recorded, fingerprint, _finished_s(entry)):
        more = f" (and {len(changed) - 5} more)" if len(changed) > 5 else ""
        return "running again, since this changed: " + "; ".join(changed[:5]) + more
    for uri in outputs:
        marker = storage.read_marker(uri)
        if marker is None or differences(config, marker, fingerprint, None):
            return f"running again, since {uri} is not what the last run finished"
    return ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


RESULTS = "results"


def note_result(record_uri: str, kind: str, to: str, figures: Mapping[str, Any]) -> None:
    """Write the note of a result in the folder `to`; it replaces an earlier one of this folder."""
    digest = hashlib.sha256(to.encode()).hexdigest()[:12]
    uri = storage.join(storage.parent(record_uri), RESULTS, f"{kind}-{digest}.json")
    storage.write_json(uri, {"to": to, "finished": _now(), **figures}, indent=1)


def notes_of(run_uri: str, kind: str) -> list[dict[str, Any]]:
    """Read the notes of a run, the oldest first; leaves out what is no note: a report never fails for it."""
    notes = []
    with suppress(StorageError):  # the folder is a file
        for entry in storage.list_dir(storage.join(run_uri, RESULTS)):
            if re.fullmatch(rf"{kind}-.+\.json", storage.name(entry.uri)):
                with suppress(FormatError, StorageError):
                    notes.append(storage.read_json(entry.uri))
    return sorted(notes, key=lambda noted: (str(noted.get("finished")), str(noted.get("to"))))
