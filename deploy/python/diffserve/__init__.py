# SPDX-License-Identifier: Apache-2.0
"""diffserve: an inference server for Diff Transformer models, with the program inside.

The console script imports this package, so it imports nothing that the program can do without.
"""
