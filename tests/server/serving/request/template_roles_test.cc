// SPDX-License-Identifier: Apache-2.0
// Roles of chat templates, on templates written like those of well-known models.
#include "server/serving/request/template_roles.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/chat_template.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

TemplateRoles RolesOfSource(const std::string& source) {
  TemporaryDirectory dir;
  dir.Write("tokenizer_config.json", nlohmann::json{{"chat_template", source}}.dump());
  const auto loaded = ChatTemplate::Load(dir.path());
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return RolesOf(loaded->get());
}

TEST(TemplateRolesTest, TemplateShowsRefusesOrOmitsRoles) {
  struct Case {
    const char* source;
    bool developer, later_system;
  };
  const Case kCases[] = {
      {"{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", true, true},
      {"{% for m in messages %}{% if m.role in ['user', 'assistant', 'system'] %}<{{ m.role }}>"
       "{{ m.content }}{% endif %}{% endfor %}",
       false, true},
      {"{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
       "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}"
       "{% endfor %}",
       true, false},
      {"{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
       "{{ raise_exception('only first') }}{% elif m.role not in ['system', 'user', 'assistant'] %}"
       "{{ raise_exception('unknown role') }}{% endif %}{{ m.content }}{% endfor %}",
       false, false},
  };
  for (const Case& one : kCases) {
    const TemplateRoles roles = RolesOfSource(one.source);
    EXPECT_EQ(roles.developer, one.developer) << one.source;
    EXPECT_EQ(roles.later_system, one.later_system) << one.source;
  }
}

TEST(TemplateRolesTest, TemplateShowsSystemPromptsAndTools) {
  const TemplateRoles plain = RolesOfSource("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_TRUE(plain.system);
  EXPECT_FALSE(plain.tools);
  const TemplateRoles full = RolesOfSource(
      "{% for t in tools %}{{ t.function.name }}{% endfor %}"
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content[0].text }}{% endif %}"
      "{% endfor %}");
  EXPECT_FALSE(full.system);
  EXPECT_TRUE(full.tools) << "its users' contents are lists of parts";
}

TEST(TemplateRolesTest, WithoutATemplateNothingIsChanged) {
  EXPECT_TRUE(RolesOf(nullptr).developer);
  EXPECT_TRUE(RolesOf(nullptr).later_system);
}

}  // namespace
}  // namespace diffserve
