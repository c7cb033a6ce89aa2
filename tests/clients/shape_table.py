# SPDX-License-Identifier: Apache-2.0
"""The rows of shapes.py: (name, source, path, body, None or a word of the refusal)."""

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT, EMBEDDINGS = "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"

ASK = {"role": "user", "content": "#hello#"}
OBJECT = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": OBJECT}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FLAT = {"type": "function", "name": "f", "parameters": OBJECT}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
OWN = {"name": "f", "input_schema": OBJECT}


def said(*messages):
    """A conversation with these messages between two messages of the user."""
    return {"messages": [ASK, *messages, ASK]}


def called(message, **result):
    return {**said(message, {"role": "tool", "tool_call_id": "call_1", "content": "", **result}),
            "tools": [TOOL]}


def asked(content, **more):
    return {"max_tokens": 50, "messages": [{"role": "user", "content": content}], **more}


def items(*between):
    return {"input": [ASK, *between, ASK]}


CHAT_SHAPES = [
    ("chat_assistant_content_is_empty", "vllm 21089",
     said({"role": "assistant", "content": ""}), None),
    ("chat_assistant_content_is_an_empty_list_beside_calls", "rig 1362",
     called({"role": "assistant", "content": [], "tool_calls": [CALL]}), None),
    ("chat_assistant_content_is_null_beside_calls", "sglang 3637",
     called({"role": "assistant", "content": None, "tool_calls": [CALL]}), None),
    ("chat_assistant_has_no_content_beside_calls", "sglang 4236",
     called({"role": "assistant", "tool_calls": [CALL]}), None),
    ("chat_assistant_has_content_and_calls", "vllm 16774",
     called({"role": "assistant", "content": "I look.", "tool_calls": [CALL]}), None),
    ("chat_assistant_calls_are_an_empty_list", "openai-python's model_dump, vllm 39780",
     said({"role": "assistant", "content": "a", "tool_calls": []}), None),
    ("chat_assistant_has_null_fields", "litellm's and openai-python's model_dump",
     said({"role": "assistant", "content": "a", "tool_calls": None, "function_call": None,
           "refusal": None, "audio": None, "annotations": []}), None),
    ("chat_assistant_has_reasoning_only", "openai-node, litellm: a turn cut in its reasoning",
     said({"role": "assistant", "content": None, "reasoning_content": "I think"}), None),
    ("chat_assistant_parts_are_of_type_thinking", "litellm 22997 (Claude Code by hosted_vllm)",
     said({"role": "assistant", "content": [{"type": "thinking", "thinking": "I think"},
                                            {"type": "text", "text": "a"}]}), None),
    ("chat_assistant_part_is_a_refusal", "OpenAI's message form",
     said({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}), None),
    ("chat_call_has_an_index", "openai-python, streamed calls appended",
     called({"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}]}), None),
    ("chat_call_has_empty_arguments", "vllm and llama.cpp: tools without parameters",
     called({"role": "assistant", "content": None,
             "tool_calls": [{**CALL, "function": {"name": "f", "arguments": ""}}]}), None),
    ("chat_tool_content_is_a_list_of_texts", "openai-agents, rig 1362",
     called({"role": "assistant", "content": None, "tool_calls": [CALL]},
            content=[{"type": "text", "text": "done"}]), None),
    ("chat_tool_message_has_a_name", "langchain, litellm",
     called({"role": "assistant", "content": None, "tool_calls": [CALL]}, name="f"), None),
    ("chat_system_content_is_a_list", "rig 1362, langchaingo 667",
     {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, ASK]},
     None),
    ("chat_developer_role", "codex, openai-node on reasoning models",
     {"messages": [{"role": "developer", "content": "Be brief."}, ASK]}, None),
    ("chat_text_part_has_cache_control", "cline 261, litellm",
     {"messages": [{"role": "user", "content": [{"type": "text", "text": "#hello#",
                                                 "cache_control": {"type": "ephemeral"}}]}]},
     None),
    ("chat_tools_are_empty", "fast-agent 781, gLLM 267",
     {"messages": [ASK], "tools": [], "tool_choice": "auto"}, None),
    ("chat_tool_choice_is_null_without_tools", "camel 1585",
     {"messages": [ASK], "tool_choice": None}, None),
    ("chat_function_has_strict", "notebook-intelligence 108",
     {"messages": [ASK], "tools": [{"type": "function",
                                    "function": {**TOOL["function"], "strict": False}}]}, None),
    ("chat_function_has_no_parameters", "llama_index 18928",
     {"messages": [ASK], "tools": [{"type": "function", "function": {"name": "f"}}]}, None),
    ("chat_function_has_keys_of_its_framework", "agno 5844",
     {"messages": [ASK], "tools": [{"type": "function", "function": {
         **TOOL["function"], "requires_confirmation": False}}]}, None),
    ("chat_named_tool_choice", "LM Studio: llm-git 13, oh-my-pi 6925",
     {"messages": [ASK], "tools": [TOOL], "max_tokens": 60,
      "tool_choice": {"type": "function", "function": {"name": "f"}}}, None),
    ("chat_json_object", "LM Studio: sd-ai 2, OpenBiliClaw 12",
     {"messages": [ASK], "response_format": {"type": "json_object"}, "max_tokens": 60}, None),
    ("chat_form_beside_tools", "vllm 16313 (openai-agents, AI SDK, pydantic-ai, codex)",
     {"messages": [ASK], "tools": [TOOL], "max_tokens": 60,
      "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT}}},
     None),
    ("chat_stream_options_are_null", "openai clients in Go and Java",
     {"messages": [ASK], "stream_options": None, "stop": None, "logit_bias": None}, None),
    ("chat_unknown_role", "sglang 12100", {"messages": [{"role": "bot", "content": "a"}]},
     "role"),
    ("chat_image", "this server takes text alone",
     {"messages": [{"role": "user", "content": [
         {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]}, "image"),
    ("chat_audio_answer", "asks for an effect", {"messages": [ASK], "modalities": ["audio"]},
     "modalities"),
]

TEXT_SHAPES = [
    ("text_echo_in_a_stream", "vllm 15119", {"prompt": "ab", "echo": True, "stream": True,
                                             "max_tokens": 2}, None),
    ("text_null_fields", "openai clients in Go and Java",
     {"prompt": "a", "max_tokens": 2, "suffix": None, "stop": None, "logprobs": None,
      "stream_options": None, "user": None, "best_of": None}, None),
    ("text_suffix", "asks for an effect (editors' completions)",
     {"prompt": "a", "suffix": "b", "max_tokens": 2}, "suffix"),
]

RESPONSES_SHAPES = [
    ("responses_reasoning_without_content", "llama.cpp 24115 (Copilot CLI)",
     items({"type": "reasoning", "id": "rs_1", "summary": []}), None),
    ("responses_reasoning_with_an_encrypted_part", "codex",
     items({"type": "reasoning", "summary": [], "encrypted_content": "AAAA"}), None),
    ("responses_reasoning_with_content", "vllm 28248",
     items({"type": "reasoning", "id": "r", "summary": [],
            "content": [{"type": "reasoning_text", "text": "I think"}]}), None),
    ("responses_assistant_message_without_type", "openai-python's EasyInputMessage",
     items({"role": "assistant", "content": "a"}), None),
    ("responses_output_text_with_annotations", "openai-node: output appended",
     items({"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
            "content": [{"type": "output_text", "text": "a", "annotations": [],
                         "logprobs": []}]}), None),
    ("responses_output_is_a_list_of_texts", "gLLM 267 (codex)",
     {**items({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
              {"type": "function_call_output", "call_id": "c",
               "output": [{"type": "input_text", "text": "done"}]}), "tools": [FLAT]}, None),
    ("responses_custom_call_in_the_history", "codex: apply_patch",
     items({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"},
           {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}), None),
    ("responses_codex_tools", "llama.cpp 20156, LM Studio 1810, codex 0.169",
     {"input": "#hello#", "tools": [
         FLAT, {"type": "web_search", "external_web_access": False},
         {"type": "namespace", "name": "mcp__a__", "description": "a", "tools": [FLAT]},
         {"type": "custom", "name": "apply_patch", "description": "Edit"},
         {"type": "local_shell"}, {"type": "tool_search"},
         {"type": "image_generation", "output_format": "png"}]}, None),
    ("responses_codex_hints", "ninfer 45",
     {"input": "#hello#", "store": False, "include": ["reasoning.encrypted_content"],
      "prompt_cache_key": "k", "client_metadata": {"a": "b"}, "parallel_tool_calls": False,
      "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"}}, None),
    ("responses_form_beside_tools", "codex exec --output-schema",
     {"input": "#hello#", "tools": [FLAT], "max_output_tokens": 60, "text": {"format": {
         "type": "json_schema", "name": "a", "strict": False, "schema": OBJECT}}}, None),
    ("responses_null_fields", "openai clients in Go and Java",
     {"input": "#hello#", "instructions": None, "tools": [], "reasoning": None, "text": None,
      "previous_response_id": None, "metadata": None, "max_output_tokens": None}, None),
    ("responses_unknown_reference", "AI SDK after a restart: vllm 55974 answers 500",
     items({"type": "item_reference", "id": "msg_none"}), "msg_none"),
    ("responses_image", "this server takes text alone",
     {"input": [{"role": "user", "content": [{"type": "input_image",
                                              "image_url": "data:image/png;base64,AA=="}]}]},
     "image"),
    ("responses_background", "asks for an effect", {"input": "a", "background": True},
     "background"),
]

MESSAGES_SHAPES = [
    ("messages_system_role_last", "vllm 44000, Claude Code 2.1",
     {"max_tokens": 50, "messages": [ASK, {"role": "system", "content": [
         {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]}, None),
    ("messages_context_management", "Claude Code 2.1",
     asked("#hello#", context_management={"edits": [{"type": "clear_thinking_20251015",
                                                     "keep": "all"}]}), None),
    ("messages_cache_control_scope", "copilot-api 143",
     asked("#hello#", system=[{"type": "text", "text": "a", "cache_control": {
         "type": "ephemeral", "scope": "global", "ttl": "1h"}}]), None),
    ("messages_billing_header", "Claude Code 2.1",
     asked("#hello#", system=[{"type": "text", "text": "x-anthropic-billing-header: a=1;"}]),
     None),
    ("messages_adaptive_thinking", "Claude Code 2.1",
     asked("#hello#", thinking={"type": "adaptive", "display": "omitted"},
           output_config={"effort": "high"}), None),
    ("messages_budget_beyond_max_tokens", "Claude Code with a small limit",
     asked("#hello#", max_tokens=99999999), None),
    ("messages_redacted_thinking", "vllm 36992",
     {"max_tokens": 50, **said({"role": "assistant", "content": [
         {"type": "redacted_thinking", "data": "AAAA"}, {"type": "text", "text": "a"}]})}, None),
    ("messages_thinking_without_signature", "jp 136, zotero-rag 293",
     {"max_tokens": 50, **said({"role": "assistant", "content": [
         {"type": "thinking", "thinking": "I think", "signature": ""}]})}, None),
    ("messages_assistant_content_is_empty", "cline 9213, a call cut by max_tokens",
     {"max_tokens": 50, **said({"role": "assistant", "content": []})}, None),
    ("messages_tool_result_without_content", "Claude Code: a command that prints nothing",
     {"max_tokens": 50, "tools": [OWN], "messages": [
         ASK, {"role": "assistant", "content": [USE]},
         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}]},
     None),
    ("messages_tool_reference", "Claude Code's ToolSearch",
     {"max_tokens": 50, "tools": [{**OWN, "defer_loading": True}], "messages": [
         ASK, {"role": "assistant", "content": [USE]},
         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [
             {"type": "tool_reference", "tool_name": "f"}]}]}]}, None),
    ("messages_server_tools_beside_own", "Claude Code's web search",
     asked("#hello#", tools=[OWN, {"type": "web_search_20250305", "name": "web_search",
                                   "max_uses": 8}]), None),
    ("messages_tool_of_type_custom_with_eager_streaming", "Claude Code",
     asked("#hello#", tools=[{**OWN, "type": "custom", "eager_input_streaming": True,
                              "input_examples": [{}]}]), None),
    ("messages_tool_name_of_128", "MCP servers by Claude Code",
     asked("#hello#", tools=[{**OWN, "name": "f" * 128}]), None),
    ("messages_tools_are_empty", "Claude Code's short requests", asked("#hello#", tools=[]), None),
    ("messages_image", "this server takes text alone",
     asked([{"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                         "data": "AA=="}}]), "image"),
    ("messages_mcp_servers", "offers tools, as web_search does",
     asked("a", mcp_servers=[{"type": "url", "url": "http://127.0.0.1/", "name": "m"}]), None),
    ("messages_max_tokens_is_missing", "required by the form", {"messages": [ASK]}, "max_tokens"),
]

COUNT_SHAPES = [
    ("count_system_and_tools", "litellm 36671 (Claude Code's /context)",
     {"messages": [ASK], "system": [{"type": "text", "text": "a"}], "tools": [OWN],
      "thinking": {"type": "adaptive"}}, None),
    ("count_system_role", "Claude Code 2.1",
     {"messages": [ASK, {"role": "system", "content": "a"}]}, None),
    ("count_image", "litellm 36604 answers 500",
     {"messages": [{"role": "user", "content": [{"type": "image", "source": {
         "type": "base64", "media_type": "image/png", "data": "AA=="}}]}]}, "image"),
]

EMBEDDINGS_SHAPES = [
    ("embeddings_base64", "openai SDKs' default: vllm 6174, llama.cpp 10887",
     {"input": "a", "encoding_format": "base64"}, None),
    ("embeddings_null_fields", "llama_index, Go clients",
     {"input": ["a"], "encoding_format": None, "dimensions": None, "user": None}, None),
    ("embeddings_of_token_ids", "langchain's tiktoken batches", {"input": [[1, 2], [3]]}, None),
    ("embeddings_of_2048", "OpenAI's limit: langchain-js, AI SDK", {"input": ["a"] * 2048}, None),
    ("embeddings_of_2049", "beyond the limit", {"input": ["a"] * 2049}, "2048"),
    ("embeddings_of_nothing", "an empty batch", {"input": []}, "input"),
    ("embeddings_unknown_encoding", "FastChat 2281", {"input": "a", "encoding_format": "md5"},
     "encoding_format"),
]

SHAPES = [(name, seen, path, body, refused) for path, rows in (
    (CHAT, CHAT_SHAPES), (TEXT, TEXT_SHAPES), (RESPONSES, RESPONSES_SHAPES),
    (MESSAGES, MESSAGES_SHAPES), (COUNT, COUNT_SHAPES), (EMBEDDINGS, EMBEDDINGS_SHAPES))
    for name, seen, body, refused in rows]
