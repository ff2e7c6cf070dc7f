"""Certificates for Dask's processes, made for a test."""

from pathlib import Path

import trustme


def certificates(folder: Path, name: str = "cluster") -> dict[str, str]:
    """The section `cluster.tls`: files of a CA of its own, and of a certificate that it has signed."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    paths = {key: folder / f"{name}-{key}.pem" for key in ("ca_file", "cert_file", "key_file")}
    authority.cert_pem.write_to_path(paths["ca_file"])
    issued.cert_chain_pems[0].write_to_path(paths["cert_file"])
    issued.private_key_pem.write_to_path(paths["key_file"])
    return {key: str(path) for key, path in paths.items()}
