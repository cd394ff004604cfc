#!/bin/sh
# Makes a virtual environment with the newest PyTorch for the interop tests and the store benchmarks:
#
#   tests/interop/make_venv.sh ~/venv-torch
#   export DDPRUN_TEST_TORCH_PYTHONS=~/venv-torch/bin/python
#
# PyTorch's Linux wheel needs its CUDA libraries even where there is no GPU: about 3 GB to fetch, 8 GB on disk.
# TORCH="torch==2.6.0" chooses another version.
set -eu

if [ $# -ne 1 ]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
"${PYTHON:-python3}" -m venv "$1"
"$1/bin/pip" install --quiet "${TORCH:-torch}" numpy
"$1/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
