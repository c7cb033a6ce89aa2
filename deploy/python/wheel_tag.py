# SPDX-License-Identifier: Apache-2.0
"""What the name of the wheel says: any Python 3, the glibc of Debian 12, where it is built, and the
processor."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelTag(BuildHookInterface):
    def initialize(self, version, build_data):
        processor = os.environ.get("DIFFSERVE_PROCESSOR", "x86_64")
        build_data["tag"] = f"py3-none-manylinux_2_36_{processor}"
        build_data["pure_python"] = False
