"""The benchmarks: synthetic graphs, what the stopwatch says, and one benchmark end to end at a tiny size."""

import itertools
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import h5py
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

from bench import digests, floor, gpu, measure, plan
from bench.gpu import twitter
from bench.report import Report
from bench.saved import Saved
from bench.setting import Setting
from bench.synthetic import NUM_FILES, Edges, Triples, parquet_edges, triples_folder, tsv_edges
from graphmill.errors import ConfigError
from tests import REPOSITORY

SMALL = Edges(num_rows=20_000, num_ids=2_000)
TINY_TRIPLES = Triples(200, 7, 1_000, 100, 100, num_clusters=10)
ALLOCATED_BYTES = 200 << 20
# Two seconds for the samples, in steps: a machine that stands still skips one of them, not all.
TO_BE_SEEN = "import time\nfor _ in range(20): time.sleep(0.1)"


def read_parquet(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())])


def test_edge_tables_have_the_promised_shape_each_time(tmp_path: Path) -> None:
    folder, second = (parquet_edges(tmp_path / name, SMALL) for name in "ab")
    for path in folder.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
    table = read_parquet(folder)
    assert read_parquet(parquet_edges(tmp_path, Edges(SMALL.num_rows, SMALL.num_ids, seed=1))) != table
    assert len(list(folder.iterdir())) == NUM_FILES
    assert table.num_rows == SMALL.num_rows
    types = {name: (lhs, rhs) for name, lhs, rhs in SMALL.relations()}
    assert set(table["rel"].unique().to_pylist()) == set(types)
    for row in table.slice(0, 500).to_pylist():
        assert (row["lhs"].split("_")[0], row["rhs"].split("_")[0]) == types[row["rel"]]
    ids = pa.chunked_array([*table["lhs"].chunks, *table["rhs"].chunks])
    lengths = pc.min_max(pc.binary_length(ids)).as_py()
    assert (lengths["min"], lengths["max"]) == (17, 22)
    assert 0.9 * SMALL.num_ids < len(ids.unique()) <= SMALL.num_ids
    most = pc.value_counts(ids.combine_chunks()).field("counts")
    assert pc.max(most).as_py() > 20 * pc.mean(most).as_py()  # few ids take many of the edges


def test_the_text_file_has_the_rows_of_the_parquet_files(tmp_path: Path) -> None:
    path = tsv_edges(tmp_path, SMALL)
    names = pacsv.ReadOptions(column_names=["lhs", "rel", "rhs"])
    table = pacsv.read_csv(path, names, pacsv.ParseOptions(delimiter="\t"))
    assert table == read_parquet(parquet_edges(tmp_path, SMALL)).combine_chunks()


def test_a_finished_graph_is_kept_and_a_partial_one_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Edges, __: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Edges, "groups", interrupted)
        with pytest.raises(KeyboardInterrupt):
            parquet_edges(tmp_path, SMALL)
    assert not [path for path in tmp_path.rglob("*") if "parquet" in path.name]
    folder = parquet_edges(tmp_path, SMALL)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert parquet_edges(tmp_path, SMALL) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_triples_are_distinct_and_the_same_each_time(tmp_path: Path) -> None:
    folders = [triples_folder(tmp_path / name, TINY_TRIPLES) for name in "ab"]
    lines = {}
    for split in ("train", "valid", "test"):
        texts = [(folder / f"{split}.txt").read_text() for folder in folders]
        assert texts[0] == texts[1]
        lines[split] = texts[0].splitlines()
    assert {split: len(each) for split, each in lines.items()} == {"train": 1_000, "valid": 100, "test": 100}
    assert len({line for each in lines.values() for line in each}) == 1_200
    assert all(len(line.split("\t")) == 3 for line in lines["train"])


def measured(program: str) -> measure.Measured:
    return measure.run([sys.executable, "-c", program])


@pytest.mark.slow
def test_cpu_seconds_of_a_busy_process_and_of_its_child() -> None:
    busy = "import time\nwhile time.process_time() < 0.6: pass"
    assert 0.6 <= measured(busy).cpu_s < 1.2
    both = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])\n{busy}"
    assert 1.2 <= measured(both).cpu_s < 2.4
    idle = measured("import time; time.sleep(0.5)")
    assert 0 < idle.cpu_s < idle.wall_s - 0.4  # which slept for 0.5 of them


@pytest.mark.slow
def test_a_peak_between_two_samples_is_seen() -> None:
    found = measured(f"held = b'x' * {ALLOCATED_BYTES}\ndel held\n{TO_BE_SEEN}")
    assert ALLOCATED_BYTES < found.main_peak_bytes < 1.3 * ALLOCATED_BYTES
    assert found.worker_peak_bytes == 0
    assert found.total_peak_bytes >= found.main_peak_bytes


@pytest.mark.slow
def test_memory_of_workers_is_counted_apart() -> None:
    hold = f"held = b'x' * {ALLOCATED_BYTES}\nprint(flush=True)\ninput()"
    found = measured(
        "import subprocess, sys\nfrom subprocess import PIPE\n"
        f"command = [sys.executable, '-c', {hold!r}]\n"
        "both = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE) for _ in range(2)]\n"
        f"[each.stdout.readline() for each in both]\n{TO_BE_SEEN}\n"
        "[each.communicate(b'end') for each in both]"
    )
    assert found.main_peak_bytes < ALLOCATED_BYTES / 2
    assert ALLOCATED_BYTES < found.worker_peak_bytes < 1.3 * ALLOCATED_BYTES
    assert found.total_peak_bytes > 1.9 * ALLOCATED_BYTES


def test_a_failed_command_is_reported_with_its_last_lines() -> None:
    with pytest.raises(click.ClickException, match=r"(?s)ended with 3:.*no such thing"):
        measured("import sys; print('no such thing', file=sys.stderr); sys.exit(3)")


@pytest.mark.slow
def test_processes_that_a_command_leaves_end_with_it() -> None:
    sleeper = "import time; time.sleep(600)"
    found = measured(
        f"import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {sleeper!r}]).pid)\n"
        f"{TO_BE_SEEN}"
    )
    assert found.wall_s < 300
    left = int(found.stdout)
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_duckdb_imports_exactly_the_table(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install 'graphmill[bench]'")
    source, output, num_partitions = parquet_edges(tmp_path, SMALL), tmp_path / "imported", 2
    relations = SMALL.relations()
    arguments = ["1", str(num_partitions), str(source), str(output), *map(":".join, relations)]
    subprocess.run([sys.executable, "-m", "bench.duckdb_import", *arguments], cwd=REPOSITORY, check=True)
    ids: dict[tuple[str, int], list[str]] = {}
    for entity_type, part in itertools.product(("user", "item"), range(num_partitions)):
        table = pq.read_table(output / f"ids-{entity_type}-{part}.parquet").sort_by("index")
        assert table["index"].to_pylist() == list(range(len(table)))
        assert (output / f"entity_count_{entity_type}_{part}.txt").read_text() == f"{len(table)}\n"
        ids[entity_type, part] = table["id"].to_pylist()
    found = []
    for lhs_part, rhs_part in itertools.product(range(num_partitions), repeat=2):
        with h5py.File(output / f"edges_{lhs_part}_{rhs_part}.h5") as hdf5:
            for lhs, rel, rhs in zip(
                *(hdf5[name][:].tolist() for name in ("lhs", "rel", "rhs")), strict=True
            ):
                name, lhs_type, rhs_type = relations[rel]
                found.append((ids[lhs_type, lhs_part][lhs], name, ids[rhs_type, rhs_part][rhs]))
    table = read_parquet(source)
    assert sorted(found) == sorted(
        zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    )


@pytest.mark.slow
def test_the_etl_benchmark_end_to_end(tmp_path: Path) -> None:
    json_path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench", "etl", "--rows", "20000", "--no-peers", "--workers", "1"]
    arguments = ["--work", str(tmp_path / "work"), "--json", str(json_path)]
    done = subprocess.run([*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    report = json.loads(json_path.read_text())["reports"]["etl"]
    assert [row["what"] for row in report["rows"]] == ["ours", "ours", "floor: read + encode"]
    for row in report["rows"]:
        assert row["wall_s"] > 0
        assert row["M_rows_per_s"] == pytest.approx(0.02 / row["wall_s"])
    for row in report["rows"][:2]:
        assert 0 < row["stage_s"] < row["wall_s"]
        assert row["worker_peak_bytes"] > 50 << 20
    by_name = {each["ratio"]: each["value"] for each in report["ratios"]}
    ours, floor = report["rows"][1:]
    expected = ours["wall_s"] / floor["wall_s"]
    assert by_name["floor / ours per core, 0.02 M rows, whole command"] == pytest.approx(expected)
    assert "floor: read" in done.stdout
    assert not list((tmp_path / "work" / "runs").iterdir())


@pytest.mark.slow
def test_the_gpu_benchmark_runs_at_a_tiny_size(tmp_path: Path) -> None:
    setting = Setting(work=tmp_path, num_workers=1, num_rows=500, peers=False)
    for case, num_rates, last in (
        ("zipf-100-100", 2, "each gradient"),
        ("buffer", 2, "buffer to whole"),
        ("twitter-files", 1, ""),
    ):
        report = gpu.one(case, setting)
        assert report.failed is None, report.failed
        rates = [row["M_edges_per_s"] for row in report.rows if "M_edges_per_s" in row]
        assert len(rates) == num_rates
        assert all(isinstance(rate, float) and rate > 0 for rate in rates)
        assert last in str(report.ratios[-1:])
        rows = [row for row in report.rows if "share_of_floor" in row]
        for row in rows:
            share = float(row["M_edges_per_s"] or 0) / float(row["floor_M_edges_per_s"] or 1)
            assert row["share_of_floor"] == pytest.approx(share)


@pytest.mark.slow
def test_a_case_that_fails_is_reported_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ValueError("no luck")

    monkeypatch.setitem(gpu.CASES, "bad", failing)  # which the process of its own does not know
    setting = Setting(work=tmp_path, num_workers=1, num_rows=1000, cases=("bad", "evaluate"))
    reports: list[Report] = []
    with pytest.raises(click.ClickException, match="1 of 2 cases failed: bad"):
        for report in gpu.run(setting):
            reports.append(report)
    assert [report.name for report in reports] == ["gpu bad", "gpu evaluate", "gpu"]
    assert "expected one of" in str(reports[0].failed)
    assert reports[1].failed is None
    assert gpu.one("bad", setting).failed == "ValueError: no luck"
    with pytest.raises(ConfigError, match="--case worse: expected one of zipf-100-100"):
        next(gpu.run(Setting(work=tmp_path, num_workers=1, num_rows=1000, cases=("worse",))))


def test_a_second_run_measures_only_what_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = {"twitter"}

    def apart(name: str, _: Setting) -> Report:
        return Report(f"gpu {name}", name, failed="no luck" if name in fails else None)

    monkeypatch.setattr(gpu, "apart", apart)
    cases = ("twitter", "evaluate", "buffer")
    kept: dict[str, Any] = {}

    def measured_by(**own: Any) -> list[str]:
        setting = Setting(work=tmp_path, num_workers=1, num_rows=1000, cases=cases, kept=dict(kept), **own)
        names: list[str] = []
        with suppress(click.ClickException):  # of the part that fails
            for report in gpu.run(setting):
                names.append(report.name.removeprefix("gpu "))
                kept[report.name] = json.loads(json.dumps(report.as_json()))
        states = {row["what"]: row["state"] for row in kept["gpu"]["rows"]}
        assert states.keys() == gpu.CASES.keys()
        assert states["zipf-100-100"] == "not measured"
        assert states["twitter"] == ("failed: no luck" if fails else "measured now")
        assert states["buffer"] == ("measured now" if "buffer" in names else "kept")
        return names[:-1]

    assert measured_by() == list(cases)
    assert measured_by() == ["twitter"]
    fails.clear()
    assert measured_by() == ["twitter"]
    assert measured_by(again=True) == list(cases)
    monkeypatch.setattr(gpu, "code", lambda: "of another version")
    assert measured_by() == list(cases)


def test_a_part_that_takes_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TIMEOUT_S", 0)
    report = gpu.apart("evaluate", Setting(work=tmp_path, num_workers=1, num_rows=1000))
    assert report.failed == "took longer than 0 s"


def test_ten_epochs_are_added_up_from_their_parts() -> None:
    steps = Report("gpu twitter", "")
    steps.add("in order", edges=1000, seconds=20.0, share_of_floor=0.1)
    files = Report("gpu twitter-files", "")
    files.add(twitter.READ, edges=100, seconds=0.5)
    files.add(twitter.WRITTEN, seconds=6.0)
    summary = Report("gpu", "")
    twitter.ten_epochs({"gpu twitter": steps.as_json()}, summary)
    assert not summary.ratios
    twitter.ten_epochs({each.name: each.as_json() for each in (steps, files)}, summary)
    beside, apart = (float(each["value"] or 0) for each in summary.ratios)
    assert beside == 5 + 10 * 20 + 12  # half of the rows are written in 6 seconds
    assert apart == 5 + 10 * (20 + 12)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which this would measure")
def test_the_gpu_benchmark_says_that_it_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no GPU"):
        next(gpu.run(Setting(work=tmp_path, num_workers=1)))


@pytest.mark.slow
def test_saved_files_can_be_remapped(tmp_path: Path) -> None:
    saved = Saved(tmp_path, num_rows=200, num_ids=500).write()
    edges = Saved(tmp_path / "edges", num_rows=100, num_ids=50, is_edges=True).write()
    assert saved.sources != edges.sources
    setting = Setting(work=tmp_path / "work", num_workers=1)
    arguments = ["--node-id-mapping", str(saved.maps), "--node-emb-dir", str(saved.folder)]
    _, figures = setting.remap(*arguments, "--output-dir", str(tmp_path / "out"))
    assert (figures["num_rows"], figures["num_ids"]) == (200, {"user": 500})
    tables = sorted((tmp_path / "out").rglob("*.parquet"))
    floor.rewrite([str(table) for table in tables])
    for table in tables:
        again = pq.read_table(f"{table}.again")
        assert again.equals(pq.read_table(table))
        assert len(set(again["nid"].to_pylist())) == 100


def test_a_plan_counts_moves_of_partitions_and_bytes() -> None:
    assert [plan.moves(1), plan.moves(2)] == [1, 2]
    assert 56 <= plan.moves(8) < 1.3 * 56  # each pair twice; most visits swap one partition
    assert 120 <= plan.moves(16) < 1.3 * 120
    assert plan.distinct_per_edge(10, 100_000) == pytest.approx(10 / 100_000)
    assert 1.8 < plan.distinct_per_edge(1_000_000_000, 1_000) <= 2
    found = dict(plan.counts(1_000_000, 20_000, 8, 100_000, dimension=100, id_bytes=16))
    assert found["chunks"] == "10"
    assert found["partition of a type"] == "505 kB"
    assert found["work and output at the end of merge"] == "24.0 B/edge, 24 MB"


@pytest.mark.slow
def test_a_command_is_killed_in_its_middle_and_its_folders_are_measured(tmp_path: Path) -> None:
    written, program = tmp_path / "written", tmp_path / "program.py"
    program.write_text(
        "import subprocess, sys, time\n"
        f"open({str(written)!r}, 'wb').write(b'x' * {1 << 20})\n"
        "time.sleep(600)\n"
    )
    watch = measure.Watch([tmp_path], written.exists)
    found = measure.run([sys.executable, program], watch=watch)
    assert found.is_killed
    assert found.wall_s < 300
    ended = measure.run([sys.executable, "-c", TO_BE_SEEN], watch=measure.Watch([tmp_path], lambda: False))
    assert not ended.is_killed
    assert 1 << 20 <= ended.disk_peak_bytes < 2 << 20


def test_digests_are_of_what_must_stay(tmp_path: Path) -> None:
    for name, path, values in (("one", "a", [1, 2]), ("two", "b", [1, 2]), ("three", "b", [2, 1])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.attrs["path"] = path
            file["group/values"] = values
    one, two, three = (digests.content(tmp_path / f"{name}.h5") for name in ("one", "two", "three"))
    assert one == two != three
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file, found in zip(files, ({"a": "1", "b": "2"}, {"a": "1", "c": "3"}), strict=True):
        file.write_text(json.dumps(found))
        assert not digests.content(file)
    compared = CliRunner().invoke(digests.command, ["--compare", *map(str, files)])
    assert (compared.exit_code, compared.output.split()[::3]) == (1, ["b", "c", "2", "differ"])
    assert CliRunner().invoke(digests.command, ["--compare", *map(str, files[:1] * 2)]).exit_code == 0
