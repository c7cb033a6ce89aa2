// SPDX-License-Identifier: Apache-2.0
#include "server/api/head/random_id.h"

#include <vector>

#include "kernels/process/random_bits.h"

namespace diffserve {

std::string RandomHex(size_t digits) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::vector<unsigned char> bytes((digits + 1) / 2);
  std::string text(digits, '0');
  do {
    FillRandom(bytes);
    for (size_t i = 0; i < digits; ++i)
      text[i] = kDigits[bytes[i / 2] >> (i % 2 == 0 ? 4 : 0) & 0xF];
  } while (text.find_first_not_of('0') == std::string::npos);
  return text;
}

}  // namespace diffserve
