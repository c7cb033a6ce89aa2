// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/openapi.h"

#include <string>

namespace diffserve {

HttpReply OpenApiReply() {
  HttpReply reply;
  reply.content_type = "application/json";
  reply.fields = {{"Cache-Control", "no-cache"}};
  reply.body = OpenApiText();
  return reply;
}

}  // namespace diffserve
