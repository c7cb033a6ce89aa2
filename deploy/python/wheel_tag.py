# SPDX-License-Identifier: Apache-2.0
"""What the name of the wheel says: any Python 3, and the glibc of Debian 12, where it is built."""

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelTag(BuildHookInterface):
    def initialize(self, version, build_data):
        build_data["tag"] = "py3-none-manylinux_2_36_x86_64"
        build_data["pure_python"] = False
