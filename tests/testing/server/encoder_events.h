// SPDX-License-Identifier: Apache-2.0
// For tests of encoders: short ways to write events, everything that an encoder writes for them,
// and the lines of a stream of named events.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/response_stream.h"
#include "server/api/reply/answer_splitter.h"
#include "server/api/reply/response_encoder.h"

namespace diffserve::testing {

// A token and the text that it brings.
ResponseDelta Delta(std::string text, FinishReason finish = FinishReason::kNone);

// A model's markers as short as can be: a piece that begins with '?' is reasoning, with '@' a
// call's name, with '=' its arguments.
AnswerSplitter MarkedSplitter();

// What writers from `make` write for `events`, at once and in the smallest pieces, which must
// agree.
template <typename Make>
std::string EncodedText(const Make& make, const std::vector<ResponseEvent>& events) {
  std::string whole, pieces;
  for (const bool at_once : {true, false}) {
    ResponseEncoder encoder(make());
    for (const ResponseEvent& event : events) {
      encoder.Take(event);
      bool written = false;
      while (!written) {
        std::string piece;
        written = encoder.Write(at_once ? ~size_t{0} : 1, &piece);
        (at_once ? whole : pieces) += piece;
      }
    }
    EXPECT_TRUE(encoder.answer().done);
  }
  EXPECT_EQ(whole, pieces);
  return whole;
}

std::vector<ResponseEvent> EventsOf(ResponseStarted started, std::vector<ResponseDelta> deltas,
                                    ResponseDone done);

// "name data" of each event.
std::vector<std::string> EventLines(const std::string& text);

}  // namespace diffserve::testing
