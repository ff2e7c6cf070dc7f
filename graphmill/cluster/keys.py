"""TLS keys of Dask's processes: made for one run, or read from existing files.

The key of a run lets its owner take part in the run. So the key never appears in a command line, in an
environment, or in Dask's configuration, which `SSHCluster` copies to command lines.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from distributed.security import Security

from graphmill import storage
from graphmill.config.sections.cluster import TlsConfig
from graphmill.errors import ConfigError

_NAME = "graphmill"
# Valid for ever: a key is deleted with its run, and a host with a wrong clock may still have workers.
_FROM, _UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_ROLES = ("client", "scheduler", "worker")


@dataclass(frozen=True, repr=False)
class Keys:
    """Certificates of the authorities, the certificate of a process, and its private key.

    Each field is a text (PEM) or the path of a file, which may hold all three. `text` is the content of the
    file of a run's own keys; None for keys in files that exist on every host.
    """

    ca: str
    cert: str
    key: str
    text: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of Dask's Security, for every kind of process."""
        both = (("cert", self.cert), ("key", self.key))
        pairs = {f"tls_{role}_{kind}": value for role in _ROLES for kind, value in both}
        return {"require_encryption": True, "tls_ca_file": self.ca, **pairs}

    def security(self) -> Security:
        """Return Dask's Security of these keys."""
        return Security(**self.options())


def keys_in_files(tls: TlsConfig) -> Keys:
    """Return the keys in the files of `cluster.tls`."""
    for key, path in tls:
        if not storage.exists(path):
            raise ConfigError(f"cluster.tls.{key}: {path}: there is no such file")
    keys = Keys(tls.ca_file, tls.cert_file, tls.key_file)
    try:
        keys.security().get_connection_args("client")
    except ssl.SSLError as error:
        places = ", ".join(dict.fromkeys(path for _, path in tls))
        raise ConfigError(f"cluster.tls: expected certificates and key in PEM: {places}: {error}") from error
    return keys


def new_keys() -> Keys:
    """Make a private key and a self-signed certificate, in memory."""
    # Imported here: workers and `cluster.tls: off` need no cryptography.
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
