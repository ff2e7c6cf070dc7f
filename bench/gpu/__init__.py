"""Training and ranking on a GPU, against the floor of the device for the same work; docs/how_to/gpu.md.

Every case is a separate process: a case that fails is reported, and the others continue. `--case NAME` runs
one case, in a few minutes. Graphs are generated on the device. Without a GPU, `--rows 2000` runs the same
commands on the CPU at that size.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.gpu import buffer, device, evaluation, fb15k, kernels, throughput
from bench.gpu.device import Machine
from bench.pbg import REPOSITORY
from bench.report import Report
from bench.setting import Setting
from graphmill.errors import ConfigError

TIMEOUT_S = 900
Measure = Callable[[Setting, Machine, Report], None]

CASES: dict[str, Measure] = {
    "zipf-100-100": partial(throughput.measure, throughput.zipf(100, 100, 100_000_000, goal=100e6)),
    "zipf-100-1000": partial(throughput.measure, throughput.zipf(100, 1000, 50_000_000, goal=50e6)),
    "zipf-400-1000": partial(throughput.measure, throughput.zipf(400, 1000, 20_000_000, goal=20e6)),
    "twitter": partial(throughput.measure, throughput.TWITTER),
    "buffer": buffer.measure,
    "evaluate": evaluation.measure,
    "fb15k237": partial(fb15k.measure, fb15k.FAST),
    "fb15k237-best": partial(fb15k.measure, fb15k.BEST),
    "kernels": kernels.measure,
}


def run(setting: Setting) -> Iterator[Report]:
    """Run the cases; the report of each.

    Raises:
        ConfigError: there is no GPU, or no such case.
        click.ClickException: a case has failed; raised at the end.
    """
    device.find(setting)
    names = setting.cases or tuple(CASES)
    if unknown := sorted(set(names) - CASES.keys()):
        raise ConfigError(f"--case {unknown[0]}: expected one of {', '.join(CASES)}")
    failed = []
    for name in names:
        report = one(name, setting) if len(names) == 1 else _apart(name, setting)
        failed += [name] * (report.failed is not None)
        yield report
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(names)} cases failed: {', '.join(failed)}")


def one(name: str, setting: Setting) -> Report:
    """Measure one case in this process."""
    machine = device.find(setting)
    report = Report(f"gpu {name}", f"{name}: {machine.name}")
    machine.add_rates(report)
    try:
        CASES[name](setting, machine, report)
    except Exception as error:
        report.failed = f"{type(error).__name__}: {error}"
    return report


def _apart(name: str, setting: Setting) -> Report:
    """Measure one case in a separate process."""
    setting.work.mkdir(parents=True, exist_ok=True)
    path = setting.work / f"{name}.json"
    options: list[Any] = ["--case", name, "--json", path, "--work", setting.work]
    options += ["--rows", setting.num_rows] if setting.num_rows else []
    options += ["--triples", setting.triples] if setting.triples else []
    options += ["--pbg-python", setting.pbg_python] if setting.pbg_python else []
    options += [] if setting.peers else ["--no-peers"]
    command = [sys.executable, "-m", "bench", "gpu", *map(str, options)]
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        return _read(name, path, done.stderr.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return Report(f"gpu {name}", name, failed=f"took longer than {TIMEOUT_S} s")
    finally:
        path.unlink(missing_ok=True)


def _read(name: str, path: Path, last_words: str) -> Report:
    if not path.exists():
        return Report(f"gpu {name}", name, failed=last_words or "ended without a message")
    found = json.loads(path.read_text())["reports"][f"gpu {name}"]
    return Report(f"gpu {name}", **{key: value for key, value in found.items() if key != "started"})
