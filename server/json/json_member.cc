// SPDX-License-Identifier: Apache-2.0
#include "server/json/json_member.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

namespace diffserve {
namespace {

// Each function returns false to end the parse.
class MemberFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit MemberFinder(std::string_view name) : name_(name) {}
  std::optional<std::string> found;

  bool key(std::string& key) override {
    is_next_ = depth_ == 1 && key == name_;
    return true;
  }
  bool string(std::string& value) override {
    if (is_next_) found = std::move(value);
    return depth_ > 0;
  }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return depth_ > 0 && Open(); }
  bool end_object() override { return --depth_ > 0; }
  bool end_array() override { return --depth_ > 0; }
  bool null() override { return PassOther(); }
  bool boolean(bool) override { return PassOther(); }
  bool number_integer(int64_t) override { return PassOther(); }
  bool number_unsigned(uint64_t) override { return PassOther(); }
  bool number_float(double, const std::string&) override { return PassOther(); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  // A value that is no string.
  bool PassOther() {
    if (is_next_) found.reset();
    return true;
  }
  bool Open() {
    PassOther();
    is_next_ = false;
    ++depth_;
    return true;
  }

  const std::string_view name_;
  int depth_ = 0;
  bool is_next_ = false;  // the next value is the member's
};

}  // namespace

std::optional<std::string> FindStringMember(std::string_view object, std::string_view name) {
  MemberFinder finder(name);
  nlohmann::json::sax_parse(object.begin(), object.end(), &finder);
  return std::move(finder.found);
}

}  // namespace diffserve
