"""GraphStorm's saved embeddings and predictions, with files of GraphStorm and files in every odd form."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphmill.checkpoints.graphstorm import id_maps, saved_embeddings, saved_ranks
from graphmill.checkpoints.graphstorm.saved_embeddings import EmbInfo
from graphmill.checkpoints.graphstorm.saved_ranks import ResultInfo, iter_rows
from graphmill.errors import FormatError, NotFoundError
from tests import DATA
from tests.remap.saved import save


def test_golden_json() -> None:
    """The files beside are remapped by tests/remap/graphstorm/test_graphstorm.py."""
    names = ("emb", "pred_node", "pred_edge")
    emb, pred_node, pred_edge = (str(DATA / "graphstorm" / name) for name in names)
    assert saved_embeddings.read_emb_info(emb) == EmbInfo(("user", "item"), 2, {"user": 4, "item": 4})
    assert saved_ranks.read_result_info(pred_node) == ResultInfo(("user", "item"), (), 2)
    edges = (("user", "rated-by", "item"), ("item", "also_viewed", "item"))
    assert saved_ranks.read_result_info(pred_edge) == ResultInfo((), edges, 2)


def test_omitted_ids_count_up(tmp_path: Path) -> None:
    for rank, num_rows in enumerate((3, 3, 5)):
        save(tmp_path / f"user/embed-{rank:05d}.pt", np.ones((num_rows, 2), np.float32))
    ranks = saved_embeddings.list_ranks(str(tmp_path), "user", 3)
    found = [ids[0].tolist() for each in ranks for ids, _ in iter_rows(each, 100)]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10]]
    with pytest.raises(NotFoundError, match=r"embed-00003\.pt: there is no such file"):
        saved_embeddings.list_ranks(str(tmp_path), "user", 10**15)
    save(tmp_path / "user/embed-00001.pt", np.ones((4, 2), np.float32))
    message = r"embed-00000.pt: there are no embed_nids.*expected 4 rows, found 3"
    with pytest.raises(FormatError, match=message):
        saved_embeddings.list_ranks(str(tmp_path), "user", 3)


EMBED = {"embed-00000.pt": 4, "embed-00001.pt": 4}
BOTH = EMBED | {"embed_nids-00001.pt": 4}
THREE = {f"embed{nids}-{rank:05d}.pt": 4 for rank in range(3) for nids in ("", "_nids")}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({**BOTH, "embed_nids-00000.pt": 3}, r"embed_nids-00000.pt: expected 4 integers"),
        ({**BOTH, "embed_nids-00000.pt": 5}, r"embed_nids-00000.pt: expected 4 integers"),
        ({**EMBED, "embed_nids-00000.pt": 4}, r"embed_nids-00001.pt: there is no"),
        ({"embed-00000.pt": 4, "embed_nids-00000.pt": 4}, r"embed-00001.pt: there is no"),
        (THREE, r"embed-00002.pt: expected files of 2 ranks"),
        ({"embed-00000.pt": 4, "embed-0.pt": 4}, r"expected one file of that number"),
        ({}, r"user: expected embed-\*.pt files, found none"),
    ],
)
def test_files_that_contradict_each_other(tmp_path: Path, files: dict[str, int], message: str) -> None:
    for name, num_rows in files.items():
        rows = np.arange(num_rows) if "nids" in name else np.ones((num_rows, 2), np.float32)
        save(tmp_path / "user" / name, rows)
    with pytest.raises((FormatError, NotFoundError), match=message):
        saved_embeddings.list_ranks(str(tmp_path), "user", 2)


def test_dimensions_and_types_are_checked(tmp_path: Path) -> None:
    for rank, shape, asked, message in (
        (0, (2, 3), (1, 4), "expected dimension 4, found shape"),
        (1, (2, 5), (2,), r"embed-00001.pt: expected rows as .*\(2, 3\), found float32 of shape \(2, 5\)"),
        (0, (2, 3, 1), (), r"expected a tensor \[n, D\]"),
        (0, (2,), (), r"embed-00001.pt: expected rows as .*\(2,\), found float32 of shape \(2, 5\)"),
    ):
        save(tmp_path / f"user/embed-{rank:05d}.pt", np.ones(shape, np.float32))
        with pytest.raises(FormatError, match=message):
            saved_embeddings.list_ranks(str(tmp_path), "user", *asked)


EMB_INFO = [
    ('{"format": "wholegraph-binary", "emb_name": "a"}', "'wholegraph-binary', which cannot be read"),
    ('{"format": "hdf5", "emb_name": ["a"]}', "emb_dim: expected a type's name"),
    ('{"format": "hdf5", "emb_dim": 7}', "emb_dim: expected a type's name or a list of them, found 7"),
    ('{"emb_name": ["../x"]}', r"emb_name: expected a name that can be a folder's, found '\.\./x'"),
    ('{"emb_name": [""]}', "expected a name that can be a folder's"),
    ('{"emb_name": [3]}', "expected a name that can be a folder's"),
    ('{"emb_name": []}', "expected a type's name or a list"),
    ('{"emb_name": ["a", "a"]}', "expected each type once"),
    ('{"emb_name": "a", "emb_dim": {"a": -1}}', "emb_dim: expected the dimension of each type"),
    ('{"emb_name": "a", "world_size": 0}', "world_size: expected an integer from 1 on, found 0"),
    ("{", "expected a JSON object"),
    ("[" * 100_000, "expected a JSON object"),
]
RESULT_INFO = [
    ('{"etypes": [["a", "b"]]}', "expected .source type, relation, target type."),
    ('{"etypes": [["a", "../b", "c"]]}', "expected a name that can be a folder's"),
    ('{"etypes": ["abc"]}', "expected .source type"),
    ('{"ntypes": ["a/b"]}', "expected a name"),
    ('{"world_size": 2}', "expected lists ntypes or etypes"),
]


def test_hostile_json(tmp_path: Path) -> None:
    for name, read, contents in (
        ("emb_info.json", saved_embeddings.read_emb_info, EMB_INFO),
        ("result_info.json", saved_ranks.read_result_info, RESULT_INFO),
    ):
        for content, message in contents:
            (tmp_path / name).write_text(content)
            with pytest.raises(FormatError, match=message):
                read(str(tmp_path))


def test_other_spellings(tmp_path: Path) -> None:
    (tmp_path / "result_info.json").write_text('{"emb_name": ["a"], "world_size": 1}')
    assert saved_ranks.read_result_info(str(tmp_path)).entity_types == ("a",)
    assert saved_ranks.file_uri("x", "embed", 123_456) == "x/embed-123456.pt"
    (tmp_path / "emb_info.json").write_text('{"format": "pytorch", "emb_name": "_N"}')
    assert saved_embeddings.read_emb_info(str(tmp_path)) == EmbInfo(("_N",), None, {})


def test_maps_are_those_of_graphstorm(tmp_path: Path) -> None:
    batches = [pa.array(["b", "a"]), pa.array([], pa.string()), pa.array(["é"])]
    id_maps.write_raw_id_map(str(tmp_path), "user", 2, 10, batches)
    found = pq.read_table(tmp_path / "raw_id_mappings/user/part-00002.parquet")
    assert found.to_pydict() == {"orig": ["b", "a", "é"], "new": [10, 11, 12]}
    golden = sorted((DATA / "graphstorm/raw_id_mappings").rglob("*.parquet"))
    assert golden
    for path in golden:
        schema = pq.read_schema(path)
        assert schema.names == found.schema.names
        assert schema.field("new").type == found.schema.field("new").type
        assert schema.field("orig").type in (pa.string(), pa.int64())
