# SPDX-License-Identifier: Apache-2.0
"""Makes Python stubs of our .proto files. As a program: into the folder that is its argument."""

import sys
from pathlib import Path

PROTO = Path(__file__).resolve().parents[2] / "proto"


def generate(out) -> None:
    from grpc_tools import protoc

    arguments = [
        "protoc", f"-I{PROTO}", f"--python_out={out}", f"--grpc_python_out={out}",
        "diffserve/v1/inference.proto", "smg/grpc/router.proto",
        "vllm/grpc/engine/vllm_engine.proto"
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed")
    for folder in Path(out).glob("**/"):  # an installed package of the same name would come first
        (folder / "__init__.py").touch()


if __name__ == "__main__":
    generate(sys.argv[1])
