"""The scripts that start a Dask worker or a driver in a YARN container, and the files that they need.

    the container's folder, filled by YARN
        ExecScript.sh                          the script
        core-site.xml  hdfs-site.xml  ...      the submitter's HADOOP_CONF_DIR
        env.tar.gz                             `archive`, unpacked once per node and application
        keys.pem                               keys of this run, readable by the container's user alone
        tmp/  cache/                           TMPDIR; compiled code. YARN deletes them with the folder

Secrets are in files (TLS keys) or in YARN's own tokens: the script holds paths only.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import dask

from graphmill import storage
from graphmill.cluster.hadoop import shell_words
from graphmill.cluster.keys import Keys
from graphmill.cluster.settings import CORES_VARIABLE, DRIVER_VARIABLE, ENVIRONMENT, FACING, NEVER_MS, QUIET
from graphmill.config.sections.cluster import LOOPBACK, ClusterConfig, YarnOptions
from graphmill.config.values import bytes_of
from graphmill.errors import ConfigError

DEFAULT_MEMORY = "4GiB"
MASTER_MIB = 512  # of an application master

_MIB = 1 << 20
_OVERHEAD_SHARE = 0.10  # memory that Dask does not count; the share is Spark's
_OVERHEAD_MIN_MIB = 384
_KEYS_FILE = "keys.pem"
_SITE_FILES = ("core-site.xml", "hdfs-site.xml")
_PASSED_ON = ("HADOOP_USER_NAME", "KRB5_CONFIG")
_NOT_PASSED_ON = ("GRAPHMILL_MASTER", "GRAPHMILL_CONF", DRIVER_VARIABLE)
SCHEDULER_GONE_S = 15
SETTLE_S = 2  # a scheduler that closes first ends its workers

_TEMPLATE = """\
#!/bin/bash
# YARN starts this in the container's folder, and restarts it unless it exits with 0: the scheduler is gone.
{start}
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
exit 1  # never the exit code of a signal: YARN does not restart those
"""

# Folders of each container on the disks of YARN: a container has no home, and may not fill /tmp of its node.
_FOLDERS = {
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "cache",
    "MPLCONFIGDIR": "cache/matplotlib",
    "NUMBA_CACHE_DIR": "cache/numba",
    "TRITON_CACHE_DIR": "cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor",
    "TORCH_EXTENSIONS_DIR": "cache/torch",
    "CUPY_CACHE_DIR": "cache/cupy",
    "CUDA_CACHE_PATH": "cache/cuda",
}

_UNPACK = """\
# Once per node: beside the file that YARN has localized for all containers of the application.
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
    """Return the memory of a worker, and of its container, in MiB."""
    asked = DEFAULT_MEMORY if settings.worker_memory == "auto" else settings.worker_memory
    worker = mib("worker_memory", asked)
    return worker, worker + max(_OVERHEAD_MIN_MIB, int(worker * _OVERHEAD_SHARE))


def mib(key: str, asked: str) -> int:
    """Return the memory that the setting `key` asks for, in MiB."""
    size = bytes_of(asked) // _MIB
    if size < 1:
        raise ConfigError(f"cluster.{key}: expected at least 1 MiB, found {asked!r}")
    return size


def localized_files(settings: ClusterConfig, folder: Path, keys: Keys | None) -> list[str]:
    """Return local paths of the files that every container gets.

    An archive on HDFS is copied to `folder`, and keys of this run are written there: only this user may be
    able to read the folder.
    """
    sites = (Path(os.environ["HADOOP_CONF_DIR"], name) for name in _SITE_FILES)
    files = [str(path) for path in sites if path.is_file()]
    if settings.archive:
        path = storage.local_path(settings.archive)
        if path is None:
            path = str(folder / storage.name(settings.archive))
            storage.copy_file(settings.archive, path)
        elif not storage.exists(path):
            raise ConfigError(f"cluster.archive: {path}: there is no such file")
        files.append(path)
    if keys is not None and keys.text is not None:
        path = str(folder / _KEYS_FILE)
        Path(path).write_text(keys.text)
        files.append(path)
    return files


def shell_arguments(
    settings: ClusterConfig, name: str, num: int, script_path: Path, files: Sequence[str], own: YarnOptions
) -> list[str]:
    """Return the words for the distributed shell's client: an application of `num` containers with a script.

    `files` are local paths, `own` are options of this sort of container; the user's own options come last.
    """
    options: YarnOptions = {
        "appname": name,
        "num_containers": num,
        "master_memory": MASTER_MIB,
        "master_vcores": 1,
        "shell_script": str(script_path),
        "timeout": NEVER_MS,
    }
    if files:
        options["localize_files"] = ",".join(files)
    if settings.queue:
        options["queue"] = settings.queue
    return shell_words(options | own | settings.yarn_options)


def script(settings: ClusterConfig, scheduler: str, name: str, keys: Keys | None) -> str:
    """Return the text of the script; `scheduler` is an address, the worker's name begins with `name`."""
    address = urlsplit(scheduler)
    return _TEMPLATE.format(
        start=start_of(settings),
        host=address.hostname,
        port=address.port,
        facing=FACING,
        gone_s=SCHEDULER_GONE_S,
        settle_s=SETTLE_S,
        worker=_worker_command(settings, scheduler, name, keys),
    )


def start_of(settings: ClusterConfig) -> str:
    """Return the first lines of a container's script: its environment, its folders, and $python."""
    exports = [f"export {key}={shlex.quote(value)}" for key, value in sorted(_environment(settings).items())]
    exports += [f'export {key}="$PWD/{folder}"' for key, folder in _FOLDERS.items()]
    exports.append('export HADOOP_CONF_DIR="$PWD"')
    unpack = f"python={shlex.quote(settings.python or sys.executable)}"
    if settings.archive:
        unpack = _UNPACK.format(name=shlex.quote(storage.name(settings.archive)))
    return "\n".join(["set -u", *exports, f"mkdir -p {' '.join(_FOLDERS.values())}", unpack])


def _worker_command(settings: ClusterConfig, scheduler: str, name: str, keys: Keys | None) -> str:
    kind = "cuda worker" if settings.worker_gpus else "worker"
    num_threads = 1 if settings.worker_gpus else settings.worker_cores
    words = ["--nthreads", str(num_threads), "--memory-limit", f"{memory_mib(settings)[0]}MiB"]
    words += ["--death-timeout", "60", "--no-dashboard", "--dashboard-address", f"{LOOPBACK}:0"]
    own = f'--name "{name}-$CONTAINER_ID" --local-directory "$PWD" --host "$address"'
    if keys is not None and keys.text is not None:
        own += "".join(f' --tls-{kind} "$PWD/{_KEYS_FILE}"' for kind in ("ca-file", "cert", "key"))
    elif keys is not None:
        words += ["--tls-ca-file", keys.ca, "--tls-cert", keys.cert, "--tls-key", keys.key]
    return f'"$python" -m dask {kind} {shlex.join([scheduler, *words])} {own}'


def _environment(settings: ClusterConfig) -> dict[str, str]:
    own = {
        key: value
        for key, value in os.environ.items()
        if key in _PASSED_ON or (key.startswith("GRAPHMILL_") and key not in _NOT_PASSED_ON)
    }
    # A nanny gives this environment to its worker, not its own environment.
    inherited = {"distributed": {"nanny": {"pre-spawn-environ": ENVIRONMENT}}}
    dask.config.set(QUIET, config=inherited)
    return {
        **own,
        **ENVIRONMENT,
        CORES_VARIABLE: str(settings.worker_cores),
        "DASK_INTERNAL_INHERIT_CONFIG": dask.config.serialize(inherited),
    }
