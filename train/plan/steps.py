"""The steps that a plan names."""

from typing import Any

from graphmill.ask.model import Model
from train.compiled import compiled_step, query_passes
from train.compiled.compiled_step import CompiledStep
from train.compiled.query_passes import CompiledPasses
from train.gpu.capture import capture_on
from train.gpu.replays import Replays
from train.model.optimizer import Adagrad
from train.plan.plan import Plan, Sort
from train.step.plain import PlainStep
from train.step.queries import TORCH, QueryStep
from train.step.step import Step
from train.tables.run_context import RunContext


def make_steps(plan: Plan, context: RunContext, model: Model, adagrad: Adagrad) -> dict[Sort, Step[Any]]:
    """Make the step of each sort of batch; none for the fused step, which takes whole buckets."""
    made: dict[Sort, Step[Any]] = {}
    own, capture = (context.config, model, adagrad), capture_on(context.device)
    for sort, name in plan.steps.items():
        module = query_passes if sort == "queries" else compiled_step
        library = module.library() if name == "compiled" else None
        if sort == "queries":
            launch = None if capture is None else Replays(*own, capture, context.device)
            made[sort] = QueryStep(*own, TORCH if library is None else CompiledPasses(library), launch)
        elif library is not None:
            made[sort] = CompiledStep(*own, library)
        elif name == "plain":
            made[sort] = PlainStep(*own)
    return made
