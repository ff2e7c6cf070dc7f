"""What happens in a YARN container: the script that starts a Dask worker, and the files that it needs.

    the container's folder, filled by YARN
        ExecScript.sh                          the script
        core-site.xml  hdfs-site.xml  ...      the submitter's HADOOP_CONF_DIR
        env.tar.gz                             `archive`, unpacked once a node and application
        keys.pem                               the run's own keys, for the container's user alone

Secrets stay in files (TLS keys) or in YARN's own tokens: the script holds paths only.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import dask
from dask.utils import parse_bytes

from graphmill import storage
from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import CORES_VARIABLE, ENVIRONMENT, FACING, LOOPBACK, ClusterConfig
from graphmill.errors import ConfigError

DEFAULT_MEMORY = "4GiB"

_MIB = 1 << 20
_OVERHEAD_SHARE = 0.10  # as Spark: what the process needs beside what Dask counts
_OVERHEAD_MIN_MIB = 384
_COPY_BYTES = 8 << 20
_KEYS_FILE = "keys.pem"
_SITE_FILES = ("core-site.xml", "hdfs-site.xml")
_PASSED_ON = ("HADOOP_USER_NAME", "KRB5_CONFIG")
_NOT_PASSED_ON = ("GRAPHMILL_MASTER", "GRAPHMILL_CONF")
SCHEDULER_GONE_S = 15
SETTLE_S = 2  # a scheduler that closes sends its workers away first

_TEMPLATE = """\
#!/bin/bash
# Started by YARN in the container's folder, and again unless it ends with 0: when the scheduler is gone.
set -u
{exports}
{unpack}
scheduler_answers() {{ (exec 3<>/dev/tcp/{host}/{port}) 2>/dev/null; }}
gone_since=$SECONDS
until scheduler_answers; do
  if (( SECONDS - gone_since > {gone_s} )); then
    echo "no scheduler at {host}:{port}: nothing to do" >&2
    exit 0
  fi
  sleep 1
done
address=$("$python" -c '{facing}' {host} {port})
{worker}
echo "the worker ended with exit code $?" >&2
sleep {settle_s}
scheduler_answers || exit 0
exit 1  # never a signal's own exit code: YARN does not start these again
"""

_UNPACK = """\
# Once a node: beside the file that YARN has localized for all containers of the application.
archive=$(readlink -f {name})
environment="$archive.unpacked"
(
  flock 9
  if [ ! -e "$environment/.complete" ]; then
    rm -rf "$environment" && mkdir "$environment" && tar -xf "$archive" -C "$environment" || exit 1
    unpacker="$environment/bin/conda-unpack"
    if [ -e "$unpacker" ]; then "$environment/bin/python" "$unpacker" || exit 1; fi
    touch "$environment/.complete"
  fi
) 9>"$archive.lock" || exit 1
export PATH="$environment/bin:$PATH"
python="$environment/bin/python"
"""


def memory_mib(settings: ClusterConfig) -> tuple[int, int]:
    """MiB of a worker by Dask's count, and of its container by YARN's.

    Raises:
        ConfigError: `worker_memory` is 0, which no container can be asked for.
    """
    asked = DEFAULT_MEMORY if settings.worker_memory == "auto" else settings.worker_memory
    worker = parse_bytes(asked) // _MIB
    if worker < 1:
        raise ConfigError(f"cluster.worker_memory: expected at least 1 MiB, found {asked!r}")
    return worker, worker + max(_OVERHEAD_MIN_MIB, int(worker * _OVERHEAD_SHARE))


def localized_files(settings: ClusterConfig, folder: Path, keys: Keys | None) -> list[str]:
    """Local paths of the files that every container gets; an archive on HDFS is fetched into `folder`.

    Keys of the run's own are written there, which must be a folder for this user alone.

    Raises:
        NotFoundError: there is no such archive.
    """
    conf_dir = Path(os.environ["HADOOP_CONF_DIR"])
    files = [str(path) for path in (conf_dir / name for name in _SITE_FILES) if path.is_file()]
    if settings.archive:
        path = storage.local_path(settings.archive)
        if path is None:
            path = str(folder / storage.name(settings.archive))
            with storage.open_input(settings.archive) as source, Path(path).open("wb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
        elif not storage.exists(path):
            raise ConfigError(f"cluster.archive: {path}: there is no such file")
        files.append(path)
    if keys is not None and keys.text is not None:
        path = str(folder / _KEYS_FILE)
        Path(path).write_text(keys.text)
        files.append(path)
    return files


def script(settings: ClusterConfig, scheduler: str, name: str, keys: Keys | None) -> str:
    """The text of the container's script; `scheduler` is an address, workers' names begin with `name`."""
    address = urlsplit(scheduler)
    exports = [f"export {key}={shlex.quote(value)}" for key, value in sorted(_environment(settings).items())]
    exports.append('export HADOOP_CONF_DIR="$PWD"')
    unpack = f"python={shlex.quote(settings.python or sys.executable)}"
    if settings.archive:
        unpack = _UNPACK.format(name=shlex.quote(storage.name(settings.archive)))
    return _TEMPLATE.format(
        exports="\n".join(exports),
        unpack=unpack,
        host=address.hostname,
        port=address.port,
        facing=FACING,
        gone_s=SCHEDULER_GONE_S,
        settle_s=SETTLE_S,
        worker=_worker_command(settings, scheduler, name, keys),
    )


def _worker_command(settings: ClusterConfig, scheduler: str, name: str, keys: Keys | None) -> str:
    kind = "cuda worker" if settings.worker_gpus else "worker"
    options = {
        "--nthreads": str(1 if settings.worker_gpus else settings.worker_cores),
        "--memory-limit": f"{memory_mib(settings)[0]}MiB",
        "--death-timeout": "60",
    }
    words = [word for pair in options.items() for word in pair]
    words += ["--no-dashboard", "--dashboard-address", f"{LOOPBACK}:0"]
    own = f'--name "{name}-$CONTAINER_ID" --local-directory "$PWD" --host "$address"'
    if keys is not None and keys.text is not None:
        own += "".join(f' --tls-{kind} "$PWD/{_KEYS_FILE}"' for kind in ("ca-file", "cert", "key"))
    elif keys is not None:
        words += ["--tls-ca-file", keys.ca, "--tls-cert", keys.cert, "--tls-key", keys.key]
    return f'"$python" -m dask {kind} {shlex.join([scheduler, *words])} {own}'


def _environment(settings: ClusterConfig) -> dict[str, str]:
    handed = {
        key: value
        for key, value in os.environ.items()
        if key in _PASSED_ON or (key.startswith("GRAPHMILL_") and key not in _NOT_PASSED_ON)
    }
    # Dask's nannies take the environment of a worker from here, whatever they were started with themselves.
    inherited = {"distributed": {"nanny": {"pre-spawn-environ": ENVIRONMENT}}}
    return {
        **handed,
        **ENVIRONMENT,
        CORES_VARIABLE: str(settings.worker_cores),
        "DASK_INTERNAL_INHERIT_CONFIG": dask.config.serialize(inherited),
    }
