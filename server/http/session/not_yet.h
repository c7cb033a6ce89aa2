// SPDX-License-Identifier: Apache-2.0
// IsNotYet: the errors of a socket that only ask to wait.
#pragma once

#include <boost/asio/error.hpp>

namespace diffserve {

// Nothing was read or written, and the socket is as it was.
inline bool IsNotYet(const boost::system::error_code& error) {
  namespace asio = boost::asio;
  return error == asio::error::would_block || error == asio::error::try_again ||
         error == asio::error::interrupted;
}

}  // namespace diffserve
