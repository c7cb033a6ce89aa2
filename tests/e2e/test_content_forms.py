# SPDX-License-Identifier: Apache-2.0
"""Forms of content, and the arguments of a chat template, compared with jinja2."""

import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import tiny_model
from server_process import REPOSITORY, ServerProcess

sys.path.insert(0, str(REPOSITORY / "tests" / "templates"))
from run import Case, environment, expected  # noqa: E402

PARTS_OF_USERS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% else %}{{ m.content }}"
    "{% endif %}{% endfor %}")
EITHER = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}")
ARGUMENTS = (
    "{{ tools_of_mine | tojson if tools_of_mine is defined else 'none' }} "
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}")


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def message(role, content):
    return {"role": role, "content": content}


class ContentFormsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "model"

    def serve(self, template, *flags):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(tiny_model.directory(), self.folder)
        (self.folder / "chat_template.jinja").write_text(template)
        return ServerProcess(*flags, model=self.folder)

    def prompt(self, server, messages, **more):
        body = {"messages": messages, "add_generation_prompt": False, **more}
        answer = server.post("/v1/chat/completions/render", body)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()["prompt"]

    def right(self, template, messages, **more):
        return expected(environment(), Case(template, {"messages": messages, **more}))["text"]

    def test_each_role_gets_the_form_that_the_template_takes(self):
        for_template = [message("system", "a\nb"), message("user", parts("c", "d"))]
        right = self.right(PARTS_OF_USERS, for_template)
        self.assertEqual(right, "<system>a\nb<user>cd")
        with self.serve(PARTS_OF_USERS) as server:
            for system in ("a\nb", parts("a\nb"), parts("a", "b")):
                sent = [message("system", system), message("user", parts("c", "d"))]
                self.assertEqual(self.prompt(server, sent), right)
            as_text = [message("system", "a\nb"), message("user", "cd")]
            self.assertEqual(self.prompt(server, as_text), right)
            body = {"system": parts("a", "b"), "max_tokens": 1,
                    "messages": [message("user", parts("c", "d"))]}
            counted = server.post("/v1/messages/count_tokens", body).json()["input_tokens"]
            tokens = server.post("/tokenize", {"messages": for_template,
                                               "add_generation_prompt": False}).json()["count"]
            self.assertEqual(counted, tokens)
        self.assertRegex(server.stderr(), "content_format_chosen by=chat_template tools=no "
                                       "user=openai assistant=string system=string tool=string")

    def test_template_of_both_forms_gets_what_the_client_sent(self):
        with self.serve(EITHER) as server:
            for content in ("a\nb", parts("a\nb"), parts("a", "b"), parts("a", "", "b\n")):
                sent = [message("user", content), message("assistant", content)]
                self.assertEqual(self.prompt(server, sent), self.right(EITHER, sent))

    def test_flag_overrides_the_form(self):
        sent = [message("user", parts("a", "b"))]
        for form, right in (("string", "<user>a\nb"), ("openai", "<user>ab")):
            with self.serve(EITHER, "--chat-template-content-format", form) as server:
                self.assertEqual(self.prompt(server, sent), right)
            self.assertRegex(server.stderr(), "content_format_chosen by=command_line tools=no "
                                           f"user={form}")

    def test_arguments_of_a_template_are_any_json(self):
        mine = [{"name": "f", "b": 1, "a": {"deep": [None, True, "<|eot|>"]}}]
        sent = [message("user", "x")]
        with self.serve(ARGUMENTS) as server:
            for given in ({"tools_of_mine": mine}, {"enable_thinking": False}, {},
                          {"tools_of_mine": "text", "enable_thinking": True}):
                self.assertEqual(self.prompt(server, sent, chat_template_kwargs=given),
                                 self.right(ARGUMENTS, sent, **given))
            # null is as if absent.
            nulls = {"enable_thinking": None, "tools_of_mine": None}
            self.assertEqual(self.prompt(server, sent, chat_template_kwargs=nulls),
                             self.right(ARGUMENTS, sent))
            refused = server.post("/v1/chat/completions/render", {
                "messages": sent, "chat_template_kwargs": {"a": ["x" * (1 << 20)]}})
            self.assertEqual(refused.status, 400)
            self.assertIn("at most 1048576", refused.json()["error"]["message"])


if __name__ == "__main__":
    unittest.main()
