"""Loads an export into Qdrant, and asks it for the nearest ids of one.

python examples/load_qdrant.py FOLDER TYPE DATABASE ID

FOLDER is an export of tables (parquet, npy or arrow), DATABASE a folder (the client's own store) or the URL
of a server. Qdrant's ids are numbers, so the raw id is in the payload. pip install qdrant-client
"""

import sys

from qdrant_client import QdrantClient, models
from read_export import model_of, vectors

DISTANCES = {
    "dot": models.Distance.DOT,
    "cos": models.Distance.COSINE,
    "l2": models.Distance.EUCLID,
    "squared_l2": models.Distance.EUCLID,
}
POINTS = 1000  # of a request


def load(client: QdrantClient, folder: str, entity_type: str) -> None:
    """Load all vectors of a type into a collection of its name."""
    model = model_of(folder)
    size = model["types"][entity_type]["dimension"]
    if client.collection_exists(entity_type):
        client.delete_collection(entity_type)
    config = models.VectorParams(size=size, distance=DISTANCES[model["comparator"]])
    client.create_collection(entity_type, vectors_config=config)
    first = 0
    for ids, rows in vectors(folder, entity_type):
        for start in range(0, len(ids), POINTS):
            points = [
                models.PointStruct(id=first + number, vector=row.tolist(), payload={"id": raw_id})
                for number, (raw_id, row) in enumerate(
                    zip(ids[start : start + POINTS], rows[start : start + POINTS], strict=True), start
                )
            ]
            client.upsert(entity_type, points)
        first += len(ids)


def main(folder: str, entity_type: str, database: str, raw_id: str) -> None:
    """Load, and print the five nearest ids."""
    is_server = database.startswith(("http://", "https://"))
    client = QdrantClient(url=database) if is_server else QdrantClient(path=database)
    load(client, folder, entity_type)
    is_it = models.FieldCondition(key="id", match=models.MatchValue(value=raw_id))
    own, _ = client.scroll(entity_type, models.Filter(must=[is_it]), limit=1, with_vectors=True)
    found = client.query_points(entity_type, query=own[0].vector, limit=5, with_payload=True).points
    for point in found:
        sys.stdout.write(f"{point.payload['id']}\t{point.score:.6f}\n")
    client.close()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python examples/load_qdrant.py FOLDER TYPE DATABASE ID")
    main(*sys.argv[1:])
