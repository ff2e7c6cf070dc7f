"""Training and ranking on a GPU, against the floor of the device for the same work; docs/how_to/gpu.md.

Every part is a separate process of at most nine minutes. A part that fails or takes longer is reported, and
the others continue. With `--add`, parts that the JSON file has from the same code and device are kept, so the
same command goes on where it was stopped. `--case NAME` runs one part. Graphs are generated on the device.
Without a GPU, `--rows 2000` runs the same commands on the CPU at that size, and `--dry` counts what the
compiled kernels would take.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from bench import measure
from bench.gpu import buffer, device, evaluation, fb15k, kernels, throughput, twitter
from bench.gpu.device import Machine
from bench.pbg import REPOSITORY
from bench.report import Report, code
from bench.setting import Setting
from graphmill.errors import ConfigError

TIMEOUT_S = 540
Measure = Callable[[Setting, Machine, Report], None]

CASES: dict[str, Measure] = {
    "zipf-100-100": partial(throughput.measure, throughput.zipf(100, 100, 100_000_000, goal=140e6)),
    "zipf-100-1000": partial(throughput.measure, throughput.zipf(100, 1000, 50_000_000, goal=90e6)),
    "zipf-400-1000": partial(throughput.measure, throughput.zipf(400, 1000, 20_000_000, goal=20e6)),
    "twitter": partial(throughput.measure, twitter.GRAPH),
    "twitter-files": twitter.measure_files,
    "buffer": buffer.measure,
    "evaluate": evaluation.measure,
    "best": evaluation.measure_best,
    "fb15k237": partial(fb15k.measure, fb15k.FAST),
    "fb15k237-best": partial(fb15k.measure, fb15k.BEST),
    "kernels-100-100": partial(kernels.measure, 100, 100),
    "kernels-100-1000": partial(kernels.measure, 100, 1000),
    "kernels-400-1000": partial(kernels.measure, 400, 1000),
}


def run(setting: Setting) -> Iterator[Report]:
    """Run the parts that are not done; the report of each, and a table of all.

    Raises:
        ConfigError: there is no GPU, or no such part.
        click.ClickException: a part has failed; raised at the end.
    """
    if setting.dry:
        from bench.gpu import dry  # needs Triton, which torch's builds for CUDA have

        yield from dry.run()
        return
    here = device.name(setting.num_rows is not None)
    here += f", a trial with {setting.num_rows} rows" if setting.num_rows is not None else ""
    names = setting.cases or tuple(
        name for name in CASES if not name.startswith("fb15k237") or _has_triples(setting)
    )
    if unknown := sorted(set(names) - CASES.keys()):
        raise ConfigError(f"--case {unknown[0]}: expected one of {', '.join(CASES)}")
    own = {"code": code(), "device": here}
    found = dict(setting.kept)
    todo = [name for name in names if setting.again or not _is_done(found.get(f"gpu {name}", {}), own)]
    failed = []
    for name in todo:
        report = one(name, setting) if setting.cases == (name,) else apart(name, setting)
        report.about |= own
        failed += [name] * (report.failed is not None)
        found[report.name] = report.as_json()
        yield report
    yield _summary(found, todo)
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(todo)} cases failed: {', '.join(failed)}")


def _has_triples(setting: Setting) -> bool:
    return setting.triples is not None or setting.num_rows is not None


def one(name: str, setting: Setting) -> Report:
    """Measure one part in this process."""
    machine = device.find(setting)
    report = Report(f"gpu {name}", f"{name}: {machine.name}")
    machine.add_rates(report)
    try:
        CASES[name](setting, machine, report)
    except Exception as error:
        report.failed = f"{type(error).__name__}: {error}"
    return report


def _is_done(found: Mapping[str, Any], own: Mapping[str, str]) -> bool:
    """Whether a report is there, from this code on this device."""
    return "failed" not in found and all(found.get(key) == value for key, value in own.items())


def apart(name: str, setting: Setting) -> Report:
    """Measure one part in a separate process, which is killed when its time is over."""
    setting.work.mkdir(parents=True, exist_ok=True)
    path = setting.work / f"{name}.json"
    options: list[Any] = ["--case", name, "--json", path, "--work", setting.work]
    options += ["--rows", setting.num_rows] if setting.num_rows else []
    options += ["--triples", setting.triples] if setting.triples else []
    options += ["--pbg-python", setting.pbg_python] if setting.pbg_python else []
    options += [] if setting.peers else ["--no-peers"]
    command = [sys.executable, "-m", "bench", "gpu", *map(str, options)]
    end_s = time.monotonic() + TIMEOUT_S
    watch = measure.Watch(kill_when=lambda: time.monotonic() > end_s)
    try:
        done = measure.run(command, cwd=REPOSITORY, watch=watch)
        failed = f"took longer than {TIMEOUT_S} s" if done.is_killed else "ended without a message"
    except click.ClickException as error:
        failed = error.message.strip().rpartition("\n")[2]
    try:
        return Report.from_json(f"gpu {name}", json.loads(path.read_text())["reports"][f"gpu {name}"])
    except FileNotFoundError:
        return Report(f"gpu {name}", name, failed=failed)
    finally:
        path.unlink(missing_ok=True)


def _summary(found: Mapping[str, Mapping[str, Any]], todo: Sequence[str]) -> Report:
    """All parts: when each was measured, and its figures that have goals."""
    report = Report("gpu", "all parts")
    for name in CASES:
        entry = found.get(f"gpu {name}")
        state = "not measured"
        if entry is not None:
            state = f"failed: {entry['failed']}" if "failed" in entry else "kept"
            state = "measured now" if state == "kept" and name in todo else state
            report.ratios += [each | {"ratio": f"{name}: {each['ratio']}"} for each in entry["ratios"]]
        about = entry or {}
        report.add(name, state=state, code=about.get("code", ""), device=about.get("device", ""))
    twitter.ten_epochs(found, report)
    return report
