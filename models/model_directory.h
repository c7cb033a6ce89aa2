// What a directory is that lacks a file which every model directory has.
#pragma once

#include <string>

namespace diffserve {

// "; it is ..." for the end of an error: an adapter, another format, a download that has not ended,
// and so on. Empty if nothing can be said.
std::string DescribeOtherContents(const std::string& dir);

}  // namespace diffserve
