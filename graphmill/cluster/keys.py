"""Keys of Dask's processes: of this run alone, made for it and then thrown away, or files that are there.

Who has the key of a run is one of its processes, and nobody else is. It never stands in a command line, in
an environment, or in Dask's configuration, which `SSHCluster` makes a part of command lines.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from distributed.security import Security

_NAME = "graphmill"
# A key lives as long as its run. Clocks of hosts may differ, and a wrong one is no reason to refuse a worker.
_FROM, _UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_ROLES = ("client", "scheduler", "worker")


@dataclass(frozen=True, repr=False)
class Keys:
    """Certificates of those who may sign, a certificate and its key.

    Each is the text (PEM), or the path of a file that holds it. `text` is what a file of a run's own keys
    holds; None for keys that are in files of every host.
    """

    ca: str
    cert: str
    key: str
    text: str | None = None

    @classmethod
    def of_file(cls, path: str, text: str | None = None) -> "Keys":
        """The keys in one file that holds what `new_keys` has made."""
        return cls(path, path, path, text)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of Dask's Security, for every kind of process."""
        both = (("cert", self.cert), ("key", self.key))
        pairs = {f"tls_{role}_{kind}": value for role in _ROLES for kind, value in both}
        return {"require_encryption": True, "tls_ca_file": self.ca, **pairs}

    def security(self) -> Security:
        """Dask's object for these keys."""
        return Security(**self.options())


def new_keys() -> Keys:
    """A key of its own, with a certificate that it has signed itself; in memory."""
    # Imported here: `cluster.tls: off` does without, and so do workers.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), _FROM, _UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    text = (certificate.public_bytes(serialization.Encoding.PEM) + private).decode()
    return Keys(text, text, text, text)
