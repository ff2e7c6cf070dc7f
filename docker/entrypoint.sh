#!/bin/bash
# What the image runs: a command by its name (python, dask, graphmill...), else the arguments of dask-submit.
set -eu
if [ "${GRAPHMILL_HDFS_DRIVER:-native}" = libhdfs ] && [ -z "${CLASSPATH:-}" ]; then
  # libhdfs starts a JVM by itself, which expands no wildcards.
  CLASSPATH="$("${HADOOP_HOME:?GRAPHMILL_HDFS_DRIVER=libhdfs needs a Hadoop: mount it, and set HADOOP_HOME}/bin/hadoop" classpath --glob)"
  export CLASSPATH
  export ARROW_LIBHDFS_DIR="${ARROW_LIBHDFS_DIR:-$HADOOP_HOME/lib/native}"
fi
if command -v -- "${1:-}" >/dev/null 2>&1; then
  exec "$@"
fi
exec dask-submit "$@"
