"""The tables of ids."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.ask.strings import ids as strings
from graphmill.errors import FormatError
from remap.graphstorm import id_map


@pytest.mark.slow
@given(
    ids=st.lists(st.text(max_size=8), min_size=1, max_size=40, unique=True),
    num_files=st.integers(1, 4),
    group_rows=st.integers(1, 9),
    part_rows=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_any_map_is_looked_up_right(
    tmp_path_factory: pytest.TempPathFactory,
    ids: list[str],
    num_files: int,
    group_rows: int,
    part_rows: int,
    seed: int,
) -> None:
    root = tmp_path_factory.mktemp("map")
    new = np.random.default_rng(seed).permutation(len(ids))
    (root / "t").mkdir()
    for number, part in enumerate(np.array_split(new, num_files)):
        table = pa.table({"orig": pa.array([ids[n] for n in part], pa.string()), "new": part})
        pq.write_table(table, root / f"t/part-{number}.parquet", row_group_size=group_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_map, "PART_ROWS", part_rows)
        plan = id_map.plan_map(str(root), "t", "0")
    assert sum(part.num_rows for part in plan.parts) == len(ids)
    table = id_map.open_table(plan, str(root))
    nids = np.random.default_rng(seed + 1).integers(0, len(ids), 100)
    assert table.take(nids, "x", 0).to_pylist() == [ids[n] for n in nids]
    with pytest.raises(FormatError, match=rf"x: row 7: the id is {len(ids)}"):
        table.take(np.array([0, len(ids)]), "x", 6)


@given(
    texts=st.lists(st.text(max_size=20), max_size=50),
    first=st.integers(0, 3),
    is_compiled=st.booleans(),
)
def test_what_comes_twice_is_found(texts: list[str], first: int, is_compiled: bool) -> None:
    ids = pa.array(["x"] * first + texts, pa.string())[first:]
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(strings, "library", lambda: None)
        hashes = strings.hashes_of(ids)
        suspects = strings.repeated(hashes.copy())
        assert len(suspects) == len({each for each in texts if texts.count(each) > 1})
        found = strings.first_repeated([ids[:7], ids[7:]], suspects)
    if len(set(texts)) == len(texts):
        assert found is None
    else:
        second = next(row for row, each in enumerate(texts) if each in texts[:row])
        assert found == (texts[second], texts.index(texts[second]), second)
