#!/bin/sh
# Generates parameter_server_pb2.py and .pyi from the .proto file; with --check, says whether the committed ones are fresh.
#
# The generator is pinned to the oldest protobuf that pyproject.toml allows: older messages run on newer protobuf, not the
# other way round. It is kept apart from the environment, whose protobuf is newer than it admits.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
tools=.venv/protoc-1.75.1
if [ ! -d "$tools" ]; then
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --target "$tools" grpcio-tools==1.75.1
fi
out=.
if [ "${1:-}" = --check ]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi
PYTHONPATH="$tools" "$PYTHON" -m grpc_tools.protoc -I. --python_out="$out" --pyi_out="$out" protos/parameter_server.proto
if [ "$out" != . ]; then
    for file in protos/parameter_server_pb2.py protos/parameter_server_pb2.pyi; do
        cmp "$out/$file" "$file" || { echo "$file is not what the .proto file gives: run 'make protos'" >&2; exit 1; }
    done
    echo "generated messages are fresh"
fi
