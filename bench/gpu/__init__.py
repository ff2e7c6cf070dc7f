"""Training and ranking on a GPU, against the floor of the device for the same work; docs/benchmarks/gpu.md.

A case that fails is reported, and the others continue. With `--add`, cases that the JSON file has are kept:
the same command goes on where it was stopped. Graphs are generated on the device. Without a GPU,
`--rows 2000` runs the same commands on the CPU at that size.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import click

from bench.gpu import buffer, device, evaluation, fb15k, throughput
from bench.gpu.device import Machine
from bench.report import Report
from bench.setting import Setting
from graphmill.errors import ConfigError

CASES: Mapping[str, Callable[[Setting, Machine, Report], None]] = {
    "zipf-100-100": partial(throughput.measure, throughput.Graph(100, 100, 100_000_000, goal=140e6)),
    "zipf-100-1000": partial(throughput.measure, throughput.Graph(100, 1000, 50_000_000, goal=90e6)),
    "zipf-400-1000": partial(throughput.measure, throughput.Graph(400, 1000, 20_000_000, goal=20e6)),
    "twitter": partial(throughput.measure, throughput.TWITTER),
    "buffer": buffer.measure,
    "evaluate": evaluation.measure,
    "best": evaluation.measure_best,
    "fb15k237-defaults": partial(fb15k.measure, fb15k.DEFAULTS),
    "fb15k237-workers": partial(fb15k.measure, fb15k.WORKERS),
    "fb15k237": partial(fb15k.measure, fb15k.FAST),
    "fb15k237-best": partial(fb15k.measure, fb15k.BEST),
}


def run(setting: Setting) -> Iterator[Report]:
    """Measure the cases that are not done.

    Raises:
        ConfigError: there is no GPU, or no such case.
        click.ClickException: a case has failed; raised at the end.
    """
    has_triples = setting.triples is not None or setting.num_rows is not None
    names = setting.cases or [name for name in CASES if has_triples or not name.startswith("fb15k237")]
    if unknown := sorted(set(names) - CASES.keys()):
        raise ConfigError(f"--case {unknown[0]}: expected one of {', '.join(CASES)}")
    machine = device.find(setting)
    failed = []
    for name in names:
        if f"gpu {name}" in setting.kept:
            continue
        report = Report(f"gpu {name}", f"{name}: {machine.name}")
        machine.add_rates(report)
        try:
            CASES[name](setting, machine, report)
        except Exception as error:
            report.failed = f"{type(error).__name__}: {error}"
            failed.append(name)
        yield report
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(names)} cases failed: {', '.join(failed)}")
