"""_model.json: the model behind exported vectors, for a reader who knows nothing of GraphMill.

    comparator, bias        how two vectors are compared
    types                   rows, dimension, how a vector is decoded, tables of scales and centroids
    relations               operators, sides that they transform; parameters are in _relations.parquet
    score                   formulas in numpy's words

Source: docs/how_to/export.md; docs/formats/pbg_v1.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from graphmill import storage
from graphmill.ask.export.codecs import Codec, PqCodec
from graphmill.ask.export.fitting import Source
from graphmill.ask.relation import RELATIONS, read_parameters, write_relation_parameters
from graphmill.ask.run import TrainedRun
from graphmill.model.built_in import COMPARATORS, OPERATORS, Comparator, Operator
from graphmill.storage import Checksums
from graphmill.vocab import Side

MODEL = "_model.json"
MOST_LISTED = 1000

_DECODED = {
    "float32": "x = embedding",
    "float16": "x = embedding",
    "int8": "x = embedding * scales[0] + scales[1]",
    "pq": "x = scale * centroids[code[piece], arange(D)], where piece = arange(D) * num_codes // D",
}
_WITHOUT_SCALE = "x = centroids[code[piece], arange(D)], where piece = arange(D) * num_codes // D"


def write(
    trained: TrainedRun,
    sources: Sequence[Source],
    of_codecs: Mapping[str, Mapping[str, str]],
    file_format: str,
    folder: str,
    checksums: Checksums,
) -> None:
    """Write the model and its relations' parameters; `of_codecs` has the files of each type's tables."""
    config = trained.config
    write_relation_parameters(trained, storage.join(folder, RELATIONS), checksums)
    parameters = read_parameters(trained)
    is_two_sided = config.dynamic_relations or any(f"{Side.LHS}_operators" in key for key in parameters)
    types = {
        source.entity_type: {
            "num_rows": source.table.num_entities,
            "dimension": source.table.dimension,
            **_of_codec(source.codec),
            "tables": {
                name: f"{source.entity_type}/{storage.name(uri)}"
                for name, uri in of_codecs[source.entity_type].items()
            },
        }
        for source in sources
    }
    compared = _words(COMPARATORS.get(config.comparator))
    if config.bias:
        compared += ", of a[1:] and b[1:], + a[0] + b[0]"
    is_unit = file_format == "faiss" and COMPARATORS[config.comparator].is_unit
    content = {
        "made_by": "GraphMill",
        "checkpoint_version": trained.version,
        "format": file_format,
        "comparator": config.comparator,
        "bias": config.bias,
        **({"note": "vectors have length 1"} if is_unit else {}),
        "types": types,
        "relations": _relations(trained),
        "parameters": "_relations.parquet",
        "operators": {
            name: _words(OPERATORS.get(name))
            for name in dict.fromkeys(relation.operator for relation in config.relations)
        },
        "score": {"compare(a, b)": compared} | _formulas(is_two_sided=is_two_sided),
    }
    storage.write_json(storage.join(folder, MODEL), content, checksums, indent=1, ensure_ascii=False)


def _words(entry: Operator | Comparator | None) -> str:
    return entry.words if entry else "a plug-in of the run"


def _of_codec(codec: Codec) -> dict[str, Any]:
    decoded = _DECODED[codec.precision]
    if isinstance(codec, PqCodec):
        decoded = decoded if codec.has_scale else _WITHOUT_SCALE
        return {"precision": "pq", "decode": decoded, "num_codes": codec.width}
    return {"precision": codec.precision, "decode": decoded}


def _relations(trained: TrainedRun) -> list[dict[str, str]]:
    """The first relations; all of them are in the table of parameters."""
    names = trained.relation_names[:MOST_LISTED]
    entries = [trained.config.entry(number) for number in range(len(names))]
    return [
        {"name": name, **{str(side): entry.entity_type(side) for side in Side}, "operator": entry.operator}
        for name, entry in zip(names, entries, strict=True)
    ]


def _formulas(*, is_two_sided: bool) -> dict[str, str]:
    """Formula of an edge's score; operator(x, side) takes the parameters of this side of the relation."""
    if is_two_sided:
        return {
            "rhs answers": "compare(operator(lhs, 'lhs'), rhs)",
            "lhs answers": "compare(operator(rhs, 'rhs'), lhs)",
        }
    return {"edge": "compare(lhs, operator(rhs, 'rhs'))"}
