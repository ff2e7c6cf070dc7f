#!/bin/bash
# Entry point of the image: runs a command (python, dask, graphmill...), or dask-submit with the arguments.
set -eu
if [ "${GRAPHMILL_HDFS_DRIVER:-native}" = libhdfs ] && [ -z "${CLASSPATH:-}" ]; then
  # The JVM of libhdfs does not expand wildcards.
  CLASSPATH="$("${HADOOP_HOME:?GRAPHMILL_HDFS_DRIVER=libhdfs needs a Hadoop: mount it, and set HADOOP_HOME}/bin/hadoop" classpath --glob)"
  export CLASSPATH
  export ARROW_LIBHDFS_DIR="${ARROW_LIBHDFS_DIR:-$HADOOP_HOME/lib/native}"
fi
if command -v -- "${1:-}" >/dev/null 2>&1; then
  exec "$@"
fi
exec dask-submit "$@"
