"""Making of lists of similar candidates, as Dask tasks that go on after a kill.

centers by k-means of a sample  ->  blocks of candidates, each sorted by list  ->  parts, each some lists

Shapes: L lists, B blocks, N candidates of a block or a part, D dimension.
"""

import logging
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from distributed import Client

from graphmill import storage
from graphmill.ask.predict import lists
from graphmill.ask.predict.lists import Lists, Numbers
from graphmill.ask.predict.search import Asked
from graphmill.cluster import run_tasks
from graphmill.errors import optional
from graphmill.run.fingerprints import changes
from graphmill.sorted_arrays import distinct

ROWS_PER_LIST = 64  # of the sample
ROUNDS = 10
SEED = 1234

log = logging.getLogger("graphmill")


def num_lists_for(num_candidates: int, dimension: int, memory_bytes: int) -> int:
    """Number of lists: a power of two near the root of `num_candidates`, whose sample fits in memory."""
    fit = memory_bytes // 2 // (8 * dimension * ROWS_PER_LIST)
    wished = 1 << round(np.log2(max(num_candidates, 1) ** 0.5))
    return int(max(1, min(wished, fit)))


def make_lists(
    asked: Asked, num_lists: int, folder: str, made_from: Mapping[str, Any], client: Client
) -> Lists:
    """Return the lists in a folder, made anew or completed unless they are finished."""
    finished = lists.open_lists(folder, made_from)
    if finished is not None:
        log.info("predict: the lists in %s are used again", folder)
        return finished
    check_faiss()
    _begin(folder, made_from)
    if not storage.exists(lists.uri_of(folder, lists.CENTERS)):
        run_tasks(client, write_centers, [(asked, num_lists, folder)], description="finding lists")
    table, rows = asked.candidates, asked.sizes.candidate_rows
    spans = pairwise(table.first.tolist())  # no block spans partitions
    first = [*(number for start, stop in spans for number in range(start, stop, rows)), table.num_entities]
    counts_BL = run_tasks(
        client,
        write_block,
        [(asked, folder, block, *bounds) for block, bounds in enumerate(pairwise(first))],
        description="sorting candidates",
        unit="blocks",
    )
    first_L1 = np.concatenate([[0], np.cumsum(np.sum(counts_BL, axis=0))])
    parts = _part_first(first_L1, rows)
    num_blocks = len(counts_BL)
    arguments = [(folder, part, num_blocks, *bounds) for part, bounds in enumerate(pairwise(parts))]
    run_tasks(client, write_part, arguments, description="writing lists", unit="parts")
    base_BL = first_L1[:-1] + np.cumsum([np.zeros_like(counts_BL[0]), *counts_BL[:-1]], axis=0)
    run_tasks(
        client,
        write_places,
        [(folder, block, base_L) for block, base_L in enumerate(base_BL)],
        description="numbering candidates",
        unit="blocks",
    )
    with storage.create_hdf5(lists.uri_of(folder, lists.SIZES)) as hdf5:
        lists.write(hdf5, first=first_L1)
    content = {"block_first": first, "part_first": parts}
    storage.write_json(storage.join(folder, lists.LISTS), content)
    storage.delete(storage.join(folder, lists.BLOCKS))
    return Lists(folder, tuple(first), tuple(parts))


def check_faiss() -> Any:
    """Import faiss."""
    return optional(
        "faiss",
        "predict: approximate answers need faiss, which is not installed: pip install "
        "'graphmill[neighbors]', or say --exact",
    )


def _begin(folder: str, made_from: Mapping[str, Any]) -> None:
    """Keep what a killed run has made from the same; delete lists of something else, and say so."""
    uri = storage.join(folder, lists.MADE_FROM)
    if storage.exists(uri):
        differences = changes(storage.read_json(uri), made_from)
        if not differences:
            storage.sweep(folder)
            return
        some = ", ".join(differences[:3])
        log.warning("predict: the lists in %s are of something else (%s), and are made anew", folder, some)
    storage.delete(folder)  # the caller has checked that it holds lists alone
    storage.make_dir(folder)
    storage.write_json(uri, made_from)


def _part_first(first_L1: Numbers, rows: int) -> list[int]:
    """The lists at which parts begin, and their number: a part has at most so many rows, or one list."""
    firsts, num_lists = [0], len(first_L1) - 1
    while firsts[-1] < num_lists:
        start = firsts[-1]
        stop = int(np.searchsorted(first_L1, first_L1[start] + rows, side="right")) - 1
        firsts.append(min(max(stop, start + 1), num_lists))
    return firsts


def write_centers(asked: Asked, num_lists: int, folder: str) -> None:
    """Find the centers by k-means of a sample of the candidates; a Dask task."""
    faiss = check_faiss()
    num_rows, wanted = asked.candidates.num_entities, num_lists * ROWS_PER_LIST
    numbers = distinct(np.linspace(0, num_rows - 1, min(wanted, num_rows)).astype(np.int64))
    sample_ND = asked.made_candidates(numbers)
    means = faiss.Kmeans(
        sample_ND.shape[1],
        num_lists,
        niter=ROUNDS,
        seed=SEED,
        min_points_per_centroid=1,
        max_points_per_centroid=ROWS_PER_LIST + 1,
    )
    means.train(sample_ND)
    with storage.create_hdf5(lists.uri_of(folder, lists.CENTERS)) as hdf5:
        lists.write(hdf5, centers=np.asarray(means.centroids, np.float32).reshape(num_lists, -1))


def write_block(asked: Asked, folder: str, block: int, start: int, stop: int) -> Numbers:
    """Write the candidates start..stop by list; return how many each list has, [L]. A Dask task."""
    uri = lists.uri_of(folder, lists.BLOCK, block)
    if storage.exists(uri):
        return np.diff(lists.read(uri, "first"))
    centers_LD = lists.read(lists.uri_of(folder, lists.CENTERS), "centers")
    index = check_faiss().IndexFlatL2(centers_LD.shape[1])
    index.add(centers_LD)
    vectors_ND = asked.made_candidates(np.arange(start, stop))
    list_N = index.search(vectors_ND, 1)[1][:, 0]
    order = np.argsort(list_N, kind="stable")
    first_L1 = np.searchsorted(list_N[order], np.arange(len(centers_LD) + 1))
    with storage.create_hdf5(uri) as hdf5:
        lists.write(hdf5, vectors=vectors_ND[order], numbers=order + start, first=first_L1)
    return np.diff(first_L1)


def write_part(folder: str, part: int, num_blocks: int, first_list: int, last_list: int) -> None:
    """Write the candidates of the lists first_list..last_list, list by list; a Dask task."""
    uri = lists.uri_of(folder, lists.PART, part)
    if storage.exists(uri):
        return
    firsts = [lists.read(lists.uri_of(folder, lists.BLOCK, block), "first") for block in range(num_blocks)]
    bounds = [first_L1[first_list : last_list + 1] for first_L1 in firsts]
    num_rows = sum(int(bound[-1] - bound[0]) for bound in bounds)
    dimension = lists.read(lists.uri_of(folder, lists.CENTERS), "centers").shape[1]
    written = np.cumsum([0, *np.sum([np.diff(bound) for bound in bounds], axis=0)])[:-1]  # of each list
    with storage.create_hdf5(uri) as hdf5:
        if last_list - first_list > 1:  # fits in memory; a single list is copied block by block
            vectors_ND, numbers = np.empty((num_rows, dimension), np.float32), np.empty(num_rows, np.int64)
        else:
            vectors_ND = lists.new_dataset(hdf5, "vectors", (num_rows, dimension), np.float32)
            numbers = lists.new_dataset(hdf5, "numbers", (num_rows,), np.int64)
        for block, own in enumerate(bounds):
            if own[0] == own[-1]:
                continue
            with lists.opened(lists.uri_of(folder, lists.BLOCK, block)) as source:
                rows = slice(int(own[0]), int(own[-1]))
                block_ND, block_N = source["vectors"][rows], source["numbers"][rows]
            count = np.diff(own)
            if len(count) == 1:
                there: Any = slice(int(written[0]), int(written[0] + count[0]))
            else:
                there = np.arange(len(block_N)) + np.repeat(written - (own[:-1] - own[0]), count)
            vectors_ND[there], numbers[there] = block_ND, block_N
            written = written + count
        if last_list - first_list > 1:
            lists.write(hdf5, vectors=vectors_ND, numbers=numbers)


def write_places(folder: str, block: int, base_L: Numbers) -> None:
    """Write the places of a block's candidates; the first of each list is at `base`. A Dask task."""
    uri = lists.uri_of(folder, lists.PLACES, block)
    if storage.exists(uri):
        return
    with lists.opened(lists.uri_of(folder, lists.BLOCK, block)) as hdf5:
        numbers, first_L1 = hdf5["numbers"][:], hdf5["first"][:]
    places = np.empty(len(numbers), np.int64)
    places[numbers - numbers.min()] = np.arange(len(numbers)) + np.repeat(
        base_L - first_L1[:-1], np.diff(first_L1)
    )
    with storage.create_hdf5(uri) as hdf5:
        lists.write(hdf5, places=places)
