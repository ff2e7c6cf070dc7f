"""The benchmarks: synthetic graphs, what the stopwatch says, and benchmarks end to end at a tiny size."""

import json
import sys
import time
from pathlib import Path

import click
import h5py
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from bench import __main__, billion, digests, gpu, measure
from bench import remap as remapping
from bench.report import Report
from bench.setting import Setting
from bench.synthetic import Edges, parquet_edges, tsv_edges
from graphmill.errors import ConfigError
from tests.commands import Command

SMALL = Edges(num_rows=20_000, num_ids=2_000)
ALLOCATED_BYTES = 200 << 20
# Two seconds for the samples, in steps: a machine that stands still skips one of them, not all.
TO_BE_SEEN = "import time\nfor _ in range(20): time.sleep(0.1)"


def read_parquet(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())])


def test_edge_tables_are_the_same_each_time(tmp_path: Path) -> None:
    table, again = (read_parquet(parquet_edges(tmp_path / name, SMALL)).combine_chunks() for name in "ab")
    assert table == again
    ids = pa.chunked_array([*table["lhs"].chunks, *table["rhs"].chunks])
    assert 0.9 * SMALL.num_ids < len(ids.unique()) <= SMALL.num_ids
    most = pc.value_counts(ids.combine_chunks()).field("counts")
    assert pc.max(most).as_py() > 20 * pc.mean(most).as_py()  # few ids take many of the edges
    names = pacsv.ReadOptions(column_names=["lhs", "rel", "rhs"])
    assert table == pacsv.read_csv(tsv_edges(tmp_path, SMALL), names, pacsv.ParseOptions(delimiter="\t"))


@pytest.mark.slow
def test_the_cost_of_a_command_counts_its_children_and_ends_them(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 0.6: pass"
    held = f"{busy}\nheld = b'x' * {ALLOCATED_BYTES}\nprint(flush=True)\ntime.sleep(600)"
    (tmp_path / "written").write_bytes(b"x" * (1 << 20))
    program = (
        "import subprocess, sys\nfrom subprocess import PIPE\n"
        f"child = subprocess.Popen([sys.executable, '-c', {held!r}], stdout=PIPE)\n"
        f"child.stdout.readline()\nprint(child.pid)\n{busy}\n{TO_BE_SEEN}"
    )
    cost = measure.run([sys.executable, "-c", program], folders=[tmp_path])
    assert 1.2 <= cost.cpu_s < 2.4
    assert cost.main_peak_bytes < ALLOCATED_BYTES / 2
    assert ALLOCATED_BYTES < cost.worker_peak_bytes < 1.3 * ALLOCATED_BYTES < cost.total_peak_bytes * 1.3
    assert 1 << 20 <= cost.disk_peak_bytes < 2 << 20
    assert cost.wall_s < 300
    child = int(cost.stdout)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_duckdb_imports_exactly_the_table(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install 'graphmill[bench]'")
    from bench import duckdb_import

    source, output, relations = parquet_edges(tmp_path, SMALL), tmp_path / "imported", SMALL.relations
    duckdb_import.main("1", "2", str(source), str(output), *map(":".join, relations))
    ids = {path.stem: pq.read_table(path).sort_by("index")["id"].to_pylist() for path in output.glob("ids-*")}
    edges = []
    for path in output.glob("edges_*.h5"):
        _, lhs_part, rhs_part = path.stem.split("_")
        with h5py.File(path) as hdf5:
            columns = [hdf5[name][:].tolist() for name in ("lhs", "rel", "rhs")]
        for lhs, rel, rhs in zip(*columns, strict=True):
            name, lhs_type, rhs_type = relations[rel]
            edges.append(
                (ids[f"ids-{lhs_type}-{lhs_part}"][lhs], name, ids[f"ids-{rhs_type}-{rhs_part}"][rhs])
            )
    assert sorted(edges) == sorted(zip(*read_parquet(source).to_pydict().values(), strict=True))


@pytest.fixture
def here(graphmill_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are measured run in this process, but for those of `test_files_of_graphstorm`."""

    def run(_: Setting, *words: object, folders: object = ()) -> measure.Measured:
        start = time.monotonic()
        assert graphmill_command(*words) == 0
        return measure.Measured(time.monotonic() - start, 1, 1, 1, 1, "", "", 1)

    monkeypatch.setattr(Setting, "graphmill", run)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_etl_end_to_end(tmp_path: Path) -> None:
    json_path = tmp_path / "figures.json"
    words = ["etl", "--rows", "20000", "--no-peers", "--workers", "1", "--json", str(json_path)]
    result = CliRunner().invoke(__main__.command, [*words, "--work", str(tmp_path / "work")])
    assert result.exit_code == 0, result.output
    report = json.loads(json_path.read_text())["reports"]["etl"]
    ours, floor = report["rows"][1:]
    assert 0 < ours["stage_s"] < ours["wall_s"]
    assert ours["M_rows_per_s"] == pytest.approx(0.02 / ours["wall_s"])
    by_name = {ratio["ratio"]: ratio["value"] for ratio in report["ratios"]}
    expected = ours["wall_s"] / floor["wall_s"]
    assert by_name["floor / ours per core, 0.02 M rows, whole command"] == pytest.approx(expected)
    assert not list((tmp_path / "work" / "runs").iterdir())


@pytest.mark.slow
def test_files_of_graphstorm_are_remapped_and_written_again(tmp_path: Path) -> None:
    report = Report("remap", "")
    remapping.saved_job(Setting(work=tmp_path, num_workers=1), report, remapping.JOBS[1], 200)
    assert [row["k_rows_per_s"] for row in report.rows] > [0.0, 0.0, 0.0]


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_small_graph_takes_the_billion_s_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billion, "NUM_FILES", 5)
    monkeypatch.setattr(billion, "NUM_PARTITIONS", 2)
    report = billion.run(Setting(work=tmp_path, num_workers=1, num_rows=10_000))  # which checks its counts
    assert [row["what"] for row in report.rows] == ["etl", "train", "evaluate", "remap"]


@pytest.mark.slow
def test_the_gpu_benchmark_at_a_tiny_size_goes_on_after_what_is_done(tmp_path: Path) -> None:
    cases = ("zipf-100-100", "buffer", "evaluate")
    setting = Setting(work=tmp_path, num_workers=1, num_rows=500, cases=cases, kept=("gpu evaluate",))
    reports = list(gpu.run(setting))
    assert [report.name for report in reports] == ["gpu zipf-100-100", "gpu buffer"]
    for report in reports:
        rates = [row["M_edges_per_s"] for row in report.rows if "M_edges_per_s" in row]
        assert (len(rates), report.failed) == (2, None)
        assert all(isinstance(rate, float) and rate > 0 for rate in rates)
    with pytest.raises(ConfigError, match="--case worse: expected one of zipf-100-100"):
        next(gpu.run(Setting(work=tmp_path, num_workers=1, num_rows=500, cases=("worse",))))


def test_a_case_that_fails_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    setting = Setting(work=tmp_path, num_workers=1, num_rows=-500, cases=("zipf-100-100", "best"))
    reports: list[Report] = []
    with pytest.raises(click.ClickException, match="1 of 2 cases failed: zipf-100-100"):
        for report in gpu.run(setting):
            reports.append(report)
    assert [report.failed is None for report in reports] == [False, True]


def test_digests_are_of_what_must_stay(tmp_path: Path) -> None:
    for name, path, values in (("one", "a", [1, 2]), ("two", "b", [1, 2]), ("three", "b", [2, 1])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.attrs["path"] = path
            file["group/values"] = values
    one, two, three = (digests.content(tmp_path / f"{name}.h5") for name in ("one", "two", "three"))
    assert one == two != three
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file, content in zip(files, ({"a": "1", "b": "2"}, {"a": "1", "c": "3"}), strict=True):
        file.write_text(json.dumps(content))
        assert not digests.content(file)
    compared = CliRunner().invoke(digests.command, ["--compare", *map(str, files)])
    assert (compared.exit_code, compared.output.split()[::3]) == (1, ["b", "c", "2", "differ"])
    assert CliRunner().invoke(digests.command, ["--compare", *map(str, files[:1] * 2)]).exit_code == 0
