"""The order in which workers publish what their buckets have changed of the shared state."""

from train.distributed.bucket_assignment import Assignment
from train.distributed.worker_pool import Pool, WorkerTask


class Publishing:
    """The workers that wait for their turn to publish, and those that publish."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._turns: dict[str, WorkerTask] = {}  # the longest first, by name
        self._publishing: set[str] = set()

    def wait(self, task: WorkerTask) -> None:
        """Let a task that has trained its bucket wait for its turn."""
        task.waits_for = "turn"
        self._turns[task.name] = task

    def forget(self, task: WorkerTask) -> None:
        """Forget a task that has published, or is lost."""
        self._turns.pop(task.name, None)
        self._publishing.discard(task.name)

    def go_on(self, assignment: Assignment) -> None:
        """Have workers publish: at once, or when all that a round can train is trained."""
        if not assignment.publish_group:
            group = list(self._turns.values())
        elif self._publishing:
            return
        else:
            waiting = {task.bucket: task for task in self._turns.values() if task.bucket}
            group = [waiting[bucket] for bucket in assignment.publish_group if bucket in waiting]
            if len(group) < len(assignment.publish_group) and len(waiting) < len(self._pool.tasks):
                return
        for task in group:
            self._publish(task)

    def _publish(self, task: WorkerTask) -> None:
        task.waits_for = None
        del self._turns[task.name]
        self._publishing.add(task.name)
        if task.bucket is not None:
            self._pool.shards.publish(task.bucket, task.grant)
        self._pool.send(task, "publish")
