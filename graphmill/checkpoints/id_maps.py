"""Maps of ids that a user gives, and what becomes of ids that cannot be translated."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphmill import storage
from graphmill.checkpoints.id_join import MOST_FILES, Misses
from graphmill.errors import ConfigError, FormatError
from graphmill.formats.id_maps import INTEGERS, IdMap


@dataclass(frozen=True)
class IdMaps:
    """Maps of ids by table, and how to place raw ids.

    Attributes:
        maps: map of each table; tables without a map are left out.
        num_partitions: partitions of each entity type.
        seed: seed of the hash that places raw ids, as the key `seed` of a configuration.
        leave_out: leave ids out that cannot be translated; otherwise they are an error.
    """

    maps: Mapping[str, IdMap]
    num_partitions: int = 1
    seed: int = 0
    leave_out: bool = False

    def check_types(self, known: Sequence[str], where: str) -> None:
        """Refuse a map of an unknown type."""
        for name in self.maps:
            if name not in known:
                raise ConfigError(f"--id-map {name}=...: {where} has no {name!r}, only {', '.join(known)}")
        if not 1 <= self.num_partitions <= MOST_FILES:
            raise ConfigError(f"--partitions: expected 1 to {MOST_FILES}, found {self.num_partitions}")

    def checked(self, name: str, misses: Misses, where: str) -> list[str]:
        """Lines about ids that are left out; an error where they must not be."""
        wrong = [
            (misses.unmapped, f"ids of {name!r} that its map lacks"),
            (misses.shared, f"ids of {name!r} that share one int64 id"),
        ]
        found = [f"{each} {what}" for each, what in wrong if each.num]
        if found and not self.leave_out:
            raise FormatError(
                f"{where}: {'; '.join(found)}: complete the map, or leave these ids out with --leave-out"
            )
        if misses.without_row.num:
            found.append(f"{misses.without_row} raw ids of the map of {name!r}, which have no row")
        return found


def parse_id_maps(given: Iterable[str], columns: str | None = None) -> dict[str, IdMap]:
    """Parse `TYPE=FILE` or `TYPE=int64` of the command line, and `RAW,ID`, the names of columns.

    Raises:
        ConfigError: a text has another form, or a type stands twice.
    """
    names = None if columns is None else columns.split(",")
    if names is not None and (len(names) != 2 or not all(names)):
        raise ConfigError(f"--id-map-columns: expected RAW,ID, found {columns!r}")
    maps: dict[str, IdMap] = {}
    for each in given:
        name, sign, uri = each.partition("=")
        if not (name and sign and uri):
            raise ConfigError(f"--id-map: expected TYPE=FILE or TYPE={INTEGERS}, found {each!r}")
        if name in maps:
            raise ConfigError(f"--id-map: expected each type once, found {name!r} again")
        uri = uri if uri == INTEGERS else storage.absolute(uri)
        maps[name] = IdMap(uri, (names[0], names[1]) if names else None)
    return maps
