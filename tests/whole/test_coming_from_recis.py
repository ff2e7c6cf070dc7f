"""The way of a RecIS user, as docs/how_to/coming_from_recis.md has it: its commands, and what they leave.

RecIS itself installs from no registry: a reader by the rules of its C++ reader takes its place.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import graphmill
from tests import REPOSITORY
from tests.forked import Forks
from tests.graphmill.checkpoints.recis_rules import RecisReader
from tests.whole.test_docs import run_page

PAGE = REPOSITORY / "docs/how_to/coming_from_recis.md"


def _by_raw_id(folder: Path, name: str) -> dict[str, list[float]]:
    table = pa.concat_tables(pq.read_table(each) for each in sorted((folder / name).glob("*.parquet")))
    return dict(zip(table["id"].to_pylist(), table["embedding"].to_pylist(), strict=True))


def test_a_user_of_recis_gets_vectors_and_returns(tmp_path: Path, forked: Forks) -> None:
    """From hashed ids to parquet by raw id; trained further with a new id; and back into RecIS' tables."""
    run_page(PAGE, tmp_path, forked)
    hashes = pq.read_table(tmp_path / "all-customers.parquet")
    id_of = dict(zip(hashes["name"].to_pylist(), hashes["hash"].to_pylist(), strict=True))
    products = [9001, 9002, -9003, 9004]

    before = RecisReader(tmp_path / "recis-run" / "ckpt_200")
    found = _by_raw_id(tmp_path / "by-raw-id" / "embeddings", "customer")
    assert {name: torch.tensor(each).tolist() for name, each in found.items()} == {
        name: before.table("customer")[id_of[name]].tolist() for name in id_of if name != "donald"
    }
    found = _by_raw_id(tmp_path / "by-raw-id" / "embeddings", "product")
    assert found == {str(each): before.table("product")[each].tolist() for each in products}

    run = graphmill.open(str(tmp_path / "bought"))
    after = RecisReader(tmp_path / "for-recis")
    assert after.table("customer").keys() == set(id_of.values())
    assert after.table("product").keys() == set(products)
    for name, each in id_of.items():
        assert after.table("customer")[each].tolist() == run.vector("customer", name).tolist()
        if name != "donald":  # trained from RecIS' vector, not from a random one
            moved = (after.table("customer")[each] - before.table("customer")[each]).abs().max()
            assert 0 < moved < 3
    for each in products:
        assert after.table("product")[each].tolist() == run.vector("product", str(each)).tolist()
    assert set().union(*(after.owned("customer", rank, 3) for rank in range(3))) == set(id_of.values())

    same = RecisReader(tmp_path / "eight-shards")
    assert same.names() == before.names()
    for slot in ("embedding", "sparse_adam_exp_avg", "sparse_adam_exp_avg_sq"):
        for table in ("customer", "product"):
            old, new = before.table(table, slot), same.table(table, slot)
            assert all(torch.equal(old[each], new[each]) for each in old)
            assert old.keys() == new.keys()
