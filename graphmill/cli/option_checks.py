"""Options of a command line that others would leave without effect are refused."""

from collections.abc import Mapping, Sequence

import click
from click.core import ParameterSource


def check_options(excluded: Mapping[str, Sequence[str]], needed: Mapping[str, str]) -> None:
    """Refuse options of this command line that others would leave without effect.

    Args:
        excluded: an option, and those that cannot be used with it.
        needed: an option, and the one without which it has no effect; such as `--format word2vec` too.
    """
    context = click.get_current_context()
    given: set[str] = set()
    for param in context.command.params:
        value = context.params.get(param.name or "")
        name = (param.secondary_opts if value is False and param.secondary_opts else param.opts)[0]
        given.add(f"{name} {value}")
        if context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            given.add(name)
    for option, others in excluded.items():
        if option in given and (clashing := [other for other in others if other in given]):
            raise click.UsageError(f"{option}: cannot be used with {', '.join(clashing)}")
    for option, other in needed.items():
        if option in given and other not in given:
            raise click.UsageError(f"{option}: has no effect without {other}")
