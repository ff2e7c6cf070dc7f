"""The sections `cluster` and `schedule`."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from graphmill.config.masters import FORMS, is_of_this_machine
from graphmill.config.section import Flag, Section, validated
from graphmill.config.values import Positive, Strings, bytes_of

LOOPBACK = "127.0.0.1"

# Options of the distributed shell's client that follow from settings, and those settings.
OWN_YARN_OPTIONS = {
    "appname": "cluster.name",
    "num_containers": "cluster.num_workers",
    "container_memory": "cluster.worker_memory",
    "container_vcores": "cluster.worker_cores",
    "container_resources": "cluster.worker_gpus",
    "container_resource_profile": "cluster.worker_memory, worker_cores and worker_gpus",
    "queue": "cluster.queue",
    "localize_files": "cluster.archive and cluster.py_files",
    **dict.fromkeys(("jar", "shell_script", "shell_command", "shell_args"), "dask-submit SCRIPT"),
    **dict.fromkeys(("timeout", "container_retry_policy"), "nothing: containers live as long as the run"),
}

YarnOptions = dict[str, bool | int | str | Strings]

# All other keys say where code runs, which code, or who may connect.
_HARMLESS = (
    *("num_workers", "worker_cores", "worker_memory", "worker_gpus", "driver_memory", "queue", "name"),
    *("start_timeout_s", "replace_after_s", "connect_timeout_s", "hdfs_driver"),
)

_MIN_MEMORY_BYTES = 1 << 20


class TlsConfig(Section):
    """Files (PEM) with the same local path on every machine; only the paths leave this machine."""

    ca_file: str = Field(description="Certificates of the authorities that sign the processes' certificates.")
    cert_file: str = Field(description="Certificate of this cluster's processes.")
    key_file: str = Field(description="Private key of the certificate.")


class ClusterConfig(Section):
    """The section `cluster`."""

    key = "cluster"

    master: str = Field(
        "local",
        description=f"Cluster: {FORMS}. local: small work in this process, otherwise as local[*], a process "
        "for each core.",
    )
    num_workers: Positive = Field(2, description="YARN containers, or workers per ssh host.")
    worker_cores: Positive = Field(1, description="Cores of a worker, and tasks that it runs at a time.")
    worker_memory: str = Field(
        "auto", description="Memory of a worker, such as '4GiB'; auto: an equal share, and on YARN 4 GiB."
    )
    worker_gpus: Annotated[int, Field(ge=0)] = Field(0, description="GPUs (yarn.io/gpu) per YARN container.")
    queue: str | None = Field(None, description="YARN queue; null: YARN's default.")
    name: str = Field("graphmill", pattern=r"^[\w.-]+$", description="Name of the YARN application.")
    deploy: Annotated[Literal["client", "cluster"], Flag("--deploy-mode")] = Field(
        "client", description="Where scheduler and driver run on YARN: in this process, or in a container."
    )
    driver_memory: str = Field("2GiB", description="Memory of the driver's container (deploy: cluster).")
    yarn_options: YarnOptions = Field(
        {},
        description="Further options of the client of YARN's distributed shell, such as "
        "node_label_expression; shell_env: a list of NAME=VALUE.",
    )
    archive: str | None = Field(
        None, description="Packed Python environment (.tar.gz, local or on HDFS), unpacked on the nodes."
    )
    python: str | None = Field(
        None, description="Python interpreter on the nodes; null: the path of this process's interpreter."
    )
    py_files: Strings = Field((), description="Modules (.py) and packages (.zip, .whl) for the workers.")
    host: str | None = Field(None, description="Address of this machine that the workers can reach.")
    yarn_classpath: str | None = Field(
        None, description="YARN client's class path; null: the command `yarn`."
    )
    start_timeout_s: Positive = Field(
        300, description="Seconds until a YARN worker, or all workers by ssh, have started."
    )
    replace_after_s: Positive = Field(60, description="Seconds until a missing YARN worker is replaced.")
    dashboard_address: str = Field(f"{LOOPBACK}:0", description="Dask's dashboard; `:8787` opens it to all.")
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the run's metrics for Prometheus, on dashboard_address's host; 0: any.",
    )
    tls: Literal["auto", "off"] | TlsConfig = Field(
        "auto",
        description="TLS between processes. auto: every run has keys of its own; off: anybody may connect.",
    )
    scratch_path: str | None = Field(None, description="Local folder for Dask's files; null: Dask's default.")
    connect_timeout_s: Positive = Field(30, description="Seconds to wait for a connection to the cluster.")
    hdfs_driver: Literal["native", "libhdfs"] = Field(
        "native", description="HDFS client; libhdfs needs a JVM and libhdfs.so."
    )

    @classmethod
    def needs_consent(cls, key: str, value: Any) -> bool:
        """Tell whether a setting is neither harmless nor empty nor a default."""
        field = cls.model_fields.get(key)
        is_default = value in (None, [], {}) or (field is not None and value == field.default)
        is_local = key == "master" and is_of_this_machine(value)
        return key not in _HARMLESS and not is_default and not is_local

    @field_validator("yarn_options")
    @classmethod
    def _check_yarn_options(cls, given: YarnOptions) -> YarnOptions:
        for key in given:
            if key in OWN_YARN_OPTIONS:
                raise ValueError(f"{key}: GraphMill sets this option; use {OWN_YARN_OPTIONS[key]}")
            if not re.fullmatch(r"\w+", key):
                raise ValueError(f"expected names of options as node_label_expression, found {key!r}")
        return given

    @field_validator("worker_memory", "driver_memory")
    @classmethod
    def _check_memory(cls, asked: str, info: ValidationInfo) -> str:
        if asked == "auto" and info.field_name == "worker_memory":
            return asked
        if (size_bytes := bytes_of(asked)) < _MIN_MEMORY_BYTES and size_bytes:  # 0: no limit in Dask
            raise ValueError(f"expected at least 1 MiB, found {asked!r}; a size has a unit, as 4GiB")
        return asked

    @field_validator("tls", mode="before")
    @classmethod
    def _read_tls(cls, given: Any) -> Any:
        if isinstance(given, dict):
            return validated(TlsConfig, given, prefix=("cluster", "tls"))
        if given is None:
            return "auto"
        if given is False:  # as YAML reads the word `off`
            return "off"
        if given in ("auto", "off") or isinstance(given, TlsConfig):
            return given
        raise ValueError(f"expected auto, off, or ca_file, cert_file and key_file, found {given!r}")

    @property
    def protocol(self) -> str:
        """Protocol between Dask's processes."""
        return "tcp://" if self.tls == "off" else "tls://"


class ScheduleConfig(Section):
    """The section `schedule`."""

    key = "schedule"
    keep: Positive | None = Field(
        None, description="Finished dates to keep; older ones are deleted after a run. null: keep all."
    )
    date: str | None = Field(None, description="Date of the run, set by --date.")
    previous_date: str | None = Field(None, description="Date that the run continues from, set by --date.")
