// SPDX-License-Identifier: Apache-2.0
// Explains what a directory is that lacks a file which every model directory has.
#pragma once

#include <string>
#include <vector>

namespace diffserve {

// "; it is ..." for the end of an error: an adapter, another format, an unfinished download, and so
// on. Empty if nothing is recognised.
std::string DescribeOtherContents(const std::string& dir);

// Names of the files with weights in safetensors, and of their indexes, sorted.
std::vector<std::string> WeightFilesIn(const std::string& dir);

// DescribeOtherContents from the names of files only: weights of another form, or without an index.
std::string DescribeOtherFiles(const std::vector<std::string>& names);

}  // namespace diffserve
