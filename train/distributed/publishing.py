"""The order in which workers publish what their buckets have changed of the shared state."""

from train.distributed.bucket_assignment import Assignment
from train.distributed.messages import ReduceGroup
from train.distributed.worker_pool import Pool, WorkerTask
from train.plan.plan import AllReduce


class Publishing:
    """The workers that wait for their turn to publish, and those that publish."""

    def __init__(self, pool: Pool, backend: AllReduce | None) -> None:
        """`backend` reduces what the workers of a round have changed; None: each pushes to the shards."""
        self._pool, self._backend = pool, backend
        self._turns: dict[str, WorkerTask] = {}  # the longest first, by name
        self._publishing: set[str] = set()
        self._members: list[str] = []  # the last workers that reduced together, and the name of their group
        self._group = ""

    def wait(self, task: WorkerTask) -> None:
        """Let a task that has trained its bucket wait for its turn."""
        task.waits_for = "turn"
        self._turns[task.name] = task

    def forget(self, task: WorkerTask) -> None:
        """Forget a task that has published, or is lost."""
        self._turns.pop(task.name, None)
        self._publishing.discard(task.name)

    def is_reducing(self, task: WorkerTask) -> bool:
        """Whether other workers need the task for what they are about to publish."""
        return self._backend is not None and task.name in self._publishing

    def may_train(self, assignment: Assignment, num_idle: int) -> bool:
        """Whether to hand out buckets. A round that reduces begins when all workers wait.

        Then a group has the same members in every run, and adds up in the same order.
        """
        if self._backend is None or num_idle == len(self._pool.tasks):
            return True
        return any(each.bucket in assignment.publish_group for each in self._pool.tasks.values())

    def go_on(self, assignment: Assignment) -> None:
        """Have workers publish: at once, or when all that a round can train is trained."""
        if not assignment.publish_group:
            for task in list(self._turns.values()):
                self._publish(task, None)
            return
        if self._publishing:
            return
        waiting = {each.bucket: each for each in self._turns.values() if each.bucket}
        group = [waiting[bucket] for bucket in assignment.publish_group if bucket in waiting]
        is_whole = len(group) == len(assignment.publish_group) or len(waiting) == len(self._pool.tasks)
        if not group or not is_whole:
            return
        if self._backend is None:
            for task in group:
                self._publish(task, None)
            return
        members = [each.name for each in group]
        if len(group) > 1 and members != self._members:
            self._members, self._group = members, f"{self._pool.topic}-{group[0].grant}"
        for rank, task in enumerate(group):
            leader = group[0].grant
            self._publish(task, ReduceGroup(name=self._group, rank=rank, size=len(group), leader=leader))

    def _publish(self, task: WorkerTask, group: ReduceGroup | None) -> None:
        task.waits_for = None
        del self._turns[task.name]
        self._publishing.add(task.name)
        task.leader = task.grant if group is None else group["leader"]
        if task.leader == task.grant and task.bucket is not None:
            self._pool.shards.publish(task.bucket, task.grant)
        self._pool.send(task, "publish", group=group)
