"""The way of a RecIS user, as docs/how_to/coming_from_recis.md has it: its commands, and what they leave.

RecIS itself installs from no registry: a reader by the rules of its C++ reader takes its place.
"""

from pathlib import Path

import pyarrow.parquet as pq
import torch

import graphmill
from tests import REPOSITORY
from tests.forked import Forks
from tests.graphmill.checkpoints.recis_rules import RecisReader
from tests.remap.graph import read_rows
from tests.whole.test_docs import run_page

PAGE = REPOSITORY / "docs/how_to/coming_from_recis.md"


def test_a_user_of_recis_gets_vectors_and_returns(tmp_path: Path, forked: Forks) -> None:
    """From hashed ids to parquet by raw id; trained further with a new id; and back into RecIS' tables."""
    run_page(PAGE, tmp_path, forked)
    hashes = pq.read_table(tmp_path / "all-customers.parquet")
    id_of = dict(zip(hashes["name"].to_pylist(), hashes["hash"].to_pylist(), strict=True))
    products = [9001, 9002, -9003, 9004]

    before = RecisReader(tmp_path / "recis-run" / "ckpt_200")
    known = {("customer", name): number for name, number in id_of.items() if name != "donald"}
    known |= {("product", str(number)): number for number in products}
    found = read_rows(tmp_path / "by-raw-id" / "embeddings")
    assert found == {(kind, name): before.table(kind)[each].tolist() for (kind, name), each in known.items()}

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
