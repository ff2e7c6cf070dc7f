"""No two buckets that are trained at a time share a partition; the coordinator with simulated workers."""

from collections import defaultdict
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill import storage
from graphmill.checkpoints import pbg
from graphmill.config.partitions import all_buckets
from graphmill.vocab import Bucket
from tests.train.distributed.simulated import SimulatedPool, coordinator_of, lines_of
from tests.train.graphs import make_config, relation
from train.distributed import coordinator
from train.distributed.bucket_assignment import Dynamic, Tournament, rounds_of
from train.distributed.messages import SavedFile
from train.distributed.partition_locations import PartitionLocations
from train.edges.visits import ordered_buckets, ordered_pairs

partitions = st.integers(1, 7)
seeds = st.integers(0, 2**63 - 1)
sizes = st.integers(1, 5)


def one_type(bucket):
    return {("node", bucket.lhs), ("node", bucket.rhs)}


def two_types(bucket):
    return {("user", bucket.lhs), ("item", bucket.rhs)}


KEYS = pytest.mark.parametrize("keys", [one_type, two_types])


def everything(num_lhs, num_rhs):
    return [Bucket(*pair) for pair in product(range(num_lhs), range(num_rhs))]


class Player:
    """A worker: the bucket that it trains, the one that it is promised, and its partitions."""

    def __init__(self):
        self.bucket = self.then = self.likely = None
        self.held = {}


def play(assignment, keys, num_workers, draw, *, loses_done=True):
    """Let workers take, finish and lose buckets in any order; buckets as they were committed.

    Some workers are promised their next bucket. With `loses_done` a lost worker may lose done buckets too.
    """
    players = [Player() for _ in range(num_workers)]
    done, lost, step = [], 0, 0
    while not assignment.finished:
        step += 1
        player = draw(st.sampled_from(players))
        others = [each for each in players if each is not player]
        if player.bucket is None:
            bucket = player.then or assignment.next_bucket(player.held, player.likely)
            if bucket is None:
                assert any(each.bucket is not None or each.then is not None for each in others)
                continue  # or nobody could ever go on
            player.bucket, player.then, player.likely = bucket, None, assignment.likely_after(bucket)
            player.held = {key: player.held.get(key, step) for key in keys(bucket)}
            if draw(st.booleans()):
                player.then = assignment.reserve(bucket, player.held)
            taken = keys(bucket) | (keys(player.then) if player.then else set())
            for other in filter(lambda each: each.bucket or each.then, others):
                theirs = [keys(each) for each in (other.bucket, other.then) if each]
                assert set().union(*theirs).isdisjoint(taken)
        elif lost < 3 and draw(st.booleans()):
            lost += 1
            for bucket in filter(None, (player.then, player.bucket)):
                assignment.give_back(bucket)
            if loses_done and done and not assignment.needs_files and draw(st.booleans()):
                assignment.give_back(done.pop())  # only the lost worker had its partitions
            player.bucket, player.then, player.held = None, None, {}
        else:
            assignment.commit(player.bucket)
            done.append(player.bucket)
            player.bucket = None
    return done


@pytest.mark.slow
@KEYS
@settings(max_examples=50)
@given(num_lhs=partitions, num_rhs=partitions, seed=seeds, num=sizes, from_one=st.booleans(), data=st.data())
def test_dynamic(keys, num_lhs, num_rhs, seed, num, from_one, data):
    """With `from_one` a bucket waits until one of its partitions has been trained."""
    order, loses_done = ordered_buckets("random", num_lhs, num_rhs, seed), data.draw(st.booleans())
    done = play(Dynamic(order, keys, from_one=from_one), keys, num, data.draw, loses_done=loses_done)
    assert sorted(done) == everything(num_lhs, num_rhs)
    trained = keys(done[0])
    for bucket in done if from_one and not loses_done else ():
        assert not trained.isdisjoint(keys(bucket))
        trained |= keys(bucket)


@pytest.mark.slow
@KEYS
@given(num_lhs=partitions, num_rhs=partitions, seed=seeds, num=sizes, from_one=st.booleans(), data=st.data())
def test_tournament_goes_round_by_round(keys, num_lhs, num_rhs, seed, num, from_one, data):
    order = ordered_buckets("inside_out", num_lhs, num_rhs, seed)
    rounds = rounds_of(order, keys, num, from_one=from_one)
    done, trained = play(Tournament(rounds), keys, data.draw(sizes), data.draw), set()
    for each in rounds:
        held = [key for bucket in each for key in keys(bucket)]
        if from_one and len(each) > 1:
            assert not any(trained.isdisjoint(keys(bucket)) for bucket in each)
        trained.update(held)
        assert len(held) == len(set(held))
        assert len(each) <= num
        assert sorted(done[: len(each)]) == sorted(each)
        del done[: len(each)]
    assert not done
    assert sorted(bucket for each in rounds for bucket in each) == everything(num_lhs, num_rhs)


@given(num=partitions, seed=seeds, size=sizes, random=st.randoms())
def test_in_a_tournament_workers_know_their_next_bucket(num, seed, size, random):
    """Workers keep their places as long as rounds are full, in whatever order they come."""
    rounds = rounds_of(ordered_buckets("random", num, num, seed), one_type, size, from_one=False)
    assignment, workers = Tournament(rounds), list(range(size))
    likely = dict.fromkeys(workers)
    while not assignment.finished:
        random.shuffle(workers)
        taken = {worker: assignment.next_bucket({}, likely[worker]) for worker in workers}
        if all(likely.values()):
            assert taken == likely
        likely = {worker: bucket and assignment.likely_after(bucket) for worker, bucket in taken.items()}
        for bucket in filter(None, taken.values()):
            assignment.commit(bucket)


def test_rounds_are_full():
    """A homogeneous graph of P partitions needs about P * P / size rounds; pairs are played round robin."""
    for num, size in ((4, 2), (16, 8), (8, 2)):
        rounds = rounds_of(ordered_buckets("inside_out", num, num, 1), one_type, size, from_one=False)
        assert len(rounds) <= num * num / size * 1.3 + 1
    for num in (3, 4, 5, 7, 8, 15, 16):  # one waits where the number is odd
        rounds = rounds_of(ordered_pairs("random", num, 1), one_type, num // 2, from_one=False)
        assert [len(each) for each in rounds] == [num // 2] * (num - 1 + num % 2)
    rounds = rounds_of(everything(1, 4), lambda bucket: {("item", bucket.rhs)}, 2, from_one=True)
    assert [len(each) for each in rounds] == [1] * 4  # no bucket waits for a partition of another


@given(num=partitions, seed=seeds, size=sizes, is_dynamic=st.booleans())
def test_parts_go_from_none_to_all(num, seed, size, is_dynamic):
    """Learning rates fall with them: they grow from bucket to bucket, in a round they are the same."""
    order = ordered_buckets("random", num, num, seed)
    rounds = rounds_of(order, one_type, size, from_one=False)
    assignment = Dynamic(order, one_type, from_one=False) if is_dynamic else Tournament(rounds)
    parts = []
    while (bucket := assignment.next_bucket({})) is not None:
        parts.append(assignment.part(bucket, size))
        assignment.commit(bucket)
    assert parts == sorted(parts)
    assert parts[0][0] == 0
    assert parts[-1][1] == 1
    assert all(0 <= before < after <= 1 for before, after in parts)
    if not is_dynamic:
        assert len(set(parts)) == len(rounds)


def test_a_worker_keeps_the_partitions_that_it_has():
    """A bucket that is given back is the next one."""
    assignment = Dynamic(everything(3, 3), one_type, from_one=False)
    first = assignment.next_bucket({})
    assignment.give_back(first)
    assert assignment.next_bucket({}) == first == Bucket(0, 0)
    assignment.commit(first)
    assert assignment.next_bucket({("node", 1): 1, ("node", 2): 1}) == Bucket(1, 2)
    assignment = Dynamic(everything(3, 3), two_types, from_one=False)
    taken = [assignment.next_bucket({}) for _ in range(3)]
    for bucket in taken:
        assignment.give_back(bucket)
    assert assignment.next_bucket({}) == taken[-1]


def test_buckets_of_a_worker_form_a_path():
    """It keeps the partition that came last: each leaves, and is written, after a few buckets."""
    assignment = Dynamic(everything(9, 9), one_type, from_one=False)
    bucket, held, stay, longest = assignment.next_bucket({}), {}, {}, 0
    for number in range(1, 50):
        held = {key: held.get(key, number) for key in one_type(bucket)}
        stay = {key: stay.get(key, 0) + 1 for key in held}
        longest = max(longest, *stay.values())
        then = assignment.reserve(bucket, held)
        assignment.commit(bucket)
        assert not held.keys().isdisjoint(one_type(then))
        bucket = then
    assert longest <= 6


def config_of(root, num_partitions, num_workers, bucket_assignment="dynamic", **settings):
    return make_config(
        root,
        num_partitions,
        relations=[relation("none", name=f"r{number}") for number in range(20)],
        train={"num_workers": num_workers, "bucket_assignment": bucket_assignment},
        **settings,
    )


@pytest.mark.slow
def test_workers_wait_little_for_partitions(tmp_path):
    """In virtual seconds: a bucket takes about one."""
    pool = SimulatedPool(8, progress_s=0.5)
    coordinator_of(config_of(tmp_path, 32, 8, num_epochs=1), pool).run()
    assert pool.waited_s < 0.1 * (pool.waited_s + pool.trained_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("assignment", "has_blocks"), [("dynamic", False), ("dynamic", True), ("tournament", True)]
)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), num=st.integers(3, 9), num_losses=st.integers(0, 6))
def test_lost_workers_cost_buckets_only(tmp_path_factory, assignment, has_blocks, seed, num, num_losses):
    """Each bucket, or visit of two blocks, counts once in each epoch, whenever workers are lost."""
    num_partitions = num + 3 * has_blocks
    root = tmp_path_factory.mktemp("run")
    config = config_of(root, num_partitions, 3, num_epochs=2, bucket_assignment=assignment)
    pool = SimulatedPool(3, num_losses=num_losses, seed=seed)
    assert coordinator_of(config, pool, num * has_blocks).run()["version"] == 2
    pairs = {Bucket(*pair) for pair in combinations(range(num), 2)}
    for visits in lines_of(config).values():
        if has_blocks:
            assert sorted(visits) == sorted(pairs)
        else:
            assert sorted(visits) == sorted(all_buckets(config))
    stems = pbg.versions_of(config.checkpoint_path)[2]
    assert stems == {"model"} | {f"embeddings_node_{part}" for part in range(num_partitions)}
    assert not storage.fs.list_hidden(config.checkpoint_path)


class LosesWhileWriting(SimulatedPool):
    """A worker is lost with partitions that only it has, while another one writes the shared state."""

    def _write(self, task, *, shared, **content):
        super()._write(task, shared=shared, **content)
        self._say(task, 0.0, "progress", edges=0, loss=0.0)  # the loss is noticed before the file is there
        others = [each for each in self.tasks.values() if each is not task and self._memory[each.holder]]
        if shared and self.num_published == 3:
            self._lose(others[0])


def test_a_version_has_the_shared_state_after_all_its_buckets(tmp_path):
    config, pool = config_of(tmp_path, 3, 2, num_epochs=1), LosesWhileWriting(2)
    coordinator_of(config, pool, 3).run()
    assert pool.num_published > 3
    assert storage.read_text(pbg.model_uri(config.checkpoint_path, 1)) == str(pool.num_published)


def test_files_of_older_revisions_go_and_that_of_the_commit_stays(tmp_path):
    config, key = config_of(tmp_path, 2, 2), ("node", 0)
    locations = PartitionLocations(config, 1)
    folders = [config.checkpoint_path, locations.folder(1), locations.folder(2)]
    files = [SavedFile(n, folder, min(n + 1, 2), "", is_replicated=True) for n, folder in enumerate(folders)]
    uris = [pbg.embeddings_uri(each.folder, *key, each.version) for each in files]
    for uri in uris:
        storage.write_text(uri, "")
    for each in files[1:]:
        locations.publish(each.revision, [key], "holder", "address")
        locations.saved(key, each)
    locations._storage.shutdown(wait=True)
    assert [storage.exists(uri) for uri in uris] == [True, False, True]


class LacksTwice(SimulatedPool):
    """A partition of each bucket is nowhere, then it is trained, its worker is lost, and all again."""

    def __init__(self, num_workers):
        super().__init__(num_workers)
        self._troubles = defaultdict(lambda: iter(["lacking", "lost"] * 2))  # by bucket

    def _train(self, task, *, bucket, grant, **content):
        self._trouble = next(self._troubles[tuple(bucket)], None)
        if self._trouble == "lacking":
            self._say(task, 1.0, "lacking", grant=grant)
        else:
            super()._train(task, bucket=bucket, grant=grant, **content)

    def _publish(self, task, **content):
        if self._trouble == "lost":
            self._lose(task)
        else:
            super()._publish(task, **content)


def test_a_partition_that_has_been_there_is_not_lacking_since(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator, "LACKING_S", 0.0)
    config = config_of(tmp_path, 2, 1, num_epochs=1)
    assert coordinator_of(config, LacksTwice(1)).run()["version"] == 1
