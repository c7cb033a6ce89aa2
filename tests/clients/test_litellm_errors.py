# SPDX-License-Identifier: Apache-2.0
"""litellm's own exception classes: a request that is longer than the context is a
ContextWindowExceededError, by which its routers choose another model; other errors are not.

Needs a Python that has litellm; DIFFSERVE_BINARY names the server."""

import os
import sys
import unittest
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks nothing of the internet

import litellm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from server_process import ServerProcess

LONG, TOO_MANY_BYTES = "a b c d " * 60, "hello " * 3000


def setUpModule():
    global server
    server = unittest.enterModuleContext(ServerProcess("--max-model-len", 256))


class ContextWindowTest(unittest.TestCase):
    def options(self, provider: str) -> dict:
        base = server.url if provider == "anthropic" else server.url + "/v1"
        return {
            "model": f"{provider}/{server.name}", "api_base": base, "api_key": "unused",
            "max_retries": 0, "timeout": 60
        }

    def test_long_chat_of_every_provider_is_the_context_error(self):
        for provider in ("openai", "hosted_vllm", "anthropic"):
            for text in (LONG, TOO_MANY_BYTES):
                for stream in (False, True):
                    with self.subTest(provider=provider, bytes=len(text), stream=stream):
                        with self.assertRaises(litellm.ContextWindowExceededError):
                            messages = [{"role": "user", "content": text}]
                            answer = litellm.completion(messages=messages, max_tokens=5,
                                                        stream=stream, **self.options(provider))
                            list(answer if stream else ())

    def test_too_many_requested_tokens_are_the_context_error(self):
        with self.assertRaises(litellm.ContextWindowExceededError):
            litellm.completion(messages=[{"role": "user", "content": "hi"}], max_tokens=4096,
                               **self.options("openai"))

    def test_completions_responses_and_embeddings(self):
        calls = {
            "completions": lambda: litellm.text_completion(
                prompt=LONG, **self.options("text-completion-openai")),
            "responses": lambda: litellm.responses(input=LONG, **self.options("openai")),
            "embeddings": lambda: litellm.embedding(input=[LONG], **self.options("openai")),
        }
        for name, call in calls.items():
            with self.subTest(api=name), self.assertRaises(litellm.ContextWindowExceededError):
                call()

    def test_other_mistakes_are_other_errors(self):
        with self.assertRaises(litellm.BadRequestError) as raised:
            litellm.completion(messages=[{"role": "user", "content": "hi"}], temperature=1000,
                               **self.options("openai"))
        self.assertNotIsInstance(raised.exception, litellm.ContextWindowExceededError)


if __name__ == "__main__":
    unittest.main()
