#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which test holds which promise of SECURITY.md.

    promises.py    prints a table of the promises and their tests; exit code 1 if a paragraph of
                   the page has no row, a row no paragraph, or a named test does not exist

A test is FILE:NAME, FILE without its folder; a row that no test can hold says why.
"""

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SECTIONS = ("What the defaults are", "What a hostile client can and cannot do",
            "What a hostile prompt can do", "What a hostile model directory can do")

# The words of a paragraph or of an item, and what holds them.
HELD = [
    ("Both ports listen on 127.0.0.1.",
     "tenants.py:test_both_ports_are_closed_on_other_addresses"),
    ("HTTP serves only loopback host names",
     "openai_access_test.cc:OnALoopbackAddressOnlyLoopbackNamesAreServed",
     "front_door_test.cc:RequestWithoutAHostNameGetsTheOpenPathsOfALoopbackServer"),
    ("With `--api-key-file` both ports need a key.",
     "tenants.py:test_every_route_and_method_but_health_needs_a_key",
     "test_api_key.py:test_disguised_paths_need_a_key_too"),
    ("Keys are kept as SHA-256 digests", "tenants.py:test_memory_holds_the_digest_of_a_key_only"),
    ("A key file that everyone can read is reported",
     "tenants.py:test_key_file_that_everyone_can_read_is_logged"),
    ("Web pages of other origins are not let in",
     "test_cross_origin.py:test_without_the_flag_no_page_of_another_origin_is_answered",
     "test_front_door.py:test_pages_of_other_origins_change_no_model"),
    ("It serves only its parent", "test_client_identity.py:test_http_serves_no_stranger",
     "test_client_identity.py:test_grpc_serves_no_stranger",
     "test_client_identity.py:test_no_client_names_itself"),
    ("There is no TLS.", "no test: a fact"),
    ("run the server without privileges", "test_watching.py:test_services_have_no_privileges"),
    ("Limits on requests, connections, memory and time are listed", "no test: a reference"),
    ("read, change or delay beyond its share another client's answers",
     "test_bit_exactness.py:test_through_preemptions", "fairness_test.cc:ClientsTakeTurnsToStart"),
    ("stored responses are found only under the key",
     "tenants.py:test_stored_responses_of_one_client_evict_none_of_another",
     "responses_store_test.cc:ResponseIsVisibleOnlyToItsClient",
     "test_client_identity.py:test_stored_responses_are_found_only_by_the_address_that_made_them"),
    ("take memory without limit",
     "answer_price_test.cc:TooLargeAnswerIsRefusedWithItsCause",
     "http_server_test.cc:BodiesBeyondTheMemoryLimitAreRefused",
     "frontend_test.cc:TextQueueIsBoundedInBytes",
     "grpc_limits_test.cc:OneClientMayHoldThreeQuartersOfTheOpenCalls"),
    ("stop the server with malformed HTTP", "http_server_test.cc:OddRequestsDoNotEndTheServer",
     "http_routes_fuzz.cc:LLVMFuzzerTestOneInput", "grammar_fuzz.cc:LLVMFuzzerTestOneInput",
     "grpc_message_fuzz.cc:LLVMFuzzerTestOneInput",
     "request_json_fuzz.cc:LLVMFuzzerTestOneInput"),
    ("bring a chat template, an adapter or code",
     "tenants.py:test_no_request_brings_a_template_or_an_adapter"),
    ("have tools executed", "tenants.py:test_a_call_starts_no_process_and_no_connection"),
    ("spell a special token in a chat message",
     "client_text_test.cc:NoTokenizerFindsASpecialTokenInText",
     "client_text_test.cc:WhatATemplateCutsOutMakesNoToken",
     "client_text_test.cc:TokenizersNormalizerMakesNoToken"),
    ("use what its share of the machine gives", "no test: a warning"),
    ("learn whether a prefix was cached",
     "tenants.py:test_salts_share_no_prefix_over_any_api"),
    ("end another client's request by its id", "request_owner_test.cc:OnlyTheOwnKeyCancels",
     "test_request_owners.py:test_request_of_another_address_is_unknown"),
    ("keep other addresses out by holding connections",
     "http_connections_test.cc:OneAddressDoesNotHoldAllConnections",
     "http_connections_test.cc:SilentAndSlowConnectionsDoNotKeepProbesOut",
     "grpc_connections_test.cc:OneAddressDoesNotHoldAllConnections"),
    ("learn from the time of an answer which schemas", "grammar_test.cc:EachClientHasItsOwnCache"),
    ("empty the prefix cache", "no test: a warning"),
    ("make the server hold memory through gRPC", "no test: a warning"),
    ("KV events hold the token ids", "test_kv_events.py:class HostilePeerTest"),
    ("It can make the model say anything.", "test_page.py:test_questions_and_answers_are_text"),
    ("no code in it is run", "test_hub.py:test_pickles_only_are_refused_before_anything_large",
     "test_bad_models.py:test_bad_directories_are_refused_in_one_line_by_serve_and_inspect_alike"),
    ("the header of `*.safetensors` is checked",
     "safetensors_test.cc:BadHeadersAreRefusedByOneLine",
     "safetensors_fuzz.cc:LLVMFuzzerTestOneInput"),
    ("its chat template runs in a sandbox", "chat_template_fuzz.cc:LLVMFuzzerTestOneInput"),
    ("`config.json`, tokenizer files and checkpoints are fuzzed",
     "model_config_fuzz.cc:LLVMFuzzerTestOneInput",
     "tokenizer_file_fuzz.cc:LLVMFuzzerTestOneInput",
     "test_bad_models.py:test_flipped_bits_of_any_file_are_refused_in_one_line_or_served"),
    ("only files with names that the loader opens are fetched",
     "test_hub.py:test_only_files_that_are_read_are_in_the_cache_as_relative_links",
     "test_hub.py:test_names_that_lead_out_of_the_directory_are_never_taken"),
    ("a file that has not the size and hash",
     "test_hub_transfers.py:test_wrong_content_once_is_fetched_again_and_twice_is_an_error",
     "test_hub_transfers.py:test_lengths_that_are_lies_end_with_the_right_bytes"),
    ("the token is sent to the hub's own host",
     "test_hub.py:test_the_token_is_sent_to_the_hub_and_not_to_another_host",
     "test_hub.py:test_an_answer_never_leads_from_https_to_http",
     "test_hub_hostile.py:test_password_of_the_endpoint_is_sent_and_not_printed"),
    ("its answers reach a terminal or the log without control characters",
     "test_hub_hostile.py:test_escapes_of_an_answer_are_not_printed"),
    ("It can still make every answer wrong", "no test: a warning"),
]


def paragraphs() -> list[str]:
    """The paragraphs and items of the sections that promise, each as one line."""
    found = []
    for section in (REPOSITORY / "SECURITY.md").read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        if title in SECTIONS:
            blocks = re.split(r"\n\n|\n(?=- )", text)
            found += [" ".join(block.split()) for block in blocks if block.strip()]
    return [text for text in found if not text.endswith(":")]


def exists(test: str) -> bool:
    if test.startswith("no test: "):
        return True
    name, _, function = test.partition(":")
    files = [path for path in (REPOSITORY / "tests").rglob(name) if "build" not in path.parts]
    return any(re.search(rf"\b{function}", path.read_text()) for path in files)


def problems() -> list[str]:
    texts = paragraphs()
    found = [f"no row: {text}" for text in texts if not any(row[0] in text for row in HELD)]
    found += [f"not in SECURITY.md: {row[0]}" for row in HELD
              if not any(row[0] in text for text in texts)]
    found += [f"no such test: {test}" for row in HELD for test in row[1:] if not exists(test)]
    return found


if __name__ == "__main__":
    for words, *tests in HELD:
        print(f"{words}\n    " + "\n    ".join(tests))
    for problem in problems():
        print(problem, file=sys.stderr)
    sys.exit(1 if problems() else 0)
