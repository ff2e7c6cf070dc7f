"""Names of tensors in RecIS' layout, none of which begins another.

    rhs_operators.0.real                    a parameter, under PBG's key
    global_embs.emb_user/                   likewise, because of global_embs.emb_user_id
    optimizer.sum.rhs_operators.0.real      the Adagrad sums of a parameter
    rhs_operators.0.real.optimizer.sum      the same in checkpoints of earlier versions

RecIS' reader looks for the blocks of a tensor by the beginning of their names. Asked for `K`, that of RecIS
1.0.0 also finds `K.more`, and returns `K` twice.
"""

from collections.abc import Iterable

from graphmill.errors import FormatError
from graphmill.model.parameters import is_parameter_key

_SUM = "optimizer.sum."
_OLD_SUM_END = ".optimizer.sum"
_END = "/"  # which no key has


def parameter_names(keys: Iterable[str]) -> dict[str, str]:
    """The name of each parameter's tensor, by key."""
    known = list(keys)
    begins = {key for key in known if any(other != key and other.startswith(key) for other in known)}
    return {key: key + _END if key in begins else key for key in known}


def sum_name(parameter_name: str) -> str:
    """Name of the sums of a parameter whose tensor has this name."""
    return _SUM + parameter_name


def parse_names(dense_names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Names of the tensors of parameters, and names of the tensors of their sums, by key."""
    parameters: dict[str, str] = {}
    sums: dict[str, str] = {}
    for name in dense_names:
        without_sum = name.removeprefix(_SUM).removesuffix(_OLD_SUM_END)
        key = without_sum.removesuffix(_END)
        if is_parameter_key(key):
            (parameters if name == without_sum else sums)[key] = name
    return parameters, sums


def check_table_names(entity_types: Iterable[str]) -> None:
    """Refuse the name of a table that RecIS would take apart."""
    for name in entity_types:
        if set("@^") & set(name):
            raise FormatError(
                f"entity type {name!r}: expected a name without @ and ^, which RecIS puts between names; "
                "RecIS could not read a table of that name"
            )
